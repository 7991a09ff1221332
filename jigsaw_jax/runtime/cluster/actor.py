"""The Ray actor of a worker process: a door to `Desk`, light enough to open before JAX.

do(batch)       commands that name objects of Ray's; the others come by line
named(number)   objects that a batch of messages names
offered(...)    the learner's newest weights, for samplers
follow(entries) the log of host 0, on the other hosts of a slice
collect(key)    an answer to host 0
live()          tells why the process has ended
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import ray

from jigsaw_jax.runtime.allocator import VARIABLE

# A thread that decodes or trains takes the interpreter for a moment five to eight times
# a step, and waits so long for each where another, receiving weights say, has work in
# Python.
SWITCH_S = 0.0002


class Worker:
    """One process of a run; made by Ray.

    Args:
      charter: JSON: who it is, its environment and the run's settings.
      others: of its slice, where it is the first of several hosts.
    """

    def __init__(self, charter: bytes, others: Sequence[Any] = ()) -> None:
        sys.setswitchinterval(SWITCH_S)
        values = json.loads(charter)
        # Before JAX is imported, which reads it once.
        os.environ.update(values["environment"])
        if values["cores"]:
            _pin(values["cores"])
        from jigsaw_jax.runtime.cluster.desk import Desk

        self._desk = Desk(values, others)
        if threading.current_thread() is threading.main_thread():
            # A preempted host says so, and has half a minute left.
            signal.signal(signal.SIGTERM, lambda *_: self._desk.leave())

    @ray.method(concurrency_group="commands")
    def do(self, batch: bytes, refs: list[Any]) -> None:
        """Queue commands.

        Args:
          batch: a number in sequence, and commands.
          refs: objects that they name.
        """
        self._desk.queue(batch, refs)

    @ray.method(concurrency_group="commands")
    def follow(self, entries: bytes, refs: list[Any]) -> None:
        """Queue entries of the slice's log.

        Args:
          entries: as `Peers.write` made them.
          refs: objects that they name.
        """
        self._desk.follow(entries, refs)

    @ray.method(concurrency_group="answers")
    def collect(self, key: str) -> tuple[bytes, list[Any]]:
        """Wait for an answer to host 0.

        Args:
          key: of it.

        Returns:
          Plain values, and objects that they name.
        """
        return self._desk.peers.collect(key)

    @ray.method(concurrency_group="messages")
    def named(self, number: int) -> list[Any]:
        """Objects of a batch, as `Outbox.named` has them.

        Args:
          number: of the batch.

        Returns:
          References.
        """
        return self._desk.outbox.named(number)

    @ray.method(concurrency_group="offers")
    def offered(self, version: int, with_frozen: bool) -> list[Any] | None:
        """Offers of a version, as `Newest.get` has them.

        Args:
          version: that is wanted.
          with_frozen: whether what is frozen is, too.

        Returns:
          One or two; None where another version has taken its place.
        """
        return self._desk.outbox.newest.get(version, with_frozen)

    @ray.method(concurrency_group="life")
    def live(self) -> None:
        """Wait for ever; whoever called is told why the process has ended."""
        self._desk.contact.wait()


def _pin(cores: list[int]) -> None:
    """Keep every thread on these cores, Ray's too; later ones inherit it from theirs.

    JAX sizes its thread pools by the cores that the process has when it starts.
    """
    for thread in os.listdir("/proc/self/task"):
        # One that has ended meanwhile needs none.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def make(options: dict[str, Any], charter: bytes, others: Sequence[Any] = ()) -> Any:
    """Start the process.

    Args:
      options: of Ray: where it runs and what it is given.
      charter: as `Worker` takes it.
      others: as `Worker` takes them.

    Returns:
      Its handle.
    """
    # A group has one thread, so that commands come in the order of the calls.
    groups = {"commands": 1, "messages": 1, "answers": 1, "offers": 1, "life": 1}
    remote: Any = ray.remote
    environment = json.loads(charter)["environment"]
    if VARIABLE in environment:
        # The C library reads it before anything of ours runs.
        options = {**options, "runtime_env": {"env_vars": environment}}
    made = remote(concurrency_groups=groups, num_cpus=0)(Worker)
    return made.options(**options).remote(charter, others)
