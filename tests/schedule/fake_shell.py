"""A shell without devices: tasks end in any order, and every effect is checked."""

import copy
import dataclasses
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Pipeline as Settings


def share(*words) -> float:
    """A number in [0, 1) that depends on the words alone."""
    text = "/".join(map(str, words))
    return int(hashlib.blake2b(text.encode(), digest_size=4).hexdigest(), 16) / 2**32


# Requests are answered, and publishes arrive, in their own order.
IN_ORDER = ("offer", "publish")


def any_order(seed: int) -> Callable[[list[str]], int]:
    """A `choose` that takes any task."""
    rng = random.Random(seed)
    return lambda kinds: rng.randrange(len(kinds))


def last(*slow: str) -> Callable[[list[str]], int]:
    """A `choose` that takes tasks as they came, but those of these kinds last."""

    def choose(kinds):
        quick = [i for i, kind in enumerate(kinds) if kind not in slow]
        return quick[0] if quick else 0

    return choose


IN_TURN = last()


@dataclasses.dataclass
class History:
    """What survives in the weights and the record: rolled back with a checkpoint.

    trained: the groups of each update, in order.
    ages: the age of the oldest token of each group of each update.
    dropped: groups and reasons.
    """

    trained: list[tuple[GroupId, ...]] = dataclasses.field(default_factory=list)
    ages: list[list[int]] = dataclasses.field(default_factory=list)
    dropped: dict[GroupId, str] = dataclasses.field(default_factory=dict)

    def ended(self):
        return {g for groups in self.trained for g in groups} | set(self.dropped)


@dataclasses.dataclass
class Run:
    """What a test chooses of a run.

    settings: of the pipeline.
    updates: of the run.
    prompts: in the data; None never ends.
    flat: share of groups whose rewards are all equal.
    failing: share of rewards that fail.
    workers: name and slots.
    checkpoint_every: updates.
    reports: whether word of a sample comes as that of many does.
    """

    settings: Settings
    updates: int = 6
    prompts: int | None = None
    flat: float = 0.0
    failing: float = 0.0
    workers: tuple[tuple[str, int], ...] = (("a", 3), ("b", 2))
    checkpoint_every: int = 2
    reports: bool = False


def reported(*events):
    """Events of samples as one; any other as it is."""
    started = [e for e in events if isinstance(e, records.SampleStarted)]
    ended = [e for e in events if isinstance(e, records.SampleFinished)]
    scored = [e for e in events if isinstance(e, records.SampleScored)]
    if len(events) > len(started) + len(ended) + len(scored):
        (event,) = events
        return event
    return records.SamplesReported(
        now_s=max(e.now_s for e in events),
        started=[(e.id, e.attempt, e.now_s) for e in started],
        finished=[(e.id, e.attempt, e.num_tokens, e.version_min) for e in ended],
        scored=[(e.id, e.attempt, e.value) for e in scored],
    )


def told_one_by_one(effects):
    """Effects, and in the place of admissions that come as one each of them."""
    found = []
    for effect in effects:
        is_of_many = isinstance(effect, records.AdmitSamples)
        found += effect.samples if is_of_many else [effect]
    return found


