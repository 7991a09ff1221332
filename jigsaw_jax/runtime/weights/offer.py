"""An offer: a manifest and where each of its payloads is to be had."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jigsaw_jax.runtime.weights import manifest as manifests


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a sender hands to receivers; small, and sent as it is through Ray.

    Attributes:
      manifest: as JSON.
      tickets: (name of the carrier, its ticket) of each payload.
    """

    manifest: str
    tickets: dict[str, tuple[str, Any]]


def merge(offers: Sequence[Offer]) -> Offer:
    """The offer of a slice from those of its hosts.

    Args:
      offers: one a host, of the same version.

    Returns:
      An offer of all shards.

    Raises:
      MismatchError: they don't fit together, or leave a hole.
    """
    parts = [manifests.from_json(o.manifest, is_part=True) for o in offers]
    text = manifests.merge(parts).to_json()
    manifests.from_json(text)
    tickets = {key: ticket for o in offers for key, ticket in o.tickets.items()}
    return Offer(manifest=text, tickets=tickets)
