"""The carriers of weights that `Cluster.carriers` names, at either end.

Both ends make them from the same settings, which `resolve` has completed: a folder that
both see, and the number of samplers that a transfer is offered to, each by its place.
"""

import dataclasses
import pathlib

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import Carrier, FolderCarrier
from jigsaw_jax.runtime.weights.carriers.block import can_share
from jigsaw_jax.runtime.weights.carriers.lines import LineCarrier
from jigsaw_jax.runtime.weights.carriers.shared import SharedCarrier
from jigsaw_jax.settings import Cluster

FOLDER = "weights"


def resolve(
    cluster: Cluster, *, run_dir: pathlib.Path, samplers: int, is_local: bool
) -> Cluster:
    """The settings that workers are given.

    Args:
      cluster: as the user wrote them.
      run_dir: has the folder where none is named.
      samplers: that the run starts with.
      is_local: whether all workers are processes of this machine.

    Returns:
      The same with nothing left open.
    """
    folder = cluster.carrier_folder or str(run_dir.absolute() / FOLDER)
    usual = ("shared", "ray") if is_local and can_share() else ("line", "ray")
    return dataclasses.replace(
        cluster,
        carriers=cluster.carriers or usual,
        carrier_folder=folder,
        samplers=cluster.samplers or samplers,
    )


def make(cluster: Cluster, *, clock: Clock, receiver: int = 0) -> list[Carrier]:
    """The carriers, the first choice first.

    Args:
      cluster: resolved.
      clock: of the deadlines.
      receiver: which of the samplers this is, at their end.

    Returns:
      One of each name.
    """
    return [_make(name, cluster, clock, receiver) for name in cluster.carriers]


def _make(name: str, cluster: Cluster, clock: Clock, receiver: int) -> Carrier:
    # Each imports what only it needs.
    if name == "ray":
        from jigsaw_jax.runtime.weights.carriers.ray_objects import RayCarrier

        return RayCarrier(clock)
    if name == "shared":
        return SharedCarrier()
    if name == "folder":
        return FolderCarrier(pathlib.Path(cluster.carrier_folder))
    import ray

    if name == "line":
        return LineCarrier(ray.util.get_node_ip_address(), clock=clock)

    from jigsaw_jax.runtime.weights.carriers.transfer import TransferCarrier

    return TransferCarrier(
        f"{ray.util.get_node_ip_address()}:0",
        receivers=cluster.samplers,
        receiver=receiver,
        offer_s=cluster.carrier_s,
        clock=clock,
    )


def passed_over(cluster: Cluster, tries: int) -> tuple[str, ...]:
    """Carriers to leave out when a version is sent again.

    Args:
      cluster: names them.
      tries: how often it did not arrive.

    Returns:
      The first so many; after the last of them all are tried anew.
    """
    return cluster.carriers[: tries % len(cluster.carriers)]
