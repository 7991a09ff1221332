"""Which hosts of a Ray cluster are one slice, from what they say of themselves.

A host names its slice by a resource, "jigsaw_slice:NAME", whose amount is the number
of its hosts, and its place there by the amount of "jigsaw_host", from 1. Without them
the labels count that a newer Ray gives to TPU hosts, which don't say how many there
are. A host that names no slice is one of its own. One with "jigsaw_learner" is for a
learner.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jigsaw_jax.settings import Cluster, Mesh

RESOURCE = "jigsaw_slice:"
NUMBER = "jigsaw_host"
LEARNER = "jigsaw_learner"
LABEL = "ray.io/tpu-slice-name"
LABEL_NUMBER = "ray.io/tpu-worker-id"


class SliceError(ValueError):
    """A slice does not fit the run; the message is one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Hosts that work together.

    nodes: Ray's id of each, in the order in which TPUs count them.
    num_hosts: that it says it has; 0 where it doesn't.
    is_whole: whether each of these is there, once; one that came back may be twice.
    is_learners: whether it says that it is for a learner.
    """

    nodes: tuple[str, ...]
    num_hosts: int = 0
    is_whole: bool = True
    is_learners: bool = False


def slices(nodes: Sequence[Mapping[str, Any]], own: str) -> list[Slice]:
    """The slices that are whole, and always this host's.

    Args:
      nodes: as `ray.nodes` has them.
      own: id of this host's.

    Returns:
      The slices, this host's first.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        if node["Alive"]:
            found.setdefault(_slice_of(node)[0], []).append(node)
    there = [_join(members) for members in found.values()]
    there = [one for one in there if one.is_whole or own in one.nodes]
    return sorted(there, key=lambda one: (own not in one.nodes, one.nodes))


def _join(members: Sequence[Mapping[str, Any]]) -> Slice:
    members = sorted(members, key=lambda node: (_number(node) or 0, node["NodeID"]))
    numbers = [number for node in members if (number := _number(node)) is not None]
    num_hosts = max(_slice_of(node)[1] for node in members)
    return Slice(
        nodes=tuple(node["NodeID"] for node in members),
        num_hosts=num_hosts,
        is_whole=num_hosts in (0, len(members)) and len(set(numbers)) == len(numbers),
        is_learners=any(LEARNER in node.get("Resources", {}) for node in members),
    )


def check_slice(side: str, num_hosts: int, cluster: Cluster, mesh: Mesh) -> None:
    """Refuse a slice that a side of the run can't be spread over.

    Args:
      side: "learner" or "sampler".
      num_hosts: of the slice.
      cluster: what the run asks for.
      mesh: of the run.

    Raises:
      SliceError: it has another number of hosts, the mesh doesn't divide by it, or
        something asks for slices of one host.
    """
    is_learner = side == "learner"
    wanted = cluster.learner_hosts if is_learner else cluster.sampler_hosts
    if wanted not in (0, num_hosts):
        raise SliceError(
            f"Cluster.{side}_hosts must be what the slices have, {num_hosts}, or 0, "
            f"got {wanted!r}; the hosts of a slice start Ray with the resource "
            f'"{RESOURCE}NAME"'
        )
    devices = mesh.learner_devices if is_learner else mesh.sampler_devices
    if devices % num_hosts:
        raise SliceError(
            f"Mesh must have a multiple of {num_hosts} {side} devices, as its slices "
            f"have {num_hosts} hosts, got {devices!r}"
        )
    if num_hosts > 1 and not is_learner and "transfer" in cluster.carriers:
        raise SliceError(
            "Cluster.carriers must not have 'transfer' with sampler slices of several "
            f"hosts, got {cluster.carriers!r}"
        )
    if num_hosts > 1 and cluster.role_switch_after:
        raise SliceError(
            "Cluster.role_switch_after must be 0 with slices of several hosts, got "
            f"{cluster.role_switch_after!r}"
        )


def _slice_of(node: Mapping[str, Any]) -> tuple[str, int]:
    for resource, amount in node.get("Resources", {}).items():
        if resource.startswith(RESOURCE):
            return resource.removeprefix(RESOURCE), int(amount)
    name = node.get("Labels", {}).get(LABEL)
    # The id of a node is no name of a slice.
    return (name, 0) if name else (node["NodeID"], 1)


def _number(node: Mapping[str, Any]) -> int | None:
    """As the TPUs count the hosts of a slice, which is how JAX does."""
    number = node.get("Resources", {}).get(NUMBER)
    if number is None:
        number = node.get("Labels", {}).get(LABEL_NUMBER)
    return None if number is None else int(number)
