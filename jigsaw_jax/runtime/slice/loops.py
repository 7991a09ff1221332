"""The sample loop of a slice: host 0 decides each call of it, every host makes it.

    LeadLoop.submit, cancel, ..., step -> log ==> Replay on the others
             > Replay here                        same calls, same order

A loop's state follows from its calls alone, so slots, pages and programs are the same
on every host; a step's results are whole on each device, and each host reads its own.
"""

from collections.abc import Callable
from typing import Any

from jigsaw_jax.records import SampleId
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.sample_bytes import sample_bytes
from jigsaw_jax.runtime.sampler import Loop
from jigsaw_jax.runtime.slice.log import Trace
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.sample.loop import LoopReport, SampleRequest

LOOP = "loop"


class Replay:
    """Makes the log's calls, on the thread of the sampler; host 0's own go by it too.

    Args:
      begin: makes the loop with the weights of a fetch, and their version.
      load: the weights of a fetch, as the loop decodes with them.
    """

    def __init__(
        self, begin: Callable[[int, int], Loop], load: Callable[[int], Any]
    ) -> None:
        self._begin_with = begin
        self._load = load
        self._loop: Loop | None = None
        self.trace = Trace()

    @property
    def loop(self) -> Loop:
        """That the calls go to."""
        assert self._loop is not None, "a loop begins with weights"
        return self._loop

    def follow(self, theirs: int, name: str, values: list[Any]) -> None:
        """Make a call that host 0 has made.

        Args:
          theirs: its trace before the call.
          name: of the call.
          values: plain values.

        Raises:
          DivergedError: this host's trace is another.
        """
        self.trace.check(theirs, name)
        self.make(name, values)

    def make(self, name: str, values: list[Any]) -> Any:
        """Make a call; what it was and what came out of it is traced.

        Args:
          name: of the call.
          values: plain values.

        Returns:
          What the loop returns.

        Raises:
          WireError: there is no such call, or its values are of other types.
        """
        if name not in _CALLS:
            raise wire.WireError(f"call must be known, got {name!r}")
        self.trace.add(wire.to_bytes([name, values]))
        return _CALLS[name](self, values)

    def _begin(self, values: list[Any]) -> None:
        self._loop = self._begin_with(*_weights(values))

    def _swap(self, values: list[Any]) -> None:
        fetch, version = _weights(values)
        self.loop.set_params(self._load(fetch), version)

    def _submit(self, values: list[Any]) -> None:
        self.loop.submit(wire.read(SampleRequest, values[0]))

    def _cancel(self, values: list[Any]) -> None:
        self.loop.cancel(*_attempt(values))

    def _pause(self, values: list[Any]) -> None:
        self.loop.pause(*_attempt(values))

    def _resume(self, values: list[Any]) -> None:
        self.loop.resume(*_attempt(values))

    def _clear(self, values: list[Any]) -> None:
        del values
        self.loop.clear()

    def _step(self, values: list[Any]) -> LoopReport:
        del values
        report = self.loop.step()
        self.trace.add(wire.to_bytes([report.num_active, report.num_tokens]))
        for sample in report.finished:
            self.trace.add(sample_bytes(sample))
        return report


class LeadLoop:
    """Host 0's loop, in the place of a `SampleLoop`; one thread calls it.

    Args:
      peers: the other hosts.
      replay: makes the calls here.
      fetch: number of a fetch that every host has made.
      version: of its weights.
    """

    def __init__(self, peers: Peers, replay: Replay, fetch: int, version: int) -> None:
        self._peers = peers
        self._replay = replay
        self._call("begin", fetch, version)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._replay.loop.is_idle

    def submit(self, request: SampleRequest) -> None:
        """Queue a request."""
        self._call("submit", wire.plain(request), can_wait=True)

    def cancel(self, sample_id: SampleId, attempt: int) -> None:
        """Forget an attempt."""
        self._call("cancel", wire.plain(sample_id), attempt)

    def pause(self, sample_id: SampleId, attempt: int) -> None:
        """Free the slot of an attempt and keep what it has sampled."""
        self._call("pause", wire.plain(sample_id), attempt)

    def resume(self, sample_id: SampleId, attempt: int) -> None:
        """Queue a paused attempt."""
        self._call("resume", wire.plain(sample_id), attempt, can_wait=True)

    def clear(self) -> None:
        """Forget every request."""
        self._call("clear")

    def set_params(self, params: Any, version: int) -> None:
        """Decode with other weights from the next step on.

        Args:
          params: number of a fetch that every host has made.
          version: of its weights.
        """
        self._call("swap", params, version)

    def step(self) -> LoopReport:
        """Fill free slots, decode once, and collect what ended."""
        return self._call("step")

    def _call(self, name: str, *values: Any, can_wait: bool = False) -> Any:
        entry = list(values)
        self._peers.write(
            LOOP, self._replay.trace.value, name, entry, can_wait=can_wait
        )
        return self._replay.make(name, entry)


def _weights(values: list[Any]) -> tuple[int, int]:
    fetch, version = wire.read_list(values, 2)
    return wire.read(int, fetch), wire.read(int, version)


def _attempt(values: list[Any]) -> tuple[SampleId, int]:
    sample_id, attempt = wire.read_list(values, 2)
    return wire.read(SampleId, sample_id), wire.read(int, attempt)


Call = Callable[[Replay, list[Any]], Any]
_CALLS: dict[str, Call] = {
    "begin": Replay._begin,
    "swap": Replay._swap,
    "submit": Replay._submit,
    "cancel": Replay._cancel,
    "pause": Replay._pause,
    "resume": Replay._resume,
    "clear": Replay._clear,
    "step": Replay._step,
}
