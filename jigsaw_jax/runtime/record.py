"""What a run leaves behind: logs, checkpoints and the summary, joined to its clock."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.records import Event, Group, Sample, SampleStarted, UpdateStepped
from jigsaw_jax.runtime.base import base_of, check_base
from jigsaw_jax.runtime.clock import Clock, process_age_s
from jigsaw_jax.runtime.evaluation import Result
from jigsaw_jax.runtime.export import export_policy
from jigsaw_jax.runtime.learner import LearnerWorker
from jigsaw_jax.runtime.sampler import SamplerWorker
from jigsaw_jax.runtime.tally import Tally
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Train
from jigsaw_jax.store import checkpoint, summary
from jigsaw_jax.store.evaluations import EvaluationLog
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.journal import EventLog
from jigsaw_jax.store.metrics import MetricsLog
from jigsaw_jax.store.rollouts import RolloutLog, rollout_rows
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.train.learner import Learner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint held besides the learner's state.

    pipeline: snapshot of the pipeline.
    published: the samplers' weights where they differ from the learner's.
    """

    pipeline: dict[str, Any]
    published: Any | None


class Record:
    """Writes the run directory; the only part of the runtime that knows its files.

    Args:
      train: the run.
      path: of its directory.
      resume: go on from the last checkpoint.
      operative: the configuration as text.
      clock: of the run.
      text: a completion as people read it.
      pieces: the text of each of its tokens.

    Attributes:
      journal: the event log.
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
        text: Callable[[Sample], str],
        pieces: Callable[[Sample], list[str]],
    ) -> None:
        self._train = train
        self._text = text
        self._pieces = pieces
        self._clock = clock
        self._dir = RunDir(path)
        self._dir.lock()
        checkpoint.prepare()
        self._checkpoints = checkpoint.Checkpoints(
            self._dir.checkpoints, train.store.checkpoints_kept
        )
        self._step = self._checkpoints.latest_step() if resume else None
        self._saved = {} if self._step is None else self._read(self._step)
        self._dir.rewind(self._saved.get("offsets", {}))
        self._dir.write_config(operative)
        self.journal = EventLog(
            self._dir.events,
            incarnation=self._dir.incarnation,
            at_s=clock.now_s(),
            unix_s=clock.unix_s(),
        )
        self._metrics = MetricsLog(
            self._dir.metrics,
            tensorboard=self._dir.tensorboard if train.store.tensorboard else None,
        )
        self._rollouts = RolloutLog(self._dir.rollouts)
        self._evaluations = EvaluationLog(self._dir.evaluations)
        self._tally = Tally(self._saved.get("tally", {}))
        self._base: str | None = None
        self.control_s = 0.0

    def _read(self, step: int) -> dict[str, Any]:
        return self._checkpoints.read_record(step)

    def restore(self, learner: Learner) -> Saved | None:
        """Load the last checkpoint into the learner, or None where there is none.

        Raises:
          StoreError: it can't be read, or belongs to adapters over other weights.
        """
        self._base = base_of(learner)
        if self._step is None:
            return None
        check_base(self._saved, self._base)
        abstract = {"learner": learner.abstract_state()}
        if self._saved["has_published"]:
            abstract["published"] = learner.abstract_params()
        arrays, record = self._checkpoints.restore(self._step, abstract)
        learner.load_state(arrays["learner"])
        return Saved(pipeline=record["pipeline"], published=arrays.get("published"))

    def save(
        self,
        updates: int,
        state: Any,
        *,
        published: Any | None,
        pipeline: Mapping[str, Any],
        logs: Mapping[str, Any],
        wait: bool,
        on_durable: Callable[[int], None],
    ) -> None:
        """Write a checkpoint; `logs` is what `log_state` gave with the snapshot."""
        arrays = {"learner": state}
        if published is not None:
            arrays["published"] = published
        record = {
            "updates": updates,
            "seed": self._train.seed,
            "pipeline_name": self._train.pipeline_name,
            "pipeline": dict(pipeline),
            "has_published": published is not None,
            "base": self._base,
            **logs,
        }
        self._checkpoints.save(
            updates, arrays, record, wait=wait, on_durable=on_durable
        )

    def log_state(self) -> dict[str, Any]:
        """Where the logs end and what was tallied, for the checkpoint's record."""
        return {
            "offsets": self._dir.offsets(self.journal, self._metrics),
            "tally": self._tally.snapshot(),
        }

    # What the control loop reports.

    def admitted(self, now_s: float) -> None:
        """A sample was sent to the sampler; the first of a round begins it."""
        self._tally.admitted(now_s)

    def handed(self, update: int, groups: Sequence[Group], now_s: float) -> None:
        """Groups were handed to the learner for an update."""
        self._tally.handed(update, groups, now_s)

    def dropped(self, group: Group) -> None:
        """A scored group ended untrained."""
        self._tally.dropped(group)

    def published(self, version: int, start_s: float, end_s: float) -> None:
        """A version reached the sampler."""
        self._tally.published(start_s, end_s)
        self.journal.interval("publish", "publish", start_s, end_s, version=version)

    def started(self, events: Iterable[Event]) -> None:
        """The sampler reports; the first prefill of a version ends its gap."""
        for event in events:
            if isinstance(event, SampleStarted):
                gap = self._tally.started(event.now_s)
                if gap is not None:
                    self.journal.interval("gap", "publish_to_prefill", *gap)

    def stepped(
        self,
        event: UpdateStepped,
        standing: Mapping[str, int],
        *,
        pipeline: Pipeline,
        learner: LearnerWorker,
        sampler: SamplerWorker,
        timeouts: int,
    ) -> tuple[dict[str, Any], list[Group]]:
        """Log an update.

        Args:
          event: the step.
          standing: version and round in which it stepped.
          pipeline: after the step.
          learner: for its metrics and times.
          sampler: for its times.
          timeouts: scores that hung, so far.

        Returns:
          The update's record and the groups that it trained.
        """
        groups, record = self._tally.stepped(
            event, learner.busy, sampler.busy, staleness=pipeline.staleness
        )
        self._tally.first_step(event.now_s, process_age_s())
        record |= {
            **standing,
            "time_s": process_age_s(),
            "reward/timeouts": timeouts,
            "frontier/groups": pipeline.frontier_groups,
            **{f"ledger/{k}": v for k, v in pipeline.ledger_counts().items()},
            **learner.metrics.pop(event.update),
        }
        self._tally.mismatch(record.get("mismatch/logprob_abs_max"))
        self._metrics.record(event.update, record)
        if event.update % self._train.store.rollouts_every == 0:
            # Text is made where it is written: decoding is most of what a log costs.
            rows = self._rollout_rows(event.update, groups)
            self._rollouts.write(event.update, rows)
        return {"update": event.update, **record}, groups

    def _rollout_rows(
        self, update: int, groups: Sequence[Group]
    ) -> Iterator[dict[str, Any]]:
        for group in groups:
            texts = [self._text(sample) for sample in group.samples]
            pieces = [self._pieces(sample) for sample in group.samples]
            yield from rollout_rows(group, update=update, texts=texts, pieces=pieces)

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

    def export(self, params: Any, tokenizer: Tokenizer) -> None:
        """Write the policy as a Hugging Face folder, where `Store.export` asks."""
        if self._train.store.export == "hf":
            export_policy(self._train, params, tokenizer, self._dir.export)

    def abandon(self) -> None:
        """Close the logs of a run that an error ended; the last commit stands."""
        # A save under way ends first: cut off by the interpreter's end, Orbax fills
        # the terminal with errors of its own. What can't be closed, on a full disk
        # say, must not hide why the run ended.
        for log in (self._checkpoints, self._rollouts, self._metrics, self.journal):
            with contextlib.suppress(StoreError):
                log.close()
        self._dir.unlock()

    def close(self, *, pipeline: Pipeline, compilations: int) -> None:
        """Write summary.json and close every file."""
        self._checkpoints.close()
        self._rollouts.close()
        self._metrics.close()
        self.journal.close()
        self._dir.write_summary(
            {
                "updates": pipeline.updates_done,
                "rounds": pipeline.rounds_trained,
                "versions": pipeline.version,
                "groups_committed": pipeline.groups_committed,
                "groups_dropped": pipeline.dropped_reasons(),
                **self._tally.summary(),
                "compilations_after_warmup": compilations,
                "peak_rss_mb": summary.peak_rss_mb(),
                "wall_s": process_age_s(),
                "control_s": self.control_s,
            }
        )
        self._dir.unlock()
