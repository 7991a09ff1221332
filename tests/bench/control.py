"""`python -m tests.bench.control`: what a group costs the control loop.

The whole control loop, its state machine and its logs run here, in one thread and
without any process: simulated hosts answer in virtual time, each with messages of a few
samples, and score them unasked. So what is measured is what
`tests.bench.controller` measures, without what carries the messages: no sockets, no
Ray.

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
from typing import Any

from jigsaw_jax import config, records
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster import tables
from jigsaw_jax.runtime.cluster.places import Stock
from jigsaw_jax.runtime.cluster.reports import Reports
from jigsaw_jax.runtime.cluster.tables import Admitted, Finished, Scored, Started
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.inputs import open_inputs
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.runtime.threads import sleep_until
from jigsaw_jax.schedule.pipeline import Pipeline

# Updates that are not counted.
WARM_UP = 3
# At least so many may be open, however few an update has.
OPEN_GROUPS = 1500
# How often a host says something, and when the learner has done what it was told.
MESSAGE_S = 0.025
LEARNER_S = 0.005
TOKENS = 1500
PARTS = {
    "machine": "Pipeline.apply",
    "control": "carrying effects, batching, scoring desk",
    "wire": "messages read, admissions written",
    "reports": "who has which attempt, and what is told of it",
    "payloads": "completions and scores kept",
    "prompts": "problems read",
    "updates": "an update's record, and its groups let go",
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
    for where, name in (
        (control, "_log_update"),
        (control, "_free"),
        (control._settling, "add"),
        (control._settling, "go_on"),
        (control._reading, "go_on"),
    ):
        metered(where, name, meter, "updates")
    profile = cProfile.Profile()
    assert profile.runcall(control.run) == 0 if args.profile else control.run() == 0
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return report(args, meter)


def train_of(args, updates: int, slots: int, extra: Sequence[str]):
    """The demo's problems, with as much under way as so many hosts need."""
    staleness_max = max(2, -(-OPEN_GROUPS // args.groups_per_update) - 1)
    sets = [
        f"Train.updates = {updates}",
        "WarmUp.updates = 0",
        "Pipeline.mode = 'async'",
        f"Pipeline.groups_per_round = {args.groups_per_update}",
        f"Pipeline.groups_per_update = {args.groups_per_update}",
        f"Pipeline.samples_per_group = {args.samples}",
        f"Pipeline.staleness_max = {staleness_max}",
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
    """One sampler: what it says in a message, as bytes.

    Attributes:
      worker: its life.
      name: of it.
      offset_s: of its clock.
      gone: numbers that were cancelled.
    """

    def __init__(self, name, samples_per_s):
        self.name, self.worker, self.offset_s = name, f"{name}/1", 0.0
        self.samples_per_s = samples_per_s
        self.running = collections.deque()
        self.new, self.gone = [], set()
        self.due = self.last_s = 0.0
        self.places = itertools.count()

    def begin(self, told):
        self.running.append(told)
        self.new.append(told.number)

    def say(self, now_s):
        self.due += (now_s - self.last_s) * self.samples_per_s
        self.last_s = now_s
        new, self.new = self.new, []
        num = min(int(self.due), len(self.running))
        self.due -= int(self.due)
        ended = [self.running.popleft() for _ in range(num)]
        ended = [told for told in ended if told.number not in self.gone]
        span = 3, now_s - 1.0, now_s, TOKENS
        said = {
            "started": [Started(number, now_s) for number in new],
            "finished": [
                Finished(told.number, next(self.places), *span, told.version, "stop")
                for told in ended
            ],
            "scored": [
                Scored(told.number, float(told.sample % 2), {"answer": 1.0}, None)
                for told in ended
            ],
        }
        return wire.to_bytes({kind: rows for kind, rows in said.items() if rows})


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
        hosts = [Host(f"host-{i}", rate) for i in range(args.hosts)]
        self.hosts = {host.worker: host for host in hosts}
        self.turn = itertools.cycle(self.hosts)
        self.admitted = collections.defaultdict(list)
        # What the learner says, and when.
        self.answers: list[Any] = []
        self.numbers = itertools.count()
        self.now_s = 0.0

    def gather(self, seat):
        self.published = seat.published
        stock = Stock(seat.payloads, "token", 1.0)
        self.reports = Reports(
            stock, self.feed.put, journal=seat.record.journal, asks_scores=False
        )
        self.register = self.reports.register
        for name in ("add_samples", "add_scores"):
            metered(seat.payloads, name, self.meter, "payloads")
        self.post = self.feed.put
        metered(self.pipeline, "apply", self.meter, "machine")
        metered(self.source, "prompt", self.meter, "prompts")
        return self

    def start(self):
        return [
            records.WorkerJoined(now_s=0.0, worker=name, slots=self.args.slots)
            for name in self.hosts
        ]

    # Effects.

    def admit(self, samples: Sequence[records.AdmitSample], prompt):
        uid = None
        for sample, attempt, worker, version, is_resumed in samples:
            number = self.register.admit(sample, attempt, worker)
            if sample[0] != uid:
                uid = sample[0]
                prompt(uid)
            told = Admitted(number, *sample, attempt, version, is_resumed)
            self.admitted[worker].append(told)

    def cancel(self, effect):
        known = self.register.find(effect.id, effect.attempt)
        assert known is not None
        self.hosts[effect.worker].gone.add(known.number)

    def forget(self, groups):
        for group in groups:
            self.register.end(group)

    def wait(self, events, timeout_s):
        return sleep_until(events, timeout_s)

    def flush(self):
        """What hosts are told is written, and they say that it has begun."""
        before = self.meter.switch("wire")
        for told in self.admitted.values():
            wire.to_bytes(told)
        self.meter.switch("hosts")
        for worker, told in self.admitted.items():
            for one in told:
                self.hosts[worker].begin(one)
        self.admitted.clear()
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
        self.reports.stock.take_unused()
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
            self.meter.switch("wire")
            rows = tables.read(message)
            self.meter.switch("reports")
            host: Any = self.hosts[name]
            self.reports.hear(host, rows, self.now_s)
            self.meter.switch(before)


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
