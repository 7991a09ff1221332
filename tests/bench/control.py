"""`python -m tests.bench.control`: what a group costs the control loop.

The whole control loop, its state machine and its logs run here, in one thread and
without any process: simulated hosts answer in virtual time, each with messages of a few
samples, as columns, and score them unasked. So what is measured is what
`tests.bench.controller` measures, without what carries the messages: no sockets, no
Ray, no JSON of a batch.

Prints microseconds of processor time a group of each part. Exits 1 where all of them
are more than --us_max. `--profile` shows where it goes, and adds to it.
"""

import argparse
import collections
import cProfile
import heapq
import itertools
import pathlib
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from jigsaw_jax import config, records
from jigsaw_jax.records import SampleId, Score
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.inputs import open_inputs
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.schedule.pipeline import Pipeline

# Updates that are not counted.
WARM_UP = 3
# How often a host says something, and when the learner has done what it was told.
MESSAGE_S = 0.025
LEARNER_S = 0.005
TOKENS = 1500
FIELDS = ("worker", "uid", "draw", "sample", "num_tokens", "version", "finish")
INTS, REALS = wire.reader(tuple[int, ...]), wire.reader(tuple[float, ...])
SCORE = wire.reader(Score)
PARTS = {
    "machine": "Pipeline.apply",
    "control": "carrying effects, batching, scoring desk",
    "wire": "messages read, admissions made plain",
    "payloads": "completions and scores kept",
    "lines": "intervals of the event log queued",
    "prompts": "problems read",
    "updates": "an update's record",
    "threads": "logs encoded and written",
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8, help="of a group")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--groups_per_update", type=int, default=500)
    parser.add_argument("--groups_per_s", type=float, default=1000.0)
    parser.add_argument("--together", type=int, default=2, help="messages a turn")
    parser.add_argument("--us_max", type=float, default=200.0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    train = train_of(args, WARM_UP + args.updates, args.slots, args.set)
    meter = Meter()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="jigsaw-control-"))
    crew: Any = Crew(train, args, meter)
    # Reading what was sampled is not the control loop's work.
    Record._write_rollouts = lambda *_, **__: None
    control: Any = Control(
        train,
        crew.gather,
        run_dir=folder,
        resume=False,
        operative="",
        holds_state=False,
    )
    control._events = crew.feed
    metered(control, "_log_update", meter, "updates")
    profile = cProfile.Profile()
    assert profile.runcall(control.run) == 0 if args.profile else control.run() == 0
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return report(args, meter)


def train_of(args, updates: int, slots: int, extra: Sequence[str]):
    """The demo's problems, with as much under way as so many hosts need."""
    sets = [
        f"Train.updates = {updates}",
        "WarmUp.updates = 0",
        "Pipeline.mode = 'async'",
        f"Pipeline.groups_per_round = {args.groups_per_update}",
        f"Pipeline.groups_per_update = {args.groups_per_update}",
        f"Pipeline.samples_per_group = {args.samples}",
        "Pipeline.staleness_max = 2",
        "Pipeline.admission = 'fifo'",
        f"Sampler.slots = {slots}",
        "Evaluation.every = -1",
        "Store.checkpoint_every = 1000000",
        *extra,
    ]
    return config.load(["configs/demo.gin"], sets).train


class Meter:
    """Gives the processor time of this thread to one part after the other.

    Attributes:
      spent_s: by part.
      turns: events of a turn, one entry a turn.
    """

    def __init__(self):
        self.spent_s = collections.defaultdict(float)
        self.events = self.turns = 0
        self.part = "control"
        self.last_s = time.thread_time()
        # What reading the clock costs itself, once for each switch.
        start_s = time.thread_time()
        for _ in range(10_000):
            self.switch("control")
        self.own_s = (time.thread_time() - start_s) / 10_000
        self.start()

    def start(self):
        self.spent_s.clear()
        self.events = self.turns = 0
        self.threads_s = time.process_time() - time.thread_time()
        self.last_s = time.thread_time()

    def switch(self, part):
        now_s = time.thread_time()
        self.spent_s[self.part] += now_s - self.last_s
        self.spent_s["own"] += 1
        before, self.part, self.last_s = self.part, part, now_s
        return before

    def stop(self):
        """Seconds by part, without what measuring took."""
        self.switch("control")
        num = self.spent_s.pop("own")
        spent_s = dict(self.spent_s)
        total_s = sum(spent_s.values())
        for part in spent_s:
            spent_s[part] *= 1 - num * self.own_s / total_s
        threads_s = time.process_time() - time.thread_time()
        return spent_s | {"threads": threads_s - self.threads_s}


