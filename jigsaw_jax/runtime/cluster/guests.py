"""Requests that are not the pipeline's: shared out, and sent again when one is lost."""

import collections
import dataclasses
from collections.abc import Callable

from jigsaw_jax.records import Sample, SampleId
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster.roster import Roster
from jigsaw_jax.sample.loop import SampleRequest


@dataclasses.dataclass(slots=True, eq=False)
class _Guest:
    """A request, who takes its answer, and which life of a worker samples it."""

    request: SampleRequest
    receive: Callable[[Sample], None]
    worker: str | None = None


class Guests:
    """Every method holds the roster's lock.

    Args:
      roster: of those that sample.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._waiting: dict[SampleId, _Guest] = {}

    def add(self, request: SampleRequest, receive: Callable[[Sample], None]) -> None:
        """Send a request to whichever sampler has fewest of them."""
        guest = self._waiting[request.id] = _Guest(request, receive)
        self._send(guest)

    def take(self, sample: Sample) -> None:
        """Hand an answer over; a second one is let go."""
        guest = self._waiting.pop(sample.id, None)
        if guest is not None:
            guest.receive(sample)

    def lost(self, worker: str) -> None:
        """Send again what this life of a worker had."""
        for guest in self._waiting.values():
            if guest.worker == worker:
                self._send(guest)

    def joined(self) -> None:
        """Send what found nobody."""
        for guest in self._waiting.values():
            if guest.worker is None:
                self._send(guest)

    def clear(self) -> None:
        """Nobody waits for the answers any more."""
        self._waiting.clear()

    def _send(self, guest: _Guest) -> None:
        hands = self._roster.samplers()
        guest.worker = None
        if hands:
            num = collections.Counter(g.worker for g in self._waiting.values())
            hand = min(hands, key=lambda one: num[one.worker])
            guest.worker = hand.worker
            hand.command("guest", wire.plain(guest.request))
