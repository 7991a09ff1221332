"""Counts and clocks of a run between updates, kept across resumes."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jigsaw_jax.records import Group, UpdateStepped
from jigsaw_jax.runtime import measure
from jigsaw_jax.runtime.measure import Completions, Interval, Window

Busy = tuple[float, float, int]


@dataclasses.dataclass
class Totals:
    """What a checkpoint keeps, so that a resumed run's summary covers all of it.

    Attributes:
      eval_accuracy_first: before the first update.
      eval_accuracy_last: of the newest evaluation.
      last_evaluated: updates done when the newest evaluation that has ended was begun.
      sampled_tokens: since the end of the first update.
      sampler_s: seconds in which the sampler computed, since then.
      loop_s: seconds of the loop, since then.
      learner_s: seconds in which the learner computed.
      wait_s: seconds in which it did not, rounds under way.
      first_step_s: from the first admission to the end of the first update.
      process_start_to_first_step_s: from the first process's start to that end.
      logprob_abs_diff_max: between sampler and learner, of equal versions.
      round_s: rollout start to last train end, of each round.
      publish_to_prefill_s: from each version's arrival to its first prefill.
    """

    eval_accuracy_first: float | None = None
    eval_accuracy_last: float | None = None
    last_evaluated: int | None = None
    sampled_tokens: int = 0
    sampler_s: float = 0.0
    loop_s: float = 0.0
    learner_s: float = 0.0
    wait_s: float = 0.0
    first_step_s: float | None = None
    process_start_to_first_step_s: float | None = None
    logprob_abs_diff_max: float = 0.0
    round_s: list[float] = dataclasses.field(default_factory=list)
    publish_to_prefill_s: list[float] = dataclasses.field(default_factory=list)


class Tally:
    """Joins what the control loop reports to the update that it belongs to.

    A window lasts from the end of one update to the end of the next; the first one
    begins with the run's first admission.
    """

    def __init__(self, saved: Mapping[str, Any]) -> None:
        self.totals = Totals(**saved)
        # By update; and those dropped since the last one, which are in the next.
        self._trained: dict[int, Completions] = collections.defaultdict(Completions)
        self._dropped = Completions()
        self._window_start_s: float | None = None
        self._round_start_s: float | None = None
        self._round_end_s: float | None = None
        self._dispatch_s: float | None = None
        self._publish_s = self._prefill_s = 0.0
        self._published_s: float | None = None
        self._sampler: list[Busy] = []
        self._learner: list[Interval] = []

    def snapshot(self) -> dict[str, Any]:
        """JSON values from which `Tally` goes on."""
        return dataclasses.asdict(self.totals)

    @property
    def is_under_way(self) -> bool:
        """Whether a sample of the round was sent to the sampler."""
        return self._round_start_s is not None

    @property
    def is_gap_open(self) -> bool:
        """Whether a version was published and nothing has started since."""
        return self._published_s is not None

    def admitted(self, now_s: float) -> None:
        """A sample was sent to the sampler."""
        if self._round_start_s is None:
            self._round_start_s = now_s
            self._dispatch_s = None
        if self._window_start_s is None:
            self._window_start_s = now_s

    def handed(self, now_s: float) -> None:
        """Groups went to the learner."""
        if self._dispatch_s is None and self._round_start_s is not None:
            self._dispatch_s = now_s - self._round_start_s

    def trained(self, update: int, group: Group) -> None:
        """A group is in an update that has not stepped."""
        self._trained[update].add(group)

    def dropped(self, group: Group) -> None:
        """A scored group ended untrained."""
        self._dropped.add(group)

    def published(self, start_s: float, end_s: float) -> None:
        """A version reached the sampler, so a round is over."""
        self._publish_s = end_s - start_s
        self._published_s = end_s
        if self._round_start_s is not None and self._round_end_s is not None:
            self.totals.round_s.append(self._round_end_s - self._round_start_s)
        self._round_start_s = self._round_end_s = None

    def started(self, now_s: float) -> tuple[float, float] | None:
        """The sampler took a request up: (publish, prefill) of a version's first."""
        published_s, self._published_s = self._published_s, None
        if published_s is None:
            return None
        gap = published_s, max(now_s, published_s)
        self._prefill_s = gap[1] - gap[0]
        self.totals.publish_to_prefill_s.append(self._prefill_s)
        return gap

    def evaluated(self, accuracy: float) -> None:
        """An evaluation is scored."""
        if self.totals.eval_accuracy_first is None:
            self.totals.eval_accuracy_first = accuracy
        self.totals.eval_accuracy_last = accuracy

    def stepped(
        self,
        event: UpdateStepped,
        learner_busy: collections.deque[Interval],
        sampler_busy: collections.deque[Busy],
        *,
        staleness: tuple[float, int],
    ) -> dict[str, Any]:
        """Close the window of an update.

        The intervals are taken out of the two queues.

        Args:
          event: the step.
          learner_busy: what the learner computed.
          sampler_busy: what the sampler computed.
          staleness: mean and maximum over the update's groups, in versions.

        Returns:
          Metrics by name.
        """
        completions = self._trained.pop(event.update)
        trained_tokens = completions.num_tokens
        completions.merge(self._dropped)
        self._dropped = Completions()
        window = self._close_window(event.now_s, learner_busy, sampler_busy)
        self._round_end_s = event.now_s
        return (
            completions.metrics()
            | measure.time_metrics(window, trained_tokens=trained_tokens)
            | {"staleness/mean": staleness[0], "staleness/max": staleness[1]}
            | {
                "tokens/trained": trained_tokens,
                "time/rollout_to_train_end_s": event.now_s
                - (self._round_start_s or window.start_s),
                "time/first_dispatch_s": self._dispatch_s or 0.0,
                "time/publish_s": self._publish_s,
                "time/publish_to_prefill_s": self._prefill_s,
            }
        )

    def first_step(self, end_s: float, age_s: float) -> None:
        """Note the end of the run's first update, once."""
        if self.totals.first_step_s is None and self._round_start_s is not None:
            self.totals.first_step_s = end_s - self._round_start_s
            self.totals.process_start_to_first_step_s = age_s

    def mismatch(self, logprob_abs_max: float | None) -> None:
        """Keep the largest difference between sampler and learner."""
        if logprob_abs_max is not None:
            largest = max(self.totals.logprob_abs_diff_max, logprob_abs_max)
            self.totals.logprob_abs_diff_max = largest

    def _close_window(
        self,
        end_s: float,
        learner_busy: collections.deque[Interval],
        sampler_busy: collections.deque[Busy],
    ) -> Window:
        self._sampler += _drain(sampler_busy)
        self._learner += _drain(learner_busy)
        start_s = end_s if self._window_start_s is None else self._window_start_s
        sampler = [busy[:2] for busy in self._sampler]
        window = Window(
            start_s=start_s,
            end_s=end_s,
            learner_s=measure.busy_s(self._learner, start_s, end_s),
            sampler_s=measure.busy_s(sampler, start_s, end_s),
            sampled_tokens=sum(n for _, end, n in self._sampler if end <= end_s),
        )
        self._add(window)
        # A device call that was under way when the update ended belongs to both.
        self._sampler = [busy for busy in self._sampler if busy[1] > end_s]
        self._learner = [busy for busy in self._learner if busy[1] > end_s]
        self._window_start_s = end_s
        return window

    def _add(self, window: Window) -> None:
        totals = self.totals
        totals.learner_s += window.learner_s
        totals.wait_s += window.length_s - window.learner_s
        if totals.first_step_s is not None:
            totals.sampled_tokens += window.sampled_tokens
            totals.sampler_s += window.sampler_s
            totals.loop_s += window.length_s

    def summary(self) -> dict[str, Any]:
        """The tallied part of summary.json."""
        totals = self.totals
        work_s = totals.learner_s + totals.wait_s
        return {
            "eval_accuracy_first": totals.eval_accuracy_first,
            "eval_accuracy_last": totals.eval_accuracy_last,
            "sampled_tokens_per_s": _rate(totals.sampled_tokens, totals.sampler_s),
            "loop_tokens_per_s": _rate(totals.sampled_tokens, totals.loop_s),
            "trainer_wait_ratio": totals.wait_s / work_s if work_s else None,
            "rollout_to_train_end_s_median": _median(totals.round_s),
            "publish_to_prefill_s_median": _median(totals.publish_to_prefill_s),
            "first_step_s": totals.first_step_s,
            "process_start_to_first_step_s": totals.process_start_to_first_step_s,
            "logprob_abs_diff_max": totals.logprob_abs_diff_max,
        }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds else None


def _drain(queue: collections.deque[Any]) -> list[Any]:
    """Take what is there now; the other end may go on appending."""
    return [queue.popleft() for _ in range(len(queue))]
