"""What samplers say of their samples: kept, logged, and told to the pipeline at once.

rows of a message -> Payloads, event log, one SamplesReported
"""

from collections.abc import Callable, Sequence
from typing import Any

from jigsaw_jax.records import (
    FinishReason,
    SampleFailed,
    SampleId,
    SamplesReported,
    Score,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster.hand import Hand
from jigsaw_jax.runtime.cluster.places import Remote, Stock
from jigsaw_jax.runtime.cluster.register import Register
from jigsaw_jax.runtime.cluster.tables import Finished, Scored, Started, Tables
from jigsaw_jax.runtime.intervals import SAMPLE_FIELDS
from jigsaw_jax.runtime.lines.depot import Key
from jigsaw_jax.store.journal import EventLog

_LENGTH = FinishReason.LENGTH.value

_key, _remote = wire.row_maker(Key), wire.row_maker(Remote)

_Score = tuple[SampleId, int, Score]


class Reports:
    """Takes in rows, for one thread at a time.

    Args:
      stock: takes word of completions.
      post: takes events.
      journal: the event log.
      asks_scores: whether scores go to who asks for them, or to the pipeline.

    Attributes:
      register: of attempts.
      stock: of completions.
    """

    def __init__(
        self,
        stock: Stock,
        post: Callable[[Any], None],
        *,
        journal: EventLog,
        asks_scores: bool,
    ) -> None:
        self._journal = journal
        self._post = post
        self._asks_scores = asks_scores
        self.register = Register()
        self.stock = stock

    def hear(self, hand: Hand, rows: Tables, now_s: float) -> None:
        """Take in what a worker says, as `tables.read` has it."""
        # In the order in which each sample goes through them.
        started = self._started(hand, rows.started)
        finished, early = self._finished(hand, rows.finished)
        scored = self._scored(hand, rows.scored, early)
        if started or finished or scored:
            event = SamplesReported(
                now_s=now_s, started=started, finished=finished, scored=scored
            )
            self._post(event)

    def fail(self, sample_id: SampleId, attempt: int, now_s: float) -> None:
        """An attempt has gone with its worker."""
        self.register.drop(sample_id)
        failed = SampleFailed(
            now_s=now_s, id=sample_id, attempt=attempt, reason="its worker is lost"
        )
        self._post(failed)

    def _started(
        self, hand: Hand, rows: Sequence[Started]
    ) -> list[tuple[SampleId, int, float]]:
        found = []
        for row in rows:
            known = self.register.from_worker(row.number, hand.worker)
            if known is not None:
                found.append((known.id, known.attempt, row.now_s + hand.offset_s))
        return found

    def _finished(
        self, hand: Hand, rows: Sequence[Finished]
    ) -> tuple[list[tuple[SampleId, int, int, int]], list[_Score]]:
        """What has ended, and its scores where those were here before."""
        found, kept, spans, early = [], [], [], []
        worker, name, offset_s = hand.worker, hand.name, hand.offset_s
        hold, from_worker = self.stock.hold, self.register.from_worker
        for row in rows:
            number, place, lane, start_s, end_s, num_tokens, version, finish = row
            held = hold(_key((worker, place)))
            known = from_worker(number, worker)
            if known is None:
                continue
            if known.is_finished:
                self.register.ignore()
                continue
            known.is_finished, known.is_paused = True, False
            sample, attempt = known.id, known.attempt
            found.append((sample, attempt, num_tokens, version))
            if known.score is not None and not self._asks_scores:
                early.append((sample, attempt, known.score))
            is_cut = finish == _LENGTH
            kept.append(_remote((sample, attempt, num_tokens, is_cut, held)))
            span = f"slot/{name}/{lane:02d}", start_s + offset_s, end_s + offset_s
            spans.append((*span, name, *sample, num_tokens, version, finish))
        if found:
            self.stock.payloads.add_samples(kept)
            self._journal.intervals("sample", SAMPLE_FIELDS, spans)
        return found, early

    def _scored(
        self, hand: Hand, rows: Sequence[Scored], found: list[_Score]
    ) -> list[tuple[SampleId, int, float | None]]:
        for number, value, parts, failure in rows:
            known = self.register.from_worker(number, hand.worker)
            if known is None:
                continue
            if known.score is not None:
                self.register.ignore()
                continue
            known.score = Score(value=value, parts=parts, failure=failure)
            if self._asks_scores:
                if known.receive is not None:
                    known.receive(known.score)
            elif known.is_finished:
                # A reward may be faster than the completion on its way to the depot.
                found.append((known.id, known.attempt, known.score))
        self.stock.payloads.add_scores(found)
        return [(sample, attempt, score.value) for sample, attempt, score in found]
