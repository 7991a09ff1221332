"""Offers of weights on the wire: plain values, and references to the objects beside."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import ray

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.model import lora
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.weights import Offer
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Params

# What a carrier may take for one version.
WITHIN_S = 120.0


@dataclasses.dataclass(frozen=True)
class Weights:
    """A version on its way to the samplers.

    version: its number.
    run: id of the life of the learner that sends it.
    start_s: when it was begun.
    trained: offer of what trains, plain.
    trained_refs: objects that it names.
    frozen: offer of what never changes, for samplers that have none yet; None where the
        one before still holds.
    frozen_refs: objects that it names.
    """

    version: int
    run: str
    start_s: float
    trained: Any
    trained_refs: list[Any]
    frozen: Any
    frozen_refs: list[Any]


def plain(offer: Offer) -> tuple[list[Any], list[Any]]:
    """An offer as plain values, and the objects that it names.

    Args:
      offer: what a sender made.

    Returns:
      Both; a ticket that is no object stands among the values.
    """
    refs: list[Any] = []
    tickets = []
    for key, (carrier, ticket) in offer.tickets.items():
        if isinstance(ticket, ray.ObjectRef):
            tickets.append([key, carrier, len(refs), None])
            refs.append(ticket)
        else:
            tickets.append([key, carrier, None, ticket])
    return [offer.manifest, tickets], refs


def read(value: Any, refs: Sequence[Any]) -> Offer:
    """The offer that `plain` wrote; its manifest is checked by who receives it."""
    manifest, tickets = wire.read_list(value, 2)
    found = {}
    for entry in wire.read_list(tickets):
        key, carrier, place, ticket = wire.read_list(entry, 4)
        if place is not None:
            ticket = refs[wire.read(int, place)]
        found[wire.read(str, key)] = (wire.read(str, carrier), ticket)
    return Offer(manifest=wire.read(str, manifest), tickets=found)


def shapes(decoder: Decoder) -> tuple[Params, Params]:
    """Shapes of what trains and of what is frozen."""
    whole = jax.eval_shape(
        lambda: model.init_params(decoder.base, 0) | model.init_adapters(decoder, 0)
    )
    return lora.split(whole)


def wanted(decoder: Decoder, mesh: jax.sharding.Mesh) -> tuple[Params, Params]:
    """`shapes` as they are to lie on a sampler's mesh."""
    axes = lora.split(model.logical_axes(decoder))
    trained, frozen = (
        meshes.abstract(shape, meshes.sharding_tree(mesh, names, shape))
        for names, shape in zip(axes, shapes(decoder), strict=True)
    )
    return trained, frozen
