"""Simulated hosts of `tests.bench.controller`: real lines, no engine behind them.

An actor of Ray holds several hosts. A host takes the commands of the controller by its
own line, says what a worker would say of them, and lets the oldest of its samples
finish at a steady rate. Each completion has the same bytes, and goes to the learner's
depot.
"""

import collections
import dataclasses
import os
import threading
import time
import traceback
from typing import Any
from unittest import mock

import ray

from jigsaw_jax.records import (
    CheckpointDurable,
    GroupId,
    GroupsAccumulated,
    SampleId,
    Score,
    UpdateStepped,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import offers
from jigsaw_jax.runtime.cluster.contact import Contact
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.lines import porter
from jigsaw_jax.runtime.lines.depot import Depot, read_keys
from jigsaw_jax.runtime.lines.porter import Porter
from jigsaw_jax.runtime.threads import ThreadFailed
from jigsaw_jax.runtime.weights import Offer

TICK_S = 0.005
DECODE_S = 0.05
TOKENS = 1500


def failed(thread: ThreadFailed) -> None:
    """The bench ends where a worker would."""
    traceback.print_exception(thread.error)
    os._exit(1)


@dataclasses.dataclass(frozen=True)
class Load:
    """What the hosts do together.

    samples_per_s: that finish on each sampler.
    sample_bytes: of each completion.
    """

    samples_per_s: float
    sample_bytes: int


class Completion:
    """Stands for a sample; all have the same bytes."""

    is_truncated = False


class Host:
    """One worker: a sampler, or the learner."""

    def __init__(self, charter: dict[str, Any], load: Load, rank: int):
        self.rates = load
        self.token = charter["token"]
        self.outbox = Outbox(Clock(), charter["epoch"])
        self.porter = Porter(charter["worker"], self.token, failed)
        self.depot: Any = None
        self.outbox.facts = lambda: {"compilations": 0, "timeouts": 0}
        # Far from the controller, whose clock then has to be lined up with its own.
        self.outbox.post("hello", 0, f"host-{rank}", "elsewhere")
        self.running: collections.deque[tuple[SampleId, int, float]]
        self.running = collections.deque()
        self.cancelled: set[tuple[SampleId, int]] = set()
        self.version = 0
        self.due, self.last_s, self.decoded_s = 0.0, None, 0.0
        self.lock = threading.Lock()
        self.sequence, self.early = 0, {}
        Contact(charter, self.outbox, take=self.do, fail=failed, end=lambda: None)

    # What it is told.

    def do(self, batch: bytes) -> None:
        number, commands = wire.from_bytes(batch)
        with self.lock:
            self.early[number] = commands
            while due := self.early.pop(self.sequence + 1, None):
                self.sequence += 1
                for name, values, _, _ in due:
                    does = self.learn if name == "learn" else None
                    (does or getattr(self, name, self.ignore))(values)

    def ignore(self, _values) -> None:
        pass

    def begin(self, values) -> None:
        self.outbox.begin(values[0])

    def load(self, values) -> None:
        self.porter.to(tuple(values[0]))
        self.version = values[1]
        self.outbox.post("loaded", values[1], time.monotonic())

    def admit(self, values) -> None:
        number, sample, attempt = values[0], SampleId(*values[1]), values[2]
        now_s = time.monotonic()
        self.running.append((number, sample, attempt, now_s))
        self.last_s = self.last_s or now_s
        self.outbox.post("started", number, now_s)

    def cancel(self, values) -> None:
        self.cancelled.add((SampleId(*values[0][0]), values[0][1]))

    # What it does.

    def tick(self, now_s: float) -> None:
        """Finish what is due."""
        if self.last_s is None:
            return
        self.due += (now_s - self.last_s) * self.rates.samples_per_s
        self.last_s = now_s
        if now_s - self.decoded_s > DECODE_S:
            fields = {"active": len(self.running), "tokens": 100, "worker": "w"}
            self.outbox.interval("sampler", "decode", self.decoded_s, now_s, **fields)
            self.decoded_s = now_s
        while self.due >= 1.0:
            self.due -= 1.0
            if self.running:
                self.finish(*self.running.popleft(), now_s)

    def finish(self, number, sample, attempt, start_s, now_s) -> None:
        if (sample, attempt) in self.cancelled:
            self.cancelled.discard((sample, attempt))
            return
        self.outbox.interval(
            "slot/w/03",
            "sample",
            start_s,
            now_s,
            worker="w",
            uid=sample.uid,
            draw=sample.draw,
            sample=sample.sample,
            num_tokens=TOKENS,
            version=self.version,
            finish="stop",
        )
        whole: Any = Completion()

        def tell(place):
            told = now_s, TOKENS, self.version, False
            self.outbox.post("finished", number, *told, place)

        self.porter.carry(whole, lambda: True, tell)
        score = Score(value=float(sample.sample % 2), parts={"answer": 1.0})
        self.outbox.post("score", number, wire.plain(score))

    def event(self, event) -> None:
        self.outbox.post("event", type(event).__name__, wire.plain(event))

    # As the learner.

    def learn(self, values) -> None:
        self.depot = Depot("127.0.0.1", self.token, failed)
        self.offer(values[2])

    def offer(self, version) -> None:
        offer = Offer(manifest="{}", tickets={"p": ("ray", ray.put(b"weights"))})
        trained, named = offers.plain(offer)
        told = "run", time.monotonic(), self.depot.address, trained, 1, None
        self.outbox.post("weights", version, *told, refs=named)

    def accumulate(self, values) -> None:
        update, groups = values
        start_s = time.monotonic()
        # They are there, or come.
        keys = [key for group in groups for key in read_keys(group[3])]
        self.depot.take(keys, 60.0)
        ids = tuple(GroupId(*group[0]) for group in groups)
        now_s = time.monotonic()
        self.outbox.interval("learner", "accumulate", start_s, now_s, update=update)
        self.event(GroupsAccumulated(now_s=now_s, groups=ids, update=update))

    def forget(self, values) -> None:
        self.depot.drop(read_keys(values[0]))

    def step(self, values) -> None:
        update, groups = values[0]
        rows = [[uid, draw, [0.5] * 8] for uid, draw in groups]
        metrics = {f"loss/{number}": 0.5 for number in range(40)}
        event = UpdateStepped(now_s=time.monotonic(), update=update)
        self.outbox.post("stepped", wire.plain(event), metrics, rows)

    def publish(self, values) -> None:
        self.offer(values[0])

    def save(self, values) -> None:
        self.event(CheckpointDurable(now_s=time.monotonic(), updates=values[0]))

    def rest(self, _values) -> None:
        self.outbox.post("done", "rest")


class Hosts:
    """Several hosts in one process."""

    def __init__(self, load: Load):
        self.load = load
        self.hosts: dict[str, Host] = {}
        payload = bytes(load.sample_bytes)
        # Encoding is the sampler's work, and not what is measured.
        mock.patch.object(porter, "wire", _Wire(payload)).start()
        threading.Thread(target=self.run, daemon=True).start()

    def hire(self, charter, rank):
        self.hosts[charter["name"]] = Host(charter, self.load, rank)

    def run(self):
        pause = threading.Event()
        while not pause.wait(TICK_S):
            for host in list(self.hosts.values()):
                host.tick(time.monotonic())

    @ray.method(concurrency_group="commands")
    def do(self, name, batch, _refs):
        self.hosts[name].do(batch)

    @ray.method(concurrency_group="messages")
    def named(self, name, number):
        return self.hosts[name].outbox.named(number)

    @ray.method(concurrency_group="life")
    def live(self):
        threading.Event().wait()


class _Wire:
    """`runtime.wire` with completions that are made already."""

    to_bytes = staticmethod(wire.to_bytes)

    def __init__(self, payload):
        self.payload = payload

    def sample_bytes(self, _sample):
        return self.payload


class Handle:
    """One host's handle, as Ray would give it."""

    def __init__(self, actor, name):
        self.actor = actor
        self.do = _Method(actor.do, name)
        self.named = _Method(actor.named, name)
        self.live = actor.live


class _Method:
    def __init__(self, method, name):
        self.method, self.name = method, name

    def remote(self, *args):
        return self.method.remote(self.name, *args)
