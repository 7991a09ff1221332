"""Simulated hosts of `tests.bench.controller`: real outboxes, no engine behind them.

An actor of Ray holds several hosts. A host takes the commands of the controller, says
what a worker would say of them, through `runtime.cluster.outbox`, and lets the oldest
of its samples finish at a steady rate, each with the same bytes for a completion.
"""

import collections
import dataclasses
import threading
import time
from typing import Any
from unittest import mock

import ray

from jigsaw_jax.records import (
    CheckpointDurable,
    GroupId,
    GroupsAccumulated,
    SampleFinished,
    SampleId,
    SampleStarted,
    Score,
    UpdateStepped,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import offers
from jigsaw_jax.runtime.cluster import outbox as outboxes
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.weights import Offer

TICK_S = 0.005
DECODE_S = 0.05
TOKENS = 1500


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

    def __init__(self, epoch: int, load: Load, rank: int):
        self.rates = load
        self.outbox = Outbox(Clock(), epoch)
        self.outbox.facts = lambda: {"compilations": 0, "timeouts": 0}
        # Far from the controller, whose clock then has to be lined up with its own.
        self.outbox.post("hello", 0, f"host-{rank}", "elsewhere")
        self.running: collections.deque[tuple[SampleId, int, float]]
        self.running = collections.deque()
        self.cancelled: set[tuple[SampleId, int]] = set()
        self.version = 0
        self.due, self.last_s, self.decoded_s = 0.0, None, 0.0
        self.refs: collections.deque[Any] = collections.deque(maxlen=4)

    # What it is told.

    def do(self, batch: bytes, refs: list[Any]) -> None:
        _, commands = wire.from_bytes(batch)
        for name, values, first, num in commands:
            do = self.learn if name == "learn" else getattr(self, name, self.ignore)
            do(values, refs[first : first + num])

    def ignore(self, _values, _refs) -> None:
        pass

    def begin(self, values, _refs) -> None:
        self.outbox.begin(values[0])

    def load(self, values, _refs) -> None:
        self.version = values[0]
        self.outbox.post("loaded", values[0], time.monotonic())

    def admit(self, values, _refs) -> None:
        sample, attempt = SampleId(*values[0][0]), values[0][1]
        now_s = time.monotonic()
        self.running.append((sample, attempt, now_s))
        self.last_s = self.last_s or now_s
        self.event(SampleStarted(now_s=now_s, id=sample, attempt=attempt))

    def cancel(self, values, _refs) -> None:
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

    def finish(self, sample, attempt, start_s, now_s) -> None:
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
        event = SampleFinished(
            now_s=now_s,
            id=sample,
            attempt=attempt,
            num_tokens=TOKENS,
            version_min=self.version,
        )
        whole: Any = Completion()
        self.outbox.post("finished", wire.plain(event), False, sample=whole)
        score = Score(value=float(sample.sample % 2), parts={"answer": 1.0})
        plain = wire.plain(score)
        self.outbox.post("score", wire.plain(sample), attempt, plain)

    def event(self, event) -> None:
        self.outbox.post("event", type(event).__name__, wire.plain(event))

    # As the learner.

    def learn(self, values, _refs) -> None:
        self.offer(values[2])

    def offer(self, version) -> None:
        offer = Offer(manifest="{}", tickets={"p": ("ray", ray.put(b"weights"))})
        trained, named = offers.plain(offer)
        now_s = time.monotonic()
        self.outbox.post("weights", version, "run", now_s, trained, 1, None, refs=named)

    def accumulate(self, values, refs) -> None:
        update, groups = values
        start_s = time.monotonic()
        # They are there, and stay until the next ones are.
        self.refs.append(ray.get(refs))
        ids = tuple(GroupId(*group[0]) for group in groups)
        now_s = time.monotonic()
        self.outbox.interval("learner", "accumulate", start_s, now_s, update=update)
        self.event(GroupsAccumulated(now_s=now_s, groups=ids, update=update))

    def step(self, values, _refs) -> None:
        update, groups = values[0]
        rows = [[uid, draw, [0.5] * 8] for uid, draw in groups]
        metrics = {f"loss/{number}": 0.5 for number in range(40)}
        event = UpdateStepped(now_s=time.monotonic(), update=update)
        self.outbox.post("stepped", wire.plain(event), metrics, rows)

    def publish(self, values, _refs) -> None:
        self.offer(values[0])

    def save(self, values, _refs) -> None:
        self.event(CheckpointDurable(now_s=time.monotonic(), updates=values[0]))

    def rest(self, _values, _refs) -> None:
        self.outbox.post("done", "rest")


class Hosts:
    """Several hosts in one process."""

    def __init__(self, load: Load):
        self.load = load
        self.hosts: dict[str, Host] = {}
        payload = bytes(load.sample_bytes)
        # Encoding is the sampler's work, and not what is measured.
        mock.patch.object(outboxes, "wire", _Wire(payload)).start()
        threading.Thread(target=self.run, daemon=True).start()

    def hire(self, name, epoch, rank):
        self.hosts[name] = Host(epoch, self.load, rank)

    def run(self):
        pause = threading.Event()
        while not pause.wait(TICK_S):
            for host in list(self.hosts.values()):
                host.tick(time.monotonic())

    @ray.method(concurrency_group="commands")
    def do(self, name, batch, refs):
        self.hosts[name].do(batch, refs)

    @ray.method(concurrency_group="messages", num_returns=3)
    def drain(self, name, timeout_s, linger_s):
        return self.hosts[name].outbox.take(timeout_s, linger_s)


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
        self.drain = _Method(actor.drain, name)


class _Method:
    def __init__(self, method, name):
        self.method, self.name = method, name

    def remote(self, *args):
        return self.method.remote(self.name, *args)
