"""Makes the hosts of a slice one `jax.distributed` job, before JAX has run anything."""

import contextlib
import hashlib
import pathlib
import socket
import sys
from collections.abc import Iterator

import jax
import ray

import jigsaw_jax
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.slice.log import DivergedError
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.settings import Train

# JAX's own watch ends a process some time after the controller would have killed it,
# which has the clearer reason.
HEARTBEATS = 3
# An exception on one host leaves the others waiting for ever without it.
SHUTDOWN_S = 5


def join(peers: Peers, train: Train) -> None:
    """Meet the other hosts; a slice of one host has none.

    Args:
      peers: of this host.
      train: the run.

    Raises:
      DivergedError: the hosts have other packages or settings.
    """
    if peers.is_alone:
        return
    own = fingerprint(train)
    with contextlib.ExitStack() as stack:
        if peers.leads:
            address = stack.enter_context(_held_address())
            peers.tell("join", address, own)
        else:
            address = _told_address(peers, own)
        _initialize(peers, train, address)


def _told_address(peers: Peers, own: str) -> str:
    """Host 0's, if it runs the same."""
    (address, theirs), _ = peers.hear("join")
    if theirs != own:
        raise DivergedError(
            f"every host must have host 0's package, JAX and settings ({theirs}), "
            f"got {own} on {socket.gethostname()}"
        )
    return address


def _initialize(peers: Peers, train: Train, address: str) -> None:
    # It would take SIGTERM, by which the host says that it is about to go.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        peers.num_hosts,
        peers.index,
        # All addresses of the host otherwise.
        coordinator_bind_address=address,
        heartbeat_timeout_seconds=int(HEARTBEATS * train.cluster.heartbeat_s),
        shutdown_timeout_seconds=SHUTDOWN_S,
        # All that it would look for is given; Slurm's answer would be of other devices.
        cluster_detection_method="deactivate",
        initialization_timeout=int(train.cluster.startup_s),
    )


def check_joined(peers: Peers) -> None:
    """Refuse a job whose processes JAX numbers otherwise; it starts JAX's backend.

    Args:
      peers: of this host.

    Raises:
      DivergedError: this process is another one of the slice.
    """
    if peers.is_alone:
        return
    found = jax.process_index(), jax.process_count()
    if found != (peers.index, peers.num_hosts):
        raise DivergedError(
            f"process must be {peers.index} of {peers.num_hosts}, got {found}; the "
            "hosts of a slice must be given in the order in which JAX counts them"
        )


def fingerprint(train: Train) -> str:
    """Of what must be the same on every host: settings, JAX, this package's text."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(wire.to_bytes(wire.plain(train)))
    digest.update(jax.__version__.encode())
    root = pathlib.Path(jigsaw_jax.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"\n{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _held_address() -> Iterator[str]:
    """Of this host on the network that Ray uses: the loopback with local:N.

    Nobody else is given the port until the job has it, who shares it: gRPC does on
    Linux, where a socket that does not listen is brought nothing.
    """
    host = ray.util.get_node_ip_address()
    with socket.socket() as probe:
        if is_held := sys.platform == "linux":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        probe.bind((host, 0))
        address = f"{host}:{probe.getsockname()[1]}"
        if not is_held:
            probe.close()
        yield address
