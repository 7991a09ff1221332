"""Ray: started here and bound to this host, or one that runs already."""

import dataclasses
import logging
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import threading
import time
from typing import Any

from jigsaw_jax.runtime import signals
from jigsaw_jax.runtime.cluster import surroundings
from jigsaw_jax.runtime.cluster.slices import Slice, slices
from jigsaw_jax.runtime.crew import ClusterLostError
from jigsaw_jax.settings import Train

LOCAL = "local:"
PATH_MAX = 20
# Slurm, say, starts the command and the cluster at once.
LISTENER_S = 120.0
# Ray's paragraphs on processes and hosts that ended; the run says so in a line.
NOISE = (
    "^A worker died or was killed while executing a task"
    "|^Raylet is terminated"
    "|^The node with node id: .* has been marked dead"
)
# Without one of these there is no Ray; as the kernel shortens their names.
DAEMONS = frozenset({"gcs_server", "raylet"})
# By which Ray says that a cluster can't be started or joined.
_REFUSALS = (ConnectionError, ValueError, RuntimeError, OSError)


class ClusterError(Exception):
    """The cluster can't be had as asked; the message is one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where one worker may run.

    nodes: Ray's id of each host of its slice; None where there is one alone.
    """

    nodes: tuple[str | None, ...] = (None,)

    def options(self, host: int) -> dict[str, Any]:
        """As Ray takes them for a process on a host of the slice."""
        node = self.nodes[host]
        if node is None:
            return {}
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        return {"scheduling_strategy": strategy}


class Head:
    """Our hold on Ray, from `open` to `close`.

    Args:
      address: "local:N", "auto", or where a cluster's head listens.
      train: the run.

    Raises:
      ClusterError: the address, or Ray itself, is missing.
    """

    def __init__(self, address: str, train: Train) -> None:
        self._address = address
        self._train = train
        self._is_ours = True
        self._temporary: str | None = None
        self._daemons: dict[str, int] = {}
        self.num_local = num_local(address)
        if self.num_local and train.cluster.samplers not in (0, self.num_local - 1):
            raise ClusterError(
                f"Cluster.samplers must be 0 or {self.num_local - 1} with --cluster "
                f"{address}, got {train.cluster.samplers!r}"
            )

    def open(self) -> None:
        """Start or join, unless this process has done so already.

        Raises:
          ClusterError: Ray is not installed, or no cluster answers.
          SignalledError: SIGTERM came meanwhile.
        """
        # Ray would count the run in its statistics, and put a warning on the terminal.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", NOISE)
        if self.num_local:
            # Meant for other systems, it is what keeps every port on the loopback: an
            # address of 127.0.0.1 is replaced by the host's own. Read at the import.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            # Workers would give way to every other process, by 15 steps of nice.
            # Ray reads the name in this very case.
            os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
            # Ray would note every call for a dashboard that is not there; this name too
            # is read in this very case.
            os.environ["RAY_task_events_report_interval_ms"] = "0"  # noqa: SIM112
            surroundings.leave(self._train)
        try:
            import ray
        except ImportError:
            raise ClusterError(
                "--cluster needs Ray; install the extra: pip install 'jigsaw-jax"
                "[cluster]'"
            ) from None
        if ray.is_initialized():
            self._is_ours = False
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        common = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.num_local:
                ray.init(address="local", **self._local(), **common)
                self._daemons = _daemons()
            else:
                await_listener(self._address)
                ray.init(address=self._address, **common)
        except BaseException as error:
            self.close()
            if isinstance(error, SystemExit):
                # From here on SIGTERM meets a handler that Ray has put in.
                raise signals.SignalledError(signal.SIGTERM) from None
            # With a bare one Ray says that its processes did not start in time.
            if type(error) is Exception or isinstance(error, _REFUSALS):
                first = str(error).strip().split("\n")[0]
                raise ClusterError(f"--cluster {self._address}: {first}") from error
            raise

    def _local(self) -> dict[str, Any]:
        # No processes are started ahead of ours, and no port is open to other hosts.
        return {
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": self._train.cluster.store_bytes,
            "_temp_dir": self._folder(),
        }

    def _folder(self) -> str:
        """For Ray's sockets, whose paths may have 107 bytes, and its logs."""
        base = tempfile.gettempdir()
        self._temporary = tempfile.mkdtemp(
            prefix="jgs-", dir=base if len(base) <= PATH_MAX else "/tmp"
        )
        return self._temporary

    @property
    def host(self) -> str:
        """This host's address in the cluster; the loopback's with local:N."""
        import ray

        return ray.util.get_node_ip_address()

    def slices(self) -> list[Slice]:
        """Those that are there; asks Ray.

        Returns:
          The slices, this host's first; of a cluster that was joined.

        Raises:
          ClusterLostError: this host is no part of it any more.
        """
        import ray

        own = ray.get_runtime_context().get_node_id()
        found = slices(ray.nodes(), own)
        if not found or own not in found[0].nodes:
            raise ClusterLostError(
                "this host is no part of the Ray cluster any more; once it has joined "
                "again, the same command goes on from the last checkpoint"
            )
        return found

    def check(self) -> None:
        """See to it that Ray is there; costs next to nothing.

        Raises:
          ClusterLostError: a process of Ray that was started here has ended.
        """
        for name, pid in self._daemons.items():
            if _name_of(pid) != name:
                raise ClusterLostError(
                    f"Ray has ended (its {name}, process {pid}); the same command goes "
                    "on from the last checkpoint"
                )

    def close(self) -> None:
        """Let go; what was started here ends."""
        import ray

        if self._is_ours:
            ray.shutdown()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def await_listener(address: str, within_s: float = LISTENER_S) -> None:
    """Wait until somebody listens at an address; Ray would wait without a word.

    Args:
      address: "HOST:PORT"; any other kind is left to Ray.
      within_s: for so long, since a cluster may be starting at this moment.

    Raises:
      ConnectionError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return
    end_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
        except OSError as error:
            if time.monotonic() >= end_s:
                reason = error.strerror or error
                text = f"no Ray cluster listens there: {reason}"
                raise ConnectionError(text) from error
            threading.Event().wait(1.0)
        else:
            return


def _daemons() -> dict[str, int]:
    """Processes of Ray that this one has started, where the system tells."""
    children = pathlib.Path("/proc/self/task").glob("*/children")
    pids = {int(pid) for path in children for pid in path.read_text().split()}
    named = {_name_of(pid): pid for pid in pids}
    return {name: pid for name, pid in named.items() if name in DAEMONS}


def _name_of(pid: int) -> str:
    """What a process runs; nothing where it has ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    head, _, tail = stat.rpartition(")")
    # One that nobody has asked for yet still has its name.
    return "" if tail.split()[0] in "ZX" else head.partition("(")[2]


def num_local(address: str) -> int:
    """How many workers an address asks for here.

    Args:
      address: "local:N" or where a cluster is.

    Returns:
      N, the learner among them; 0 for another address.

    Raises:
      ClusterError: N is no number, or leaves no sampler.
    """
    if not address.startswith(LOCAL):
        return 0
    text = address.removeprefix(LOCAL)
    if not text.isdecimal() or int(text) < 2:
        raise ClusterError(
            f"--cluster local:N must have a learner and a sampler, N at least 2, got "
            f"{address!r}"
        )
    return int(text)
