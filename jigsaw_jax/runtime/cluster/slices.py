"""Which hosts of a Ray cluster are one slice, from what they say of themselves.

A host names its slice by a resource, "jigsaw_slice:NAME", whose amount is the number
of its hosts; TPU hosts under a newer Ray by the label "ray.io/tpu-slice-name", without
a number. A host that names none is a slice of its own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jigsaw_jax.settings import Mesh

RESOURCE = "jigsaw_slice:"
LABEL = "ray.io/tpu-slice-name"
WORKER = "ray.io/tpu-worker-id"


class SliceError(ValueError):
    """A slice does not fit the run; the message is one line."""


def slices(nodes: Sequence[Mapping[str, Any]], own: str) -> list[tuple[str, ...]]:
    """The slices that are whole.

    Args:
      nodes: as `ray.nodes` has them.
      own: id of this host's.

    Returns:
      Ids of the hosts of each, in the order in which TPUs count them; this host's
      slice first.

    Raises:
      SliceError: this host's slice is not whole.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    wanted: dict[str, int] = {}
    for node in nodes:
        if node["Alive"]:
            name, num = _slice_of(node)
            found.setdefault(name, []).append(node)
            wanted[name] = max(num, wanted.get(name, 1))
    whole = []
    for name, members in found.items():
        ids = tuple(node["NodeID"] for node in sorted(members, key=_number))
        if len(ids) >= wanted[name]:
            whole.append(ids)
        elif own in ids:
            raise SliceError(
                f"slice {name} must have its {wanted[name]} hosts in the Ray cluster, "
                f"got {len(ids)}; start Ray on the others"
            )
    return sorted(whole, key=lambda ids: (own not in ids, ids))


def check_slice(side: str, num_hosts: int, wanted: int, mesh: Mesh) -> None:
    """Refuse a slice that a side of the run can't be spread over.

    Args:
      side: "learner" or "sampler".
      num_hosts: of the slice.
      wanted: as `Cluster` sets it; 0 takes what there is.
      mesh: of the run.

    Raises:
      SliceError: it has another number of hosts, or the mesh doesn't divide by it.
    """
    if wanted not in (0, num_hosts):
        raise SliceError(
            f"Cluster.{side}_hosts must be what the slices have, {num_hosts}, or 0, "
            f"got {wanted!r}; hosts of one slice start Ray with the resource "
            f'"{RESOURCE}NAME"'
        )
    devices = mesh.learner_devices if side == "learner" else mesh.sampler_devices
    if devices % num_hosts:
        raise SliceError(
            f"Mesh must have a multiple of {num_hosts} {side} devices, as its slices "
            f"have {num_hosts} hosts, got {devices!r}"
        )


def _slice_of(node: Mapping[str, Any]) -> tuple[str, int]:
    for resource, amount in node.get("Resources", {}).items():
        if resource.startswith(RESOURCE):
            return resource.removeprefix(RESOURCE), int(amount)
    # The id of a node is no name of a slice.
    return node.get("Labels", {}).get(LABEL) or node["NodeID"], 1


def _number(node: Mapping[str, Any]) -> tuple[int, str]:
    """By which TPUs count the hosts of a slice; their names end in it too."""
    label = node.get("Labels", {}).get(WORKER)
    last = re.search(r"(\d+)$", label or node.get("NodeManagerHostname", ""))
    return int(last[1]) if last else 0, node["NodeID"]