def metered(where, name, meter, part):
    """Have a method's time counted for a part."""
    method = getattr(where, name)

    def call(*args, **kwargs):
        before = meter.switch(part)
        try:
            return method(*args, **kwargs)
        finally:
            meter.switch(before)

    setattr(where, name, call)


class Remote(NamedTuple):
    """Stands for a completion, as `cluster.places.Remote` does."""

    id: SampleId
    attempt: int
    num_sampled: int
    is_truncated: bool


class Feed:
    """The control loop's queue; whoever waits for it lets the hosts speak."""

    def __init__(self, crew, meter):
        self.crew, self.meter = crew, meter
        self.items: collections.deque[Any] = collections.deque()
        self.put = self.items.append

    def get(self, timeout=None):
        del timeout
        while not self.items:
            self.crew.hear()
        return self.items.popleft()

    def get_nowait(self):
        return self.items.popleft()

    def qsize(self):
        self.meter.turns += 1
        self.meter.events += 1 + len(self.items)
        return len(self.items)


class Host:
    """One sampler: what it says in a message, as plain columns."""

    def __init__(self, samples_per_s):
        self.samples_per_s = samples_per_s
        self.running = collections.deque()
        self.new, self.gone = [], set()
        self.due = self.last_s = 0.0

    def begin(self, told):
        self.running.append(told)
        self.new.append(told[0])

    def say(self, now_s):
        """Numbers of what has started; of what has finished; and scores of those."""
        self.due += (now_s - self.last_s) * self.samples_per_s
        self.last_s = now_s
        new, self.new = self.new, []
        num = min(int(self.due), len(self.running))
        self.due -= int(self.due)
        ended = [self.running.popleft() for _ in range(num)]
        ended = [told for told in ended if told[0] not in self.gone]
        numbers = [told[0] for told in ended]
        versions = [told[3] for told in ended]
        scores = [[float(told[1][2] % 2), {"answer": 1.0}, None] for told in ended]
        times = [now_s - 1.0] * num, [now_s] * num
        return (
            (new, [now_s] * len(new)),
            (numbers, *times, [TOKENS] * num, versions),
            (numbers, scores),
        )


