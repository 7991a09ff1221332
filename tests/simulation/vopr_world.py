"""A world in virtual time around the pipeline: workers, a learner, rewards, a network.

Every message takes its time, so reports overtake one another as a matter of course.
What may be lost is lost for good where the pipeline has `lost_after_s`, and comes late
otherwise, as over a transport that sends again. docs/fault_injection.md says what the
machines are promised.
"""

import collections
import dataclasses
import heapq
import json
from collections.abc import Callable, Iterable
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.batching import ON_SAMPLES
from jigsaw_jax.schedule.pipeline import Pipeline
from tests.schedule.fake_shell import reported, told_one_by_one
from tests.simulation import vopr_plan
from tests.simulation.vopr_checks import Checks, require
from tests.simulation.vopr_plan import Fault

# Events after the last fault in which a run must end.
DRAIN_MAX = 30_000
# Events without a group's end, an update or a publish that a run may take.
IDLE_MAX = 4_000
FULL_EVERY = 1_000
Key = tuple[SampleId, int]


def share(uid: str, *words: int) -> float:
    """A number in [0, 1) that depends on the identity alone."""
    mixed = int(uid[1:]) + 1
    for word in words:
        mixed = (mixed * 0x9E3779B97F4A7C15 + word + 1) & (2**64 - 1)
        mixed ^= mixed >> 29
    mixed = (mixed * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return (mixed >> 11) / 2**53


def num_tokens(sample: SampleId) -> int:
    """Sampled tokens; a few samples are much longer than the rest."""
    drawn = share(*sample, 1)
    return 1 + int(10 * drawn) + (40 if drawn > 0.95 else 0)


class Worker:
    """A sampler worker; `life` counts its restarts."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.life = 1
        self.is_alive = True
        self.running: dict[Key, int] = {}


class World:
    """Runs one episode after the other until a number of events has been applied.

    Args:
      seed: of the episodes and of how long the learner takes.
      faults: what goes wrong.
    """

    def __init__(self, seed: int, faults: Iterable[Fault]) -> None:
        self.seed = seed
        self.num_events = 0
        self.num_messages = 0
        self.now_s = 0.0
        self._at_event: dict[int, list[Fault]] = collections.defaultdict(list)
        self._at_message: dict[int, Fault] = {}
        for fault in faults:
            if fault.kind in vopr_plan.AT_EVENT:
                self._at_event[fault.at].append(fault)
            else:
                self._at_message[fault.at] = fault
        self._is_quiet = False

    def run(self, events: int) -> None:
        """Run until at least `events` have been applied and the last run has ended."""
        number = 0
        while self.num_events < events:
            self._open(number)
            self._run_episode(events)
            number += 1

    # One episode.

    def _open(self, number: int) -> None:
        self.episode = vopr_plan.episode(self.seed, number)
        self.checks = Checks(self.episode)
        self.checks.num_events = self.checks.progress_at = self.num_events
        self._flat_until = self._broken_until = 0
        self._checkpoints: list[tuple[str, int, int]] = []
        self._begin(None)

    def _begin(self, snapshot: dict[str, Any] | None) -> None:
        """A new process: nothing of the old one's messages arrives any more."""
        episode = self.episode
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._num_sent = 0
        self._learner_free_s = self._offered_s = self.now_s
        self._partials: dict[Key, int | None] = {}
        self._pausing: set[Key] = set()
        self._done: set[Key] = set()
        self._versions: dict[Key, int] = {}
        self._writes: list[int] = []
        self._timed: records.StepTimed | None = None
        self._stopped = False
        self.pipeline = Pipeline(
            episode.settings,
            updates=episode.updates,
            checkpoint_every=episode.checkpoint_every,
        )
        self.checks.begin(self.pipeline)
        if snapshot is not None:
            self.pipeline.restore(snapshot)
            self.checks.restored()
        self.served = self.pipeline.version
        self._carry(self.pipeline.start(self.now_s))
        self.workers = {f"w{i}": Worker(n) for i, n in enumerate(episode.slots)}
        for name, worker in self.workers.items():
            self._push(0.0, self._apply, self._joined(name, worker, self.now_s))
        if episode.settings.lost_after_s:
            self._push(episode.settings.lost_after_s, self._tick, None)

    def _run_episode(self, events: int) -> None:
        drained = 0
        checks, is_full_at = self.checks, self.num_events + FULL_EVERY
        while True:
            if self.checks.finish is not None:
                checks.check_end(was_stopped=self._stopped)
                if not self._stopped or self.num_events >= events:
                    return
                self._crash(to_checkpoint=True)
            if self.num_events >= events:
                self._is_quiet = True
                drained += 1
                require(drained < DRAIN_MAX, "progress", "the run must end")
            if not self._is_quiet and self.num_events in self._at_event:
                for fault in self._at_event.pop(self.num_events):
                    self._befall(fault)
                continue
            require(bool(self._heap), "progress", "stuck: nothing is under way")
            self.now_s, _, handle, arg = heapq.heappop(self._heap)
            handle(arg)
            idle = self.num_events - checks.progress_at
            require(idle < IDLE_MAX, "progress", f"{idle} events without any progress")
            if self.num_events >= is_full_at:
                is_full_at = self.num_events + FULL_EVERY
                checks.check_all()

    # Faults.

    def _befall(self, fault: Fault) -> None:
        kind, arg = fault.kind, fault.arg
        names = list(self.workers)
        name = names[int(arg * len(names))]
        if kind in ("kill", "kill_unnoticed"):
            self._kill(name, is_noticed=kind == "kill", down_s=60 * (arg * 7 % 1))
        elif kind == "resize":
            self.workers[name].slots = 1 + int(arg * 97) % 8
            self._kill(name, is_noticed=False, down_s=0.0)
        elif kind == "fail":
            self._fail(arg)
        elif kind == "flat":
            self._flat_until = self.num_events + int(arg * 600)
        elif kind == "broken":
            self._broken_until = self.num_events + int(arg * 300)
        elif kind == "stop":
            self._stopped = True
            self._apply(records.StopRequested(now_s=self.now_s))
        else:
            self._crash(to_checkpoint=kind == "crash_to_checkpoint")

    def _kill(self, name: str, *, is_noticed: bool, down_s: float) -> None:
        worker = self.workers[name]
        if not worker.is_alive:
            return
        life = worker.life
        worker.is_alive = False
        worker.life += 1
        worker.running.clear()
        if is_noticed:
            # Who watches is not who restarts it, so the news may overtake each other.
            self._surely(
                lambda now_s: records.WorkerLost(
                    now_s=now_s, worker=name, incarnation=life
                ),
                after_s=10 * share("p0", life, self.seed),
            )
        self._push(down_s, self._restart, name)

    def _restart(self, name: str) -> None:
        worker = self.workers[name]
        worker.is_alive = True
        joined = self._joined(name, worker, self.now_s)
        self._surely(lambda now_s: dataclasses.replace(joined, now_s=now_s))

    def _joined(self, name: str, worker: Worker, now_s: float) -> records.WorkerJoined:
        return records.WorkerJoined(
            now_s=now_s, worker=name, slots=worker.slots, incarnation=worker.life
        )

    def _fail(self, arg: float) -> None:
        """An attempt that runs or is scored is lost, and whoever had it says so."""
        places = [(w, key) for w in self.workers.values() for key in w.running]
        if not places:
            return
        worker, key = places[int(arg * len(places))]
        del worker.running[key]
        self._report_failed(key)

    def _crash(self, *, to_checkpoint: bool) -> None:
        """Die, and go on from the newest durable checkpoint or from this moment."""
        if self.checks.finish is not None:
            to_checkpoint = True
        if not to_checkpoint:
            text, place = json.dumps(self.pipeline.snapshot()), None
        elif self._checkpoints:
            text, *place = self._checkpoints[-1]
        else:
            text, place = None, (0, 0)
        self.checks.roll_back(place)
        self._begin(None if text is None else json.loads(text))

    # The network.

    def _push(self, delay_s: float, handle: Callable[[Any], None], arg: Any) -> None:
        self._num_sent += 1
        entry = (self.now_s + delay_s, self._num_sent, handle, arg)
        heapq.heappush(self._heap, entry)

    def _send(
        self,
        handle: Callable[[Any], None],
        arg: Any,
        key: Key,
        kind: int,
        *,
        work_s: float = 0.0,
    ) -> None:
        """A message that a fault may lose, double or delay.

        How long it takes depends on what it says, not on how many went before: a
        fault that is left out then changes as little as it can, and replays shrink.
        """
        delay_s = work_s + share(*key[0], key[1], kind)
        fault = self._at_message.get(self.num_messages)
        self.num_messages += 1
        if fault is not None and not self._is_quiet:
            if fault.kind == "lose":
                if self.episode.settings.lost_after_s:
                    return
                delay_s += 10.0
            elif fault.kind == "double":
                self._push(delay_s + 5 * fault.arg, handle, arg)
            else:
                delay_s += 30 * fault.arg
        self._push(delay_s, handle, arg)

    def _tick(self, _: Any) -> None:
        self._apply(records.TimePassed(now_s=self.now_s))
        self._push(self.episode.settings.lost_after_s / 2, self._tick, None)

    def _report(self, make: Callable[[float], records.Event]) -> None:
        """Deliver a report, now and then with others that have come by then."""
        events = [make(self.now_s)]
        heap = self._heap
        while heap and heap[0][2] == self._report and heap[0][0] - self.now_s < 0.05:
            self.now_s, _, _, make = heapq.heappop(heap)
            events.append(make(self.now_s))
        self._apply(*events)

    def _report_alone(self, make: Callable[[float], records.Event]) -> None:
        """Deliver a report that may end a group, and with it the meaning of others."""
        self._apply(make(self.now_s))

    def _apply(self, *events: records.Event) -> None:
        self.num_events += 1
        if self._timed is not None:
            events, self._timed = (self._timed, *events), None
        checks = self.checks
        checks.num_events = self.num_events
        told = events
        if self.num_events % 2 and ON_SAMPLES.issuperset(map(type, events)):
            told = (reported(*events),)
            # It has one time for all, from which their deadlines count.
            events = tuple(
                dataclasses.replace(event, now_s=told[0].now_s) for event in events
            )
        for event in events:
            checks.see(event)
        effects = self.pipeline.apply(*told)
        checks.answered(self.now_s)
        self._carry(effects)

    def _carry(self, effects: list[records.Effect]) -> None:
        for effect in told_one_by_one(effects):
            self.checks.effect(effect)
            _CARRIERS[type(effect)](self, effect)
        # A snapshot holds all that its call of `apply` did, drops behind it included.
        for updates in self._writes:
            text = json.dumps(self.pipeline.snapshot())
            self._learn(1.0, self._written, (text, *self.checks.place, updates))
        self._writes.clear()
        self.checks.settled()

    # Prompts, in order: they come from the pipeline's own process.

    def _on_request(self, effect: records.RequestPrompts) -> None:
        delay_s = share("p0", self.pipeline.next_prompt_index, effect.num)
        self._offered_s = max(self._offered_s, self.now_s + delay_s)
        self._push(self._offered_s - self.now_s, self._offer, effect.num)

    def _offer(self, num: int) -> None:
        first = self.pipeline.next_prompt_index
        last = max(min(first + num, self.episode.prompts), first)
        uids = tuple(f"p{i}" for i in range(first, last))
        event = records.PromptsOffered(
            now_s=self.now_s, uids=uids, is_end=len(uids) < num
        )
        self._apply(event)

    # Workers.

    def _on_admit(self, effect: records.AdmitSample) -> None:
        life = self.workers[effect.worker].life
        key = effect.id, effect.attempt
        self._send(self._admit, (effect, life), key, 10 + effect.is_resumed)

    def _admit(self, message: tuple[records.AdmitSample, int]) -> None:
        effect, life = message
        worker = self.workers[effect.worker]
        key = effect.id, effect.attempt
        if not worker.is_alive or worker.life != life:
            return
        if key in self._pausing:
            # A shell lets a sample go on only when its pause has been answered.
            self._push(1.0, self._admit, message)
        elif effect.is_resumed:
            self._go_on(worker, key)
        elif key not in self._versions:
            self._versions[key] = self.served
            self._decode(worker, key, num_tokens(effect.id))
            self._send(
                self._report,
                lambda now_s: records.SampleStarted(
                    now_s=now_s, id=effect.id, attempt=effect.attempt
                ),
                key,
                12,
            )

    def _go_on(self, worker: Worker, key: Key) -> None:
        if key in self._done or key not in self._partials:
            return
        left = self._partials.pop(key)
        if left is None:
            self._report_failed(key)
        else:
            self._decode(worker, key, left)

    def _decode(self, worker: Worker, key: Key, tokens: int) -> None:
        self._num_sent += 1
        worker.running[key] = self._num_sent
        self._push(0.3 * tokens, self._decoded, (worker, key, self._num_sent))

    def _decoded(self, message: tuple[Worker, Key, int]) -> None:
        worker, key, number = message
        if worker.running.get(key) != number:
            return
        size = len(worker.running)
        del worker.running[key]
        self._done.add(key)
        self._time_steps(size)
        sample, attempt = key
        self._send(
            self._report,
            lambda now_s: records.SampleFinished(
                now_s=now_s,
                id=sample,
                attempt=attempt,
                num_tokens=num_tokens(sample),
                version_min=self._versions[key],
            ),
            key,
            13,
        )

    def _time_steps(self, size: int) -> None:
        """Let the next call of `apply` hear what a step took, if that is asked for."""
        if self.episode.settings.admission == "frontier_adaptive":
            slope = share("p0", self.seed, size)
            self._timed = records.StepTimed(
                now_s=self.now_s, worker="w", sequences=size, step_s=0.3 + slope * size
            )

    def _report_failed(self, key: Key) -> None:
        self._send(
            self._report_alone,
            lambda now_s: records.SampleFailed(
                now_s=now_s, id=key[0], attempt=key[1], reason="fault"
            ),
            key,
            14,
        )

    def _on_cancel(self, effect: records.CancelSample) -> None:
        self._send(self._cancel, effect, (effect.id, effect.attempt), 15)

    def _cancel(self, effect: records.CancelSample) -> None:
        key = effect.id, effect.attempt
        self._partials.pop(key, None)
        self.workers[effect.worker].running.pop(key, None)

    def _on_pause(self, effect: records.PauseSample) -> None:
        key = effect.id, effect.attempt
        self._pausing.add(key)
        life = self.workers[effect.worker].life
        self._push(3 * share(*effect.id, 16), self._pause, (effect, life))

    def _pause(self, message: tuple[records.PauseSample, int]) -> None:
        effect, life = message
        worker = self.workers[effect.worker]
        key = effect.id, effect.attempt
        self._pausing.discard(key)
        if key in self._done:
            return
        is_there = worker.is_alive and worker.life == life and key in worker.running
        # Where the worker has died or never got it, there is nothing to go on from.
        self._partials[key] = 1 + num_tokens(effect.id) // 2 if is_there else None
        if is_there:
            del worker.running[key]
        # The command may still be under way; it must not start what is paused.
        self._versions.setdefault(key, self.served)

    # Rewards.

    def value(self, sample: SampleId) -> float | None:
        """What the reward says, by identity, but for faults that last a while."""
        if self.num_events < self._broken_until:
            return None
        if share(*sample, 2) < self.episode.failing:
            return None
        is_flat = share(sample.uid, sample.draw, 3) < self.episode.flat
        if is_flat or self.num_events < self._flat_until:
            return 0.5
        return float(sample.sample % 2)

    def _on_score(self, effect: records.ScoreSample) -> None:
        self._send(self._score, effect, (effect.id, effect.attempt), 17)

    def _score(self, effect: records.ScoreSample) -> None:
        value, work_s = self.value(effect.id), 0.0
        fault = self._at_message.get(self.num_messages)
        if fault is not None and fault.kind == "hang" and not self._is_quiet:
            self.num_messages += 1
            if self.episode.settings.lost_after_s:
                return
            # The pool's own limit ends it.
            value, work_s = None, 30.0
        self._send(
            self._report,
            lambda now_s: records.SampleScored(
                now_s=now_s, id=effect.id, attempt=effect.attempt, value=value
            ),
            (effect.id, effect.attempt),
            18,
            work_s=work_s,
        )

    # The learner, whose commands arrive in order and whose reports come for certain.

    def _learn(self, work_s: float, handle: Callable[[Any], None], arg: Any) -> None:
        start_s = max(self._learner_free_s, self.now_s + 0.05)
        drawn = share("p0", self.pipeline.updates_done, self.seed)
        self._learner_free_s = start_s + work_s * (0.5 + drawn)
        self._push(self._learner_free_s - self.now_s, handle, arg)

    def _surely(
        self, make: Callable[[float], records.Event], after_s: float = 0.0
    ) -> None:
        """A report that is sent until it is answered, so it may come twice."""
        fault = self._at_message.get(self.num_messages)
        self.num_messages += 1
        delay_s = after_s + share("p0", self.pipeline.updates_done, self.seed, 2)
        if fault is not None and not self._is_quiet:
            if fault.kind == "double":
                self._push(delay_s + 10 * fault.arg, self._report_alone, make)
            else:
                delay_s += 20 * fault.arg
        self._push(delay_s, self._report_alone, make)

    def _on_accumulate(self, effect: records.AccumulateGroups) -> None:
        self._learn(
            len(effect.groups),
            self._surely,
            lambda now_s: records.GroupsAccumulated(
                now_s=now_s, groups=effect.groups, update=effect.update
            ),
        )

    def _on_step(self, effect: records.StepUpdate) -> None:
        self._learn(
            0.5,
            self._surely,
            lambda now_s: records.UpdateStepped(now_s=now_s, update=effect.update),
        )

    def _on_publish(self, effect: records.PublishVersion) -> None:
        self._learn(0.5, self._publish, effect.version)

    def _publish(self, version: int) -> None:
        self.served = max(self.served, version)
        self._surely(
            lambda now_s: records.VersionPublished(now_s=now_s, version=version)
        )

    def _on_write(self, effect: records.WriteCheckpoint) -> None:
        self._writes.append(effect.updates)

    def _written(self, message: tuple[str, int, int, int]) -> None:
        text, num_trained, num_dropped, updates = message
        self._checkpoints.append((text, num_trained, num_dropped))
        self._surely(
            lambda now_s: records.CheckpointDurable(now_s=now_s, updates=updates)
        )

    def _on_nothing(self, effect: records.Effect) -> None:
        """Nothing to do outside."""


_CARRIERS: dict[type, Callable[[World, Any], None]] = {
    records.RequestPrompts: World._on_request,
    records.AdmitSample: World._on_admit,
    records.CancelSample: World._on_cancel,
    records.PauseSample: World._on_pause,
    records.ScoreSample: World._on_score,
    records.AccumulateGroups: World._on_accumulate,
    records.StepUpdate: World._on_step,
    records.PublishVersion: World._on_publish,
    records.WriteCheckpoint: World._on_write,
    records.DropGroup: World._on_nothing,
    records.Finish: World._on_nothing,
}
