"""A sampler's completions on their way to the learner, on a thread of their own.

    sampler thread --carry--> queue --> depot of the learner --> `then`: it may be told

The controller hears of a completion when the system has taken all its bytes, so that it
arrives also where this process is killed behind that. Where the depot is gone, what is
here waits for the next one, or for the end of its epoch.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from jigsaw_jax.records import Sample
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.lines.door import Address, dial
from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from jigsaw_jax.runtime.sample_bytes import sample_bytes
from jigsaw_jax.runtime.threads import ThreadFailed

# For one try; a thread that waits for a depot looks as often whether there is another.
DIAL_S = 1.0
# What travels in one frame, unless one completion alone is longer.
FRAME_BYTES = 4 << 20


class _Parcel(NamedTuple):
    number: int
    sample: Sample
    is_wanted: Callable[[], bool]
    then: Callable[[int], Any]


class Porter:
    """Carries completions; from any thread.

    Args:
      source: the life of the worker, for the keys.
      token: of the run.
      fail: takes what the thread died of.
    """

    def __init__(
        self, source: str, token: str, fail: Callable[[ThreadFailed], None]
    ) -> None:
        self._source = source
        self._token = token
        self._fail = fail
        self._parcels: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        self._number = 0
        self._address: Address | None = None
        self._called: Address | None = None
        self._line: Line | None = None
        threading.Thread(target=self._run, name="porter", daemon=True).start()

    def to(self, address: Address) -> None:
        """Carry to this depot from now on."""
        self._address = address

    def carry(
        self, sample: Sample, is_wanted: Callable[[], bool], then: Callable[[int], Any]
    ) -> None:
        """Queue a completion; for one thread at a time.

        Args:
          sample: it.
          is_wanted: whether anybody still waits for it; asked on the porter's thread.
          then: told its number when it is on its way, on the porter's thread.
        """
        self._number += 1
        self._parcels.put(_Parcel(self._number, sample, is_wanted, then))

    def close(self) -> None:
        """Carry no more."""
        self._parcels.put(None)

    # On the porter's thread.

    def _run(self) -> None:
        try:
            while parcels := self._gathered():
                self._deliver(parcels)
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of this thread: the run must hear of it.
            self._fail(ThreadFailed("porter", error))
        finally:
            self._hang_up()

    def _gathered(self) -> list[tuple[_Parcel, bytes]]:
        """What is there, with its bytes; waits for the first, unless it is closed."""
        found, size = [], 0
        while not found or (size < FRAME_BYTES and not self._parcels.empty()):
            parcel = self._parcels.get()
            if parcel is None:
                self._parcels.put(None)
                break
            found.append((parcel, sample_bytes(parcel.sample)))
            size += len(found[-1][1])
        return found

    def _deliver(self, parcels: list[tuple[_Parcel, bytes]]) -> None:
        while True:
            parcels = [one for one in parcels if one[0].is_wanted()]
            if not parcels:
                return
            try:
                line = self._reach()
                numbers = [parcel.number for parcel, _ in parcels]
                sizes = [len(data) for _, data in parcels]
                body = b"".join(data for _, data in parcels)
                line.send(wire.to_bytes(["put", numbers, sizes]), body)
            except LineClosedError:
                self._hang_up()
                # Another depot may be on its way, or another epoch.
                threading.Event().wait(DIAL_S / 10)
                continue
            for parcel, _ in parcels:
                parcel.then(parcel.number)
            return

    def _reach(self) -> Line:
        address = self._address
        if self._line is None or address != self._called:
            self._hang_up()
            if address is None:
                raise LineClosedError("no depot is known")
            self._line = dial(address, self._token, self._source, within_s=DIAL_S)
            self._called = address
        return self._line

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
