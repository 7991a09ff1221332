"""Offers of weights on the wire: plain values, and references to the objects beside."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import ray
from ray.exceptions import RayError

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.model import lora
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.lines.door import Address
from jigsaw_jax.runtime.weights import CarrierError, Offer
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Params

# What a carrier may take for one version.
WITHIN_S = 120.0
FORM = "offer-2"


@dataclasses.dataclass(frozen=True)
class Weights:
    """A version on its way to the samplers.

    version: its number.
    run: id of the life of the learner that sends it.
    start_s: when it was begun.
    depot: address of that learner's, for completions.
    trained: offer of what trains, plain.
    trained_refs: objects that it names.
    frozen: offer of what never changes, for samplers that have none yet; None where the
        one before still holds.
    frozen_refs: objects that it names.
    """

    version: int
    run: str
    start_s: float
    depot: Address
    trained: Any
    trained_refs: list[Any]
    frozen: Any
    frozen_refs: list[Any]


def plain(offer: Offer) -> tuple[Any, list[Any]]:
    """An offer as plain values, and the objects that it names.

    Manifest and tickets are an object themselves: they grow with leaves and hosts, and
    the controller, through which this goes to every sampler, has no use for them.

    Args:
      offer: what a sender made.

    Returns:
      The version of the form, and the one object.
    """
    tickets = [[key, *ticket] for key, ticket in offer.tickets.items()]
    return FORM, [ray.put([offer.manifest, tickets])]


def read(value: Any, refs: Sequence[Any]) -> Offer:
    """The offer that `plain` wrote; its manifest is checked by who receives it.

    Args:
      value: of `plain`.
      refs: of `plain`.

    Returns:
      The offer.

    Raises:
      CarrierError: it is gone with its host.
      WireError: it is not what `plain` made.
    """
    if value != FORM or len(refs) != 1:
        raise wire.WireError(f"an offer must be of form {FORM}, got {value!r}")
    try:
        manifest, tickets = wire.read_list(ray.get(refs[0], timeout=WITHIN_S), 2)
    except RayError as error:
        raise CarrierError(f"Ray lost an offer: {error}") from error
    found = {}
    for entry in wire.read_list(tickets):
        key, carrier, ticket = wire.read_list(entry, 3)
        found[wire.read(str, key)] = (wire.read(str, carrier), ticket)
    return Offer(manifest=wire.read(str, manifest), tickets=found)


def shapes(decoder: Decoder) -> tuple[Params, Params]:
    """Shapes of what trains and of what is frozen."""
    whole = jax.eval_shape(
        lambda: model.init_params(decoder.base, 0) | model.init_adapters(decoder, 0)
    )
    return lora.split(whole)


def wanted(
    decoder: Decoder, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> tuple[Params, Params]:
    """`shapes` as they are to lie on a sampler's mesh."""
    axes = lora.split(model.logical_axes(decoder))
    trained, frozen = (
        meshes.abstract(shape, meshes.sharding_tree(mesh, names, shape))
        for names, shape in zip(axes, shapes(decoder), strict=True)
    )
    return trained, frozen