class FakeShell:
    """Carries out effects as tasks that `deliver` ends, in the caller's order."""

    def __init__(self, run: Run):
        self.run = run
        self.history = History()
        self.checkpoints = []
        self.trace = []
        self.is_stopped = False
        self._begin(None)

    def _begin(self, snapshot):
        run = self.run
        self.pipeline = Pipeline(
            run.settings,
            updates=run.updates,
            checkpoint_every=run.checkpoint_every,
        )
        self.tasks = []
        self.past = []
        self.running = {}
        self.effects = {}
        self.paused = {}
        self.tokens_version = {}
        self.finished_ids = set()
        self.scoring = {}
        self.scored_ids = set()
        self.admitted = set()
        self.started_groups = {}
        self.finish: Any = None
        self.gradients = []
        self.is_learner_busy = False
        self.slots = {}
        if snapshot is not None:
            self.pipeline.restore(snapshot)
        outstanding = self.pipeline.outstanding()
        self.uids = {uid for uid, _ in outstanding}
        for uid, position in outstanding:
            assert uid == f"p{position}"
        self.served = self.pipeline.version
        self._carry(self.pipeline.start())
        for name, slots in run.workers:
            self.join(name, slots)

    # What a test does.

    def deliver(self, index: int) -> None:
        """End one task, the index taken modulo their number."""
        index %= len(self.tasks)
        kind = self.tasks[index][0]
        if kind in IN_ORDER:
            index = [k for k, _ in self.tasks].index(kind)
        _, task = self.tasks.pop(index)
        task()

    def fail(self, index: int) -> None:
        """Lose a sample that runs or waits for its score."""
        places = {sample: attempt for sample, (attempt, _) in self.running.items()}
        losable = sorted((places | self.paused | self.scoring).items())
        if losable:
            sample, attempt = losable[index % len(losable)]
            self.running.pop(sample, None)
            self.paused.pop(sample, None)
            self.scoring.pop(sample, None)
            self.finished_ids.discard(sample)
            self.apply(
                records.SampleFailed(
                    now_s=0.0, id=sample, attempt=attempt, reason="test"
                )
            )

    def repeat(self, index: int) -> None:
        """Deliver something again: nothing may change."""
        if self.past:
            self.ignores(self.past[index % len(self.past)])

    def join(self, name: str, slots: int) -> None:
        self._vacate_worker(name)
        self.slots[name] = slots
        self.apply(records.WorkerJoined(now_s=0.0, worker=name, slots=slots))

    def lose(self, name: str) -> None:
        self._vacate_worker(name)
        self.slots.pop(name, None)
        self.apply(records.WorkerLost(now_s=0.0, worker=name))

    def stop(self) -> None:
        self.is_stopped = True
        self.apply(records.StopRequested(now_s=0.0))

    def crash(self, *, to_checkpoint: bool) -> None:
        """Die and go on from a snapshot of now or from the last durable checkpoint."""
        self.is_stopped = False
        if to_checkpoint:
            if not self.checkpoints:
                self.history = History()
                self._begin(None)
                return
            text, history = self.checkpoints[-1]
            self.history = copy.deepcopy(history)
        else:
            text = json.dumps(self.pipeline.snapshot())
        self._begin(json.loads(text))

    def run_to_end(self, choose: Callable[[list[str]], int], steps_max=20_000) -> None:
        """End tasks until the run finishes; a run that cannot go on fails the test.

        Args:
          choose: from the kinds of the tasks to an index.
          steps_max: tasks.
        """
        for _ in range(steps_max):
            if self.finish is not None:
                self.check_end()
                return
            assert self.tasks, f"stuck: {self.pipeline.snapshot()}"
            self.deliver(choose(self.kinds()))
        raise AssertionError("the run must end")

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.tasks]

    def run_while(self, is_so, choose=IN_TURN) -> None:
        """End tasks as long as `is_so()`."""
        while is_so():
            self.deliver(choose(self.kinds()))

    def check_end(self) -> None:
        """Whatever was opened has ended, once, and the counts say so."""
        pipeline, run = self.pipeline, self.run
        trained = [g for groups in self.history.trained for g in groups]
        assert len(set(trained)) == len(trained)
        assert not set(trained) & set(self.history.dropped)
        ended = pipeline.ended()
        size = run.settings.samples_per_group
        assert sum(pipeline.ledger_counts().values()) >= len(ended) * size
        assert {g for g, how in ended.items() if how == "committed"} == set(trained)
        assert {
            g: how for g, how in ended.items() if how != "committed"
        } == self.history.dropped
        assert pipeline.groups_committed == len(trained)
        assert pipeline.dropped_reasons() == Counter(self.history.dropped.values())
        assert len(self.history.trained) == pipeline.updates_done
        # One end a draw: of each uid, every draw but the last was dropped.
        draws = Counter(g.uid for g in ended)
        assert all(GroupId(u, n - 1) in ended for u, n in draws.items())
        if self.finish.error is None and not self.is_stopped:
            counts = pipeline.ledger_counts()
            is_ended = counts["committed"] + counts["dropped"]
            assert sum(counts.values()) == is_ended

    # Events.

    def apply(self, event) -> None:
        is_over = self.finish is not None
        self.trace.append(event)
        effects = self.pipeline.apply(reported(event) if self.run.reports else event)
        assert not (is_over and effects)
        self._carry(effects)
        for worker, slots in self.slots.items():
            used = sum(w == worker for _, w in self.running.values())
            assert used <= slots

    def ignores(self, event) -> None:
        """A late or doubled report changes nothing."""
        before = self.pipeline.snapshot()
        assert self.pipeline.apply(event) == []
        assert self.pipeline.snapshot() == before

    def report(self, event) -> None:
        """Apply an event that may come again later."""
        self.past.append(event)
        self.apply(event)

    # Effects.

    def _carry(self, effects) -> None:
        effects = told_one_by_one(effects)
        for position, effect in enumerate(effects):
            self.trace.append(effect)
            assert self.finish is None
            getattr(self, f"_on_{type(effect).__name__}")(effect)
            is_request = isinstance(effect, records.RequestPrompts)
            assert not is_request or position == len(effects) - 1

    def _on_RequestPrompts(self, effect):
        assert effect.num > 0
        assert effect.num <= 2 * self.run.settings.groups_per_round + (
            (self.run.settings.staleness_max + 1) * self.run.settings.groups_per_update
            + self.run.settings.refill_groups_max
        )

        def offer():
            first = self.pipeline.next_prompt_index
            last = first + effect.num
            if self.run.prompts is not None:
                last = max(min(last, self.run.prompts), first)
            uids = tuple(f"p{i}" for i in range(first, last))
            assert not set(uids) & self.uids
            self.uids |= set(uids)
            is_end = len(uids) < effect.num
            self.apply(records.PromptsOffered(now_s=0.0, uids=uids, is_end=is_end))

        self.tasks.append(("offer", offer))

    def _on_AdmitSample(self, effect):
        settings = self.run.settings
        key = effect.id, effect.attempt
        group = GroupId(effect.id.uid, effect.id.draw)
        assert effect.id.uid in self.uids
        assert effect.is_resumed == (self.paused.pop(effect.id, None) is not None)
        assert effect.is_resumed == (key in self.admitted)
        assert effect.id not in self.running
        assert group not in self.history.ended()
        assert effect.version == self.served == self.pipeline.version
        assert effect.worker in self.slots
        self.admitted.add(key)
        order = int(effect.id.uid[1:])
        if settings.admission == "frontier_strict":
            serving = {
                o
                for o, g in self.started_groups.items()
                if sum(s[:2] == g for s in self.finished_ids)
                < settings.samples_per_group
            }
            assert sum(o < order for o in serving) < settings.frontier_groups
        self.started_groups[order] = group
        self.running[effect.id] = (effect.attempt, effect.worker)
        self.effects[effect.id] = effect
        self.tokens_version.setdefault(key, self.served)
        self.tasks.append(("sample", lambda: self._end_sample(effect)))

    def _end_sample(self, effect):
        if self.effects[effect.id] is not effect:
            # It was paused in time and went on.
            return
        if effect.id in self.paused:
            if share("late", *effect.id, effect.attempt) < 0.3:
                del self.paused[effect.id]
                self.finished_ids.add(effect.id)
                self.report(self._finished(effect))
            return
        if self.running.get(effect.id) != (effect.attempt, effect.worker):
            # Its slot is gone; the late report changes nothing.
            self.ignores(self._finished(effect))
            return
        started = records.SampleStarted(now_s=0.0, id=effect.id, attempt=effect.attempt)
        if share("starts", *effect.id) < 0.7:
            self.report(started)
        self._vacate(effect.id)
        self.finished_ids.add(effect.id)
        self.report(self._finished(effect))

    def _finished(self, effect):
        return records.SampleFinished(
            now_s=0.0,
            id=effect.id,
            attempt=effect.attempt,
            num_tokens=1 + int(9 * share("length", *effect.id)),
            version_min=self.tokens_version[effect.id, effect.attempt],
        )

    def _on_PauseSample(self, effect):
        assert self.running.pop(effect.id) == (effect.attempt, effect.worker)
        self.paused[effect.id] = effect.attempt

    def _on_CancelSample(self, effect):
        if effect.id in self.paused:
            assert self.paused.pop(effect.id) == effect.attempt
            return
        assert self.running[effect.id] == (effect.attempt, effect.worker)
        self._vacate(effect.id)

    def value(self, sample: SampleId) -> float | None:
        uid, draw, index = sample
        if share("failing", *sample) < self.run.failing:
            return None
        if share("flat", uid, draw) < self.run.flat:
            return 0.5
        return float(index % 2)

    def _on_ScoreSample(self, effect):
        event = records.SampleScored(
            now_s=0.0,
            id=effect.id,
            attempt=effect.attempt,
            value=self.value(effect.id),
        )

        def score():
            if self.scoring.get(effect.id) != effect.attempt:
                self.ignores(event)
                return
            del self.scoring[effect.id]
            self.scored_ids.add(effect.id)
            self.report(event)

        self.scoring[effect.id] = effect.attempt
        self.tasks.append(("score", score))

    def _on_AccumulateGroups(self, effect):
        settings = self.run.settings
        assert not self.is_learner_busy
        assert effect.update == len(self.history.trained)
        assert effect.orders == tuple(int(g.uid[1:]) for g in effect.groups)
        for group in effect.groups:
            assert group not in self.history.ended()
            assert group not in self.gradients
            samples = self._samples(group)
            assert self.scored_ids >= set(samples)
            values = {self.value(s) for s in samples} - {None}
            assert len(values) >= (2 if settings.filter == "drop" else 1)
            versions = self._versions(group)
            if settings.mode != "async":
                assert set(versions) == {self.pipeline.version}
            assert effect.update - min(versions) <= settings.staleness_max or (
                settings.mode != "async"
            )
        if settings.reduction == "ordered":
            assert len(effect.groups) == 1
        if settings.token_budget and len(effect.groups) > 1:
            tokens = [
                1 + int(9 * share("length", *s))
                for g in effect.groups
                for s in self._samples(g)
            ]
            assert sum(tokens) <= settings.token_budget
        self.gradients += effect.groups
        assert len(self.gradients) <= settings.groups_per_update
        self.is_learner_busy = True

        def accumulate():
            self.is_learner_busy = False
            self.report(
                records.GroupsAccumulated(
                    now_s=0.0, groups=effect.groups, update=effect.update
                )
            )

        self.tasks.append(("accumulate", accumulate))

    def _on_StepUpdate(self, effect):
        assert not self.is_learner_busy
        assert effect.groups == tuple(self.gradients) != ()
        assert effect.update == len(self.history.trained)
        self.is_learner_busy = True

        def step():
            self.is_learner_busy = False
            ages = [effect.update - min(self._versions(g)) for g in effect.groups]
            self.history.trained.append(effect.groups)
            self.history.ages.append(ages)
            self.gradients = []
            self.report(records.UpdateStepped(now_s=0.0, update=effect.update))
            if self.run.settings.mode == "async":
                assert self.pipeline.staleness == (sum(ages) / len(ages), max(ages))
            else:
                assert self.pipeline.staleness == (0, 0)

        self.tasks.append(("step", step))

    def _on_PublishVersion(self, effect):
        if self.run.settings.mode == "async":
            assert effect.version == len(self.history.trained)
        else:
            assert not self.running
            assert effect.version == self.served + 1
        if self.history.trained:
            assert not self.gradients

        def publish():
            self.served = max(self.served, effect.version)
            self.report(records.VersionPublished(now_s=0.0, version=effect.version))

        self.tasks.append(("publish", publish))

    def _on_WriteCheckpoint(self, effect):
        assert effect.updates == self.pipeline.updates_done == len(self.history.trained)
        text = json.dumps(self.pipeline.snapshot())
        history = copy.deepcopy(self.history)

        def write():
            self.checkpoints.append((text, history))
            self.report(records.CheckpointDurable(now_s=0.0, updates=effect.updates))

        self.tasks.append(("write", write))

    def _on_DropGroup(self, effect):
        assert effect.group not in self.history.ended()
        assert effect.group not in self.gradients
        assert not [s for s in self.running if s[:2] == effect.group]
        self.history.dropped[effect.group] = effect.reason
        for sample in self._samples(effect.group):
            assert sample not in self.paused
            self.scoring.pop(sample, None)
        self.started_groups.pop(int(effect.group.uid[1:]), None)

    def _on_Finish(self, effect):
        assert not self.is_learner_busy
        assert not self.running
        assert not self.paused
        self.finish = effect

    # Bookkeeping.

    def _samples(self, group):
        size = self.run.settings.samples_per_group
        return [SampleId(group.uid, group.draw, i) for i in range(size)]

    def _versions(self, group):
        """Versions of the newest attempt of each sample: the one that is trained."""
        newest = {}
        for (sample, attempt), version in self.tokens_version.items():
            if sample[:2] == group:
                newest[sample] = max(newest.get(sample, (-1, 0)), (attempt, version))
        return [version for _, version in newest.values()]

    def _vacate(self, sample):
        del self.running[sample]

    def _vacate_worker(self, name):
        for sample in [s for s, (_, w) in self.running.items() if w == name]:
            self._vacate(sample)


def make(
    *,
    updates=4,
    prompts=None,
    flat=0.0,
    failing=0.0,
    checkpoint_every=100,
    workers=(("a", 4),),
    reports=False,
    **settings,
):
    """A shell with small defaults: R = 4, U = 2, G = 2."""
    small = {"groups_per_round": 4, "groups_per_update": 2, "samples_per_group": 2}
    return FakeShell(
        Run(
            settings=Settings(**{**small, **settings}),
            updates=updates,
            prompts=prompts,
            flat=flat,
            failing=failing,
            workers=workers,
            reports=reports,
            checkpoint_every=checkpoint_every,
        )
    )


def finished(choose=IN_TURN, **choices):
    """A run of `make` that was taken to its end."""
    shell = make(**choices)
    shell.run_to_end(choose)
    return shell


def trained_uids(shell):
    return [[group.uid for group in groups] for groups in shell.history.trained]


def effects(shell, kind):
    return [effect for effect in shell.trace if isinstance(effect, kind)]


def position(shell, kind, which=0):
    places = [i for i, item in enumerate(shell.trace) if isinstance(item, kind)]
    return places[which]
