"""Offers of weights as they travel by Ray, and word that there is one."""

import dataclasses
from typing import Any

import jax
import ray

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.model import lora
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.lines.door import Address
from jigsaw_jax.runtime.weights import Offer
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Params

# What a carrier may take for one version.
WITHIN_S = 120.0
FORM = "offer-3"
# Of a manifest up to which an offer goes along with an answer. To get an object of
# Ray's costs either end half a millisecond more; what many get is sent a node once.
ALONG_BYTES = 32 << 10


@dataclasses.dataclass(frozen=True)
class Weights:
    """A version on its way to the samplers.

    version: its number.
    run: id of the life of the learner that sends it.
    start_s: when it was begun.
    learner: Ray's name of that learner, whom samplers ask for the offers.
    depot: address of its depot, for completions.
    """

    version: int
    run: str
    start_s: float
    learner: str
    depot: Address


def put(offer: Offer) -> Any:
    """An offer as others are given it, by a call of Ray's.

    Args:
      offer: what a sender made.

    Returns:
      Plain values but for references; or one reference where they are many. The objects
      that the offer names stay as long as this.
    """
    tickets = [[key, *ticket] for key, ticket in offer.tickets.items()]
    value = [FORM, offer.manifest, tickets]
    return value if len(offer.manifest) <= ALONG_BYTES else ray.put(value)


def get(told: Any, within_s: float = WITHIN_S) -> Offer:
    """The offer that `put` made; its manifest is checked by who receives it.

    Args:
      told: of `put`.
      within_s: how long it may take.

    Returns:
      The offer.

    Raises:
      RayError: it is gone with its host, or there was no answer.
      WireError: it is not what `put` made.
    """
    is_object = isinstance(told, ray.ObjectRef)
    value = ray.get(told, timeout=within_s) if is_object else told
    form, manifest, tickets = wire.read_list(value, 3)
    if form != FORM:
        raise wire.WireError(f"an offer must be of form {FORM}, got {form!r}")
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