class Crew:
    """Hosts that finish the oldest of their samples at a steady rate."""

    is_resumed = False
    evaluator = tokenizer = None
    num_timeouts = num_compilations = 0

    def __init__(self, train, args, meter):
        self.args, self.meter = args, meter
        self.source = open_inputs(train).source
        self.feed = Feed(self, meter)
        self.pipeline = Pipeline(
            train.pipeline,
            updates=train.updates,
            checkpoint_every=train.store.checkpoint_every,
            asks_scores=False,
        )
        self.learner_busy, self.sampler_busy = collections.deque(), collections.deque()
        rate = args.groups_per_s * args.samples / args.hosts
        self.hosts = {f"host-{i}/1": Host(rate) for i in range(args.hosts)}
        self.turn = itertools.cycle(self.hosts)
        # Who has which attempt, as `cluster.register` knows it.
        self.known = {}
        self.number_of = {}
        self.admitted = []
        # What the learner says, and when.
        self.answers: list[Any] = []
        self.numbers = itertools.count()
        self.now_s = 0.0

    def gather(self, train, record, *, payloads, post, published, **_):
        self.payloads, self.published = payloads, published
        self.journal = record.journal
        self.post = self.feed.put
        del post, train
        metered(self.pipeline, "apply", self.meter, "machine")
        metered(self.source, "prompt", self.meter, "prompts")
        return self

    def start(self):
        return [
            records.WorkerJoined(now_s=0.0, worker=name, slots=self.args.slots)
            for name in self.hosts
        ]

    # Effects.

    def admit(self, effect, prompt):
        del prompt
        number = next(self.numbers)
        self.known[number] = effect.id, effect.attempt
        self.number_of[effect.id] = number
        told = number, effect.id, effect.attempt, effect.version, effect.is_resumed
        self.admitted.append((effect.worker, told))

    def cancel(self, effect):
        self.hosts[effect.worker].gone.add(self.number_of[effect.id])

    def forget(self, group):
        for index in range(self.args.samples):
            del self.known[self.number_of.pop((*group, index))]

    def flush(self):
        """What is told to hosts is made plain, and they say that it has begun."""
        admitted, self.admitted = self.admitted, []
        before = self.meter.switch("wire")
        told = [(worker, wire.plain(values)) for worker, values in admitted]
        self.meter.switch("hosts")
        for worker, values in told:
            self.hosts[worker].begin(values)
        self.meter.switch(before)

    def accumulate(self, groups, update):
        ids = tuple(group.id for group in groups)
        self.learned(
            lambda now_s: records.GroupsAccumulated(
                now_s=now_s, groups=ids, update=update
            )
        )

    def step(self, effect):
        self.stepped = effect
        self.learned(
            lambda now_s: records.UpdateStepped(now_s=now_s, update=effect.update)
        )

    def save(self, updates, record, *, is_final):
        del record, is_final
        self.learned(
            lambda now_s: records.CheckpointDurable(now_s=now_s, updates=updates)
        )

    def publish(self, version):
        self.published(version, self.now_s, self.now_s)

    def learned(self, event):
        due_s = self.now_s + LEARNER_S
        heapq.heappush(self.answers, (due_s, next(self.numbers), event))

    def take_metrics(self, update):
        if update == WARM_UP - 1:
            self.meter.start()
        return {"loss/total": 0.5}

    def take_advantages(self, update):
        del update
        return {group: [0.5] * self.args.samples for group in self.stepped.groups}

    def ignore(self, *_):
        pass

    whole = score = ignore

    def nothing(self):
        return ()

    rest = load_last = export = close = workers = nothing

    def sample_idle(self, requests):
        return list(requests)

    # What comes back, one host after the other.

    def hear(self):
        for _ in range(self.args.together):
            before = self.meter.switch("hosts")
            self.now_s += MESSAGE_S / self.args.hosts
            name = next(self.turn)
            message = self.hosts[name].say(self.now_s)
            while self.answers and self.answers[0][0] <= self.now_s:
                self.post(heapq.heappop(self.answers)[2](self.now_s))
            self.take(name, *message)
            self.meter.switch(before)

    def take(self, name, started, finished, scored):
        """Read a message, as the thread does that listens."""
        self.meter.switch("wire")
        known = self.known
        started = [
            (*known[number], now_s)
            for number, now_s in zip(INTS(started[0]), REALS(started[1]), strict=True)
        ]
        numbers, starts_s, ends_s, tokens, versions = finished
        ids = [known[number] for number in INTS(numbers)]
        tokens, versions = INTS(tokens), INTS(versions)
        finished = [
            (*one, num_tokens, version)
            for one, num_tokens, version in zip(ids, tokens, versions, strict=True)
        ]
        numbers, plain = scored
        scores = [
            (*known[number], SCORE(score))
            for number, score in zip(INTS(numbers), plain, strict=True)
        ]
        self.meter.switch("payloads")
        self.payloads.add_samples(
            [Remote(one, attempt, num, False) for one, attempt, num, _ in finished]
        )
        self.payloads.add_scores(scores)
        self.meter.switch("lines")
        track = f"slot/{name}/03"
        rows = [
            (track, start_s, end_s, name, *sample, num_tokens, version, "stop")
            for (sample, _, num_tokens, version), start_s, end_s in zip(
                finished, REALS(starts_s), REALS(ends_s), strict=True
            )
        ]
        if rows:
            self.journal.intervals("sample", FIELDS, rows)
        self.meter.switch("control")
        self.post(
            records.SamplesReported(
                now_s=self.now_s,
                started=started,
                finished=finished,
                scored=[(one, attempt, score.value) for one, attempt, score in scores],
            )
        )


def report(args, meter):
    spent_s = meter.stop()
    spent_s.pop("hosts")
    groups = args.updates * args.groups_per_update
    print(
        f"{args.hosts} hosts, {groups} groups of {args.samples} samples; a group has "
        f"{meter.events / groups:.1f} events in {meter.turns / groups:.2f} turns"
    )
    for part, what in PARTS.items():
        print(f"{1e6 * spent_s.get(part, 0.0) / groups:8.1f} us  {part:10} {what}")
    us = 1e6 * sum(spent_s.values()) / groups
    print(f"{us:8.1f} us  a group in all")
    is_held = us <= args.us_max
    print(f"bound: {args.us_max:g} us a group, {'held' if is_held else 'missed'}")
    return int(not is_held)


if __name__ == "__main__":
    sys.exit(main())
