"""What a run leaves behind: logs, checkpoints and the summary, joined to its clock."""

import collections
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jigsaw_jax.records import (
    Event,
    Group,
    GroupId,
    Sample,
    SamplesReported,
    SampleStarted,
    UpdateStepped,
)
from jigsaw_jax.runtime.clock import Clock, process_age_s
from jigsaw_jax.runtime.evaluation import Result
from jigsaw_jax.runtime.tally import Tally
from jigsaw_jax.runtime.vault import Vault
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Train
from jigsaw_jax.store import checkpoint, summary
from jigsaw_jax.store.evaluations import EvaluationLog
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.journal import EventLog
from jigsaw_jax.store.metrics import MetricsLog
from jigsaw_jax.store.rollouts import Logged, RolloutLog, rollout_rows
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.train.metrics import OPTIONAL

# Groups at a time, in some 1 ms.
SETTLED_MAX = 64
LET_GO_MAX = 128


class Record:
    """Writes the run directory; the only part of the runtime that knows its files.

    Args:
      train: the run.
      path: of its directory.
      resume: go on from the last checkpoint.
      operative: the configuration as text.
      clock: of the run.
      spell: a completion as people read it, and the text of each of its tokens.
      fail: takes what writing in the background failed of, at once.
      holds_state: whether the learner's arrays are in this process.

    Attributes:
      journal: the event log.
      vault: checkpoints; only read where the learner is elsewhere.
      control_s: seconds that the control loop worked, waiting excluded.
    """

    def __init__(
        self,
        train: Train,
        path: pathlib.Path,
        *,
        resume: bool,
        operative: str,
        clock: Clock,
        spell: Callable[[Sample], tuple[str, list[str]]],
        fail: Callable[[BaseException], None],
        holds_state: bool = True,
    ) -> None:
        self._train = train
        self._spell = spell
        self._clock = clock
        self._dir = RunDir(path)
        self._dir.lock()
        checkpoint.prepare()
        self.vault = Vault(
            self._dir.checkpoints,
            train.store.checkpoints_kept,
            resume=resume,
            read_only=not holds_state,
            on_failed=fail,
        )
        saved = self.vault.record
        self._dir.rewind(saved.get("offsets", {}))
        self._dir.write_config(operative)
        self.journal = EventLog(
            self._dir.events,
            incarnation=self._dir.incarnation,
            at_s=clock.now_s(),
            unix_s=clock.unix_s(),
            on_failed=fail,
        )
        self._metrics = MetricsLog(
            self._dir.metrics,
            tensorboard=self._dir.tensorboard if train.store.tensorboard else None,
            on_failed=fail,
        )
        self._rollouts = RolloutLog(self._dir.rollouts, on_failed=fail)
        self._evaluations = EvaluationLog(self._dir.evaluations)
        self._tally = Tally(saved.get("tally", {}))
        # By update; and those dropped since the last one.
        self._handed: dict[int, list[Group]] = collections.defaultdict(list)
        self._dropped: list[Logged] = []
        self._ended: list[Group] = []
        self.control_s = 0.0

    @property
    def path(self) -> pathlib.Path:
        """The run directory."""
        return self._dir.path

    def commit_record(
        self, updates: int, pipeline: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What a checkpoint of now holds besides arrays.

        Args:
          updates: that it holds.
          pipeline: snapshot of now.

        Returns:
          JSON values: where the logs end and what was tallied among them.
        """
        return {
            "updates": updates,
            "seed": self._train.seed,
            "pipeline_name": self._train.pipeline_name,
            "pipeline": dict(pipeline),
            "offsets": self._dir.offsets(self.journal, self._metrics),
            "tally": self._tally.snapshot(),
        }

    # What the control loop reports.

    def admitted(self) -> None:
        """A sample was sent to the sampler; the first of a round begins it."""
        if not self._tally.is_under_way:
            self._tally.admitted(self._clock.now_s())

    def handed(self, update: int, groups: Sequence[Group], now_s: float) -> None:
        """Groups were handed to the learner for an update."""
        self._tally.handed(now_s)
        self._handed[update] += groups

    def settle(
        self,
        update: int,
        groups: Sequence[Group],
        *,
        free: Callable[[list[GroupId]], None],
    ) -> Iterator[None]:
        """Count groups of a hand-off and free them, yielding between parts of them.

        Args:
          update: theirs, whose step is not logged before this has ended.
          groups: that were handed over.
          free: forgets groups.

        Yields:
          Nothing.
        """
        for start in range(0, len(groups), SETTLED_MAX):
            if start:
                yield
            part = groups[start : start + SETTLED_MAX]
            for group in part:
                self._tally.trained(update, group)
            free([group.id for group in part])

    def dropped(self, group: Group, reason: str) -> None:
        """A scored group ended untrained."""
        self._tally.dropped(group)
        self._dropped.append(Logged(group, dropped=reason))

    def published(self, version: int, start_s: float, end_s: float) -> None:
        """A version reached the sampler."""
        self._tally.published(start_s, end_s)
        self.journal.interval("publish", "publish", start_s, end_s, version=version)

    def started(self, events: Iterable[Event]) -> None:
        """The sampler reports; the first prefill of a version ends its gap."""
        for event in events if self._tally.is_gap_open else ():
            for now_s in _starts(event):
                gap = self._tally.started(now_s)
                if gap is not None:
                    self.journal.interval("gap", "publish_to_prefill", *gap)

    def stepped(
        self,
        event: UpdateStepped,
        standing: Mapping[str, Any],
        *,
        pipeline: Pipeline,
        metrics: Mapping[str, float],
        advantages: Mapping[GroupId, Sequence[float]],
        learner_busy: collections.deque[tuple[float, float]],
        sampler_busy: collections.deque[tuple[float, float, int]],
        whole: Callable[[Group], Group],
    ) -> dict[str, Any]:
        """Log an update.

        Args:
          event: the step.
          standing: version and round in which it stepped, and other counts.
          pipeline: after the step.
          metrics: of the learner.
          advantages: that the groups trained with, of those that it knows.
          learner_busy: what it computed; taken out.
          sampler_busy: what the samplers computed; taken out.
          whole: a group with its completions, called where they are written.

        Returns:
          The update's record.
        """
        record = self._tally.stepped(
            event, learner_busy, sampler_busy, staleness=pipeline.staleness
        )
        self._tally.first_step(event.now_s, process_age_s())
        record |= {
            **standing,
            "time_s": process_age_s(),
            "frontier/groups": pipeline.frontier_groups,
            **{f"ledger/{k}": v for k, v in pipeline.ledger_counts().items()},
            # The same names in every line, whatever there is to measure.
            **dict.fromkeys(OPTIONAL),
            **metrics,
        }
        self._tally.mismatch(record.get("mismatch/logprob_abs_max"))
        self._metrics.record(event.update, record)
        groups = self._handed.pop(event.update)
        self._ended += groups
        dropped, self._dropped = self._dropped, []
        if event.update % self._train.store.rollouts_every == 0:
            logged = [
                Logged(group, advantages=advantages.get(group.id)) for group in groups
            ]
            self._write_rollouts(event.update, logged + dropped, whole)
        return {"update": event.update, **record}

    def let_go(self) -> Iterator[None]:
        """Let go the groups of the last update, yielding between parts of them.

        A completion goes with its group, so not before the update has stepped.
        """
        del self._ended[-LET_GO_MAX:]
        while self._ended:
            yield
            del self._ended[-LET_GO_MAX:]

    def _write_rollouts(
        self,
        update: int,
        logged: Sequence[Logged],
        whole: Callable[[Group], Group],
        *,
        is_trained: bool = True,
    ) -> None:
        # Text is made where it is written: decoding is most of what a log costs.
        rows = (row for one in logged for row in self._rows(update, one, whole))
        self._rollouts.write(update, rows, is_trained=is_trained)

    def _rows(
        self, update: int, logged: Logged, whole: Callable[[Group], Group]
    ) -> list[dict[str, Any]]:
        group = whole(logged.group)
        if not group.samples:
            # Trained, and gone since with the host that held them.
            return []
        texts, pieces = zip(*map(self._spell, group.samples), strict=True)
        whole_one = dataclasses.replace(logged, group=group)
        return rollout_rows(whole_one, update=update, texts=texts, pieces=pieces)

    def evaluated(self, updates: int, result: Result) -> None:
        """An evaluation begun after `updates` updates is scored."""
        self._evaluations.record(updates, result.metrics())
        self._tally.evaluated(result.accuracy)
        # Not when it began: a run that is killed under way makes it again.
        self._tally.totals.last_evaluated = updates

    def is_evaluation_due(self, updates: int) -> bool:
        """Whether `Evaluation.every` asks for one now; never twice for one count."""
        every = self._train.evaluation.every
        last = self._tally.totals.last_evaluated
        return every > 0 and updates - (last or 0) >= every

    # The end.

    @property
    def export_path(self) -> pathlib.Path:
        """Where the policy is exported to."""
        return self._dir.export

    def abandon(self) -> None:
        """Close the logs of a run that an error ended; the last commit stands."""
        # A save under way ends first: cut off by the interpreter's end, Orbax fills
        # the terminal with errors of its own. What can't be closed, on a full disk
        # say, must not hide why the run ended.
        for log in (self.vault, self._rollouts, self._metrics, self.journal):
            with contextlib.suppress(StoreError):
                log.close()
        self._dir.unlock()

    def close(
        self,
        *,
        pipeline: Pipeline,
        compilations: int,
        whole: Callable[[Group], Group],
        workers: Sequence[Mapping[str, Any]],
        is_stopped: bool,
    ) -> None:
        """Write summary.json and close every file."""
        # Where nothing could train, what was dropped is all that there is to see.
        if dropped := self._dropped:
            done = pipeline.updates_done
            self._write_rollouts(done, dropped, whole, is_trained=False)
        self.vault.close()
        self._rollouts.close()
        self._metrics.close()
        self.journal.close()
        self._dir.write_summary(
            {
                "updates": pipeline.updates_done,
                # Asked to end before its end; launch/ goes on with such a run.
                "is_stopped": is_stopped,
                "rounds": pipeline.rounds_trained,
                "versions": pipeline.version,
                "groups_committed": pipeline.groups_committed,
                "groups_dropped": pipeline.dropped_reasons(),
                **self._tally.summary(),
                "compilations_after_warmup": compilations,
                "peak_rss_mb": summary.peak_rss_mb(),
                "wall_s": process_age_s(),
                "control_s": self.control_s,
                "workers": [dict(worker) for worker in workers],
            }
        )
        self._dir.unlock()


def _starts(event: Event) -> Sequence[float]:
    """When samples started, as far as an event tells."""
    if isinstance(event, SampleStarted):
        return (event.now_s,)
    if isinstance(event, SamplesReported):
        return [now_s for _, _, now_s in event.started]
    return ()
