"""What the workers say, each message to whom it concerns; on the thread of who listens.

samples, event, stepped -> control loop                weights, loaded -> roster
their scores -> who asked for them            sums -> learner's step, lent -> helper
interval -> event log and busy times          guest, done -> who waits for them
"""

import collections
from collections.abc import Callable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import Event, GroupId
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster import tables
from jigsaw_jax.runtime.cluster.batch import Batch
from jigsaw_jax.runtime.cluster.guests import Guests
from jigsaw_jax.runtime.cluster.hand import Hand
from jigsaw_jax.runtime.cluster.offers import Weights
from jigsaw_jax.runtime.cluster.reports import Reports
from jigsaw_jax.runtime.cluster.roster import Roster
from jigsaw_jax.runtime.cluster.shares import Shares
from jigsaw_jax.runtime.lines.depot import read_address
from jigsaw_jax.runtime.sample_bytes import read_sample
from jigsaw_jax.store.journal import EventLog


class Ears:
    """Reads messages; every method but `__init__` holds the roster's lock.

    Args:
      roster: of workers.
      reports: takes word of samples.
      guests: requests that are not the pipeline's.
      shares: of the hand-off under way.
      journal: the event log.
      post: takes events.
      say: tells the person who waits.

    Attributes:
      metrics: of each update, until taken.
      advantages: of each group of it, until taken.
      done: what workers say they have done.
      is_published: whether the samplers have, or are being sent, the learner's weights.
      learner_busy: when the learner computed.
      sampler_busy: when the samplers did.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        reports: Reports,
        guests: Guests,
        shares: Shares,
        journal: EventLog,
        post: Callable[[Any], None],
        say: Callable[[str], None],
    ) -> None:
        self._roster = roster
        self._reports = reports
        self._guests = guests
        self._shares = shares
        self._journal = journal
        self._post = post
        self._say = say
        self.metrics: dict[int, dict[str, float]] = {}
        self.advantages: dict[int, dict[GroupId, list[float]]] = {}
        self.done: set[str] = set()
        self.is_published = True
        self.learner_busy: collections.deque[tuple[float, float]]
        self.learner_busy = collections.deque()
        self.sampler_busy: collections.deque[tuple[float, float, int]]
        self.sampler_busy = collections.deque()

    def hear(self, hand: Hand, batch: Batch) -> None:
        """Take in a batch of a worker."""
        with self._roster.lock:
            self._roster.beat(hand)
            for kind, *values in batch.items:
                reader = _HEARD.get(kind)
                if reader is None:
                    raise wire.WireError(f"message must be known, got {kind!r}")
                reader(self, hand, values, batch)

    def _hear_nothing(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del hand, values, batch

    def _hear_event(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        name, plain = values
        event = _event(_EVENTS[name], plain, hand)
        if isinstance(event, records.GroupsAccumulated):
            event = self._shares.accumulated(event)
        if event is not None:
            self._post(event)

    def _hear_samples(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        rows = tables.read(*values)
        self._reports.hear(hand, rows, self._roster.now_s())

    def _hear_sums(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del hand
        update, num_trained, names, first, num = values
        step = self._shares.take_step()
        if step is None or step.update != update:
            self._reports.register.ignore()
            return
        refs = batch.named()[first : first + num]
        self._roster.learner.command("add", num_trained, names, refs=refs)
        self._roster.learner.command("step", wire.plain(step))

    def _hear_lent(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del hand
        update, names, first, num = values
        helper = self._roster.helper()
        if helper is not None:
            refs = batch.named()[first : first + num]
            helper.command("borrow", names, refs=refs)
        to = None if helper is None else (helper.worker, wire.read(int, update))
        self._shares.arrived(to)

    def _hear_stepped(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        event = _event(_STEPPED, values[0], hand)
        self.metrics[event.update] = wire.read(dict[str, float], values[1])
        self.advantages[event.update] = {
            GroupId(uid, draw): list(wire.read(tuple[float, ...], row))
            for uid, draw, row in values[2]
        }
        self.is_published = False
        self._roster.progressed()
        if self._shares.goes_on(event.update) and self._roster.helper() is not None:
            self._shares.lending = event.update + 1
            self._roster.learner.command("lend", self._shares.lending)
        self._post(event)

    def _hear_guest(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del hand
        offset, size = values
        data = memoryview(batch.body)
        self._guests.take(read_sample(data[offset : offset + size]))
        self._roster.changed.notify_all()

    def _hear_interval(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        form, track, start_s, end_s, *told = values
        name, *keys = batch.forms[form]
        if len(keys) != len(told):
            raise wire.WireError(f"interval must have {keys}, got {told}")
        start_s, end_s = start_s + hand.offset_s, end_s + hand.offset_s
        row = track, start_s, end_s, *told
        self._journal.intervals(name, tuple(keys), (row,))
        if track == "sampler":
            self.sampler_busy.append((start_s, end_s, told[keys.index("tokens")]))
        elif track == "learner":
            self.learner_busy.append((start_s, end_s))

    def _hear_weights(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        number, run, start_s, depot = wire.read_list(values, 4)
        address = read_address(depot)
        self._reports.stock.open(address)
        version = hand.version = wire.read(int, number)
        self._roster.take_weights(
            Weights(
                version=version,
                run=wire.read(str, run),
                start_s=wire.read(float, start_s) + hand.offset_s,
                learner=hand.called,
                depot=address,
            )
        )

    def _hear_unloaded(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        version, reason = wire.read_list(values, 2)
        self._roster.take_unloaded(
            hand, wire.read(int, version), wire.read(str, reason)
        )

    def _hear_loaded(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        number, end_s = wire.read_list(values, 2)
        version, end_s = wire.read(int, number), wire.read(float, end_s)
        self._roster.take_loaded(hand, version, end_s + hand.offset_s)

    def _hear_say(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del hand, batch
        self._say(wire.read(str, values[0]))

    def _hear_done(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del hand, batch
        self.done.add(values[0])
        self._roster.changed.notify_all()

    def _hear_failed(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del batch
        hand.is_failed = True
        thread, kind, text, trace = (wire.read(str, value) for value in values)
        self._roster.failed(f"{hand.name}, thread {thread}", kind, text, trace)

    def _hear_leaving(self, hand: Hand, values: list[Any], batch: Batch) -> None:
        del values, batch
        self._roster.leaving(hand)


def _event(read: Callable[[Any], Any], plain: Any, hand: Hand) -> Any:
    """An event in this process's time, which is the first of its fields."""
    if hand.offset_s:
        first, *rest = wire.read_list(plain) or [None]
        plain = [wire.read(float, first) + hand.offset_s, *rest]
    return read(plain)


Reader = Callable[[Ears, Hand, list[Any], Batch], None]
_HEARD: dict[str, Reader] = {
    "hello": Ears._hear_nothing,
    "event": Ears._hear_event,
    "stepped": Ears._hear_stepped,
    "samples": Ears._hear_samples,
    "guest": Ears._hear_guest,
    "interval": Ears._hear_interval,
    "weights": Ears._hear_weights,
    "unloaded": Ears._hear_unloaded,
    "loaded": Ears._hear_loaded,
    "sums": Ears._hear_sums,
    "lent": Ears._hear_lent,
    "say": Ears._hear_say,
    "done": Ears._hear_done,
    "failed": Ears._hear_failed,
    "leaving": Ears._hear_leaving,
}
_STEPPED = wire.reader(records.UpdateStepped)
_EVENTS: dict[str, Callable[[Any], Event]] = {
    cls.__name__: wire.reader(cls)
    for cls in (
        records.GroupsAccumulated,
        records.StepTimed,
        records.CheckpointDurable,
    )
}
