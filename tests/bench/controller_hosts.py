"""Simulated hosts of `tests.bench.controller`: real lines, no engine behind them.

An actor of Ray holds several hosts. A sampler takes the commands of the controller by
a line of its own, says of them what a worker would say, and lets the oldest of its
samples finish at a steady rate; each completion has the same bytes and goes to the
learner's depot, as `Porter` sends them. One thread does that for all samplers of a
process, in the place of `Outbox`: what a sampler's own host computes is not measured,
and shares cores with the controller here. For weights each asks the learner's actor, as
a worker does. The learner has the real parts.
"""

import collections
import concurrent.futures
import dataclasses
import gc
import os
import pathlib
import queue
import selectors
import threading
import time
import traceback
from typing import Any

import ray

from jigsaw_jax.records import (
    CheckpointDurable,
    GroupId,
    GroupsAccumulated,
    UpdateStepped,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import contact, offers, tables
from jigsaw_jax.runtime.cluster.contact import Contact
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.source import GoneError, Source
from jigsaw_jax.runtime.lines.depot import Depot, read_keys
from jigsaw_jax.runtime.lines.door import dial
from jigsaw_jax.runtime.lines.line import Line
from jigsaw_jax.runtime.threads import ThreadFailed
from jigsaw_jax.runtime.weights import Offer

TICK_S = 0.005
DECODE_S = 0.05
TOKENS = 1500
DIAL_S = 60.0
ANSWER_S = 60.0
# That ask for weights at a time, in a process.
ASKING = 4
FORMS = [["decode", "active", "tokens", "worker"]]
FACTS = {"compilations": 0, "timeouts": 0}


def failed(thread: ThreadFailed) -> None:
    """The bench ends where a worker would."""
    traceback.print_exception(thread.error)
    os._exit(1)


@dataclasses.dataclass(frozen=True)
class Load:
    """What the hosts do together.

    samples_per_s: that finish on each sampler.
    sample_bytes: of each completion.
    cores: that their processes may use.
    """

    samples_per_s: float
    sample_bytes: int
    cores: frozenset[int]


def keep_to(cores: frozenset[int]) -> None:
    """Have all threads of this process, and those that they start, use these cores."""
    for thread in pathlib.Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


class Commands:
    """Batches in the order of their numbers, however they come."""

    def __init__(self, **does: Any):
        self.does = does
        self.number, self.early = 0, {}

    def take(self, batch: bytes) -> None:
        number, commands = wire.from_bytes(batch)
        self.early[number] = commands
        while due := self.early.pop(self.number + 1, None):
            self.number += 1
            for name, values, _, _ in due:
                if name in self.does:
                    self.does[name](values)


class Sampler:
    """One sampler; every method but `fetch` is called from its process's loop.

    `beside` has a call made beside the loop, and what that returns called by the loop.
    """

    def __init__(self, charter: dict[str, Any], load: Load, rank: int, beside: Any):
        self.rates = load
        self.beside = beside
        self.source, self.has_frozen = Source(ANSWER_S), False
        self.token, self.worker = charter["token"], charter["worker"]
        self.epoch = charter["epoch"]
        self.commands = Commands(load=self.load_weights, admit=self.admit)
        self.line = dial(
            tuple(charter["door"]), self.token, charter["ticket"], within_s=DIAL_S
        )
        self.depot: Line | None = None
        self.payload = bytes(load.sample_bytes)
        self.running: collections.deque[tuple[Any, ...]] = collections.deque()
        self.version, self.places = 0, 0
        self.due, self.last_s, self.decoded_s = 0.0, 0.0, 0.0
        self.credit, self.sent_s, self.waits_s = 0, time.monotonic(), (1.0, 0.0)
        self.first_s: float | None = None
        self.said: list[Any] = []
        self.rows: dict[str, list[Any]] = {kind: [] for kind in tables.ROWS}
        # Far from the controller, whose clock then has to be lined up with its own.
        self.say(["hello", 0, f"host-{rank}", "elsewhere"], time.monotonic())

    def say(self, message: list[Any], now_s: float) -> None:
        self.said.append(message)
        self.first_s = self.first_s or now_s

    def tell(self, now_s: float, kind: str, *row: Any) -> None:
        self.rows[kind].append(row)
        self.first_s = self.first_s or now_s

    # What it is told.

    def read(self) -> None:
        for head, body in self.line.arrived():
            name, *values = wire.from_bytes(head)
            if name == contact.DO:
                self.commands.take(body)
            else:
                num, *self.waits_s = values
                self.credit += num

    def load_weights(self, values) -> None:
        if self.depot is None:
            address = tuple(values[0])
            self.depot = dial(address, self.token, self.worker, within_s=DIAL_S)
        self.beside(self.fetch, values[1], values[2])

    def fetch(self, learner, version):
        try:
            found = self.source.ask(learner, version, not self.has_frozen)
        except GoneError:
            # As in `SamplerDuty.load`: the next is on its way.
            return lambda: None
        assert all(offer.tickets for offer in found)
        self.has_frozen = True
        return lambda: self.loaded(version)

    def loaded(self, version) -> None:
        self.version, now_s = version, time.monotonic()
        self.say(["loaded", version, now_s], now_s)

    def admit(self, values) -> None:
        now_s = time.monotonic()
        self.last_s = self.last_s or now_s
        for number, _, _, index, *_ in values[0]:
            self.running.append((number, index, now_s))
            self.tell(now_s, "started", number, now_s)

    # What it does.

    def tick(self, now_s: float) -> None:
        """Finish what is due, and say what waits long enough."""
        if self.last_s:
            self.due += (now_s - self.last_s) * self.rates.samples_per_s
            self.last_s = now_s
            self.finish(min(int(self.due), len(self.running)), now_s)
            self.due -= int(self.due)
            if now_s - self.decoded_s > DECODE_S:
                told = self.decoded_s, now_s, len(self.running), 100
                self.said.append(["interval", 0, "sampler", *told, "w"])
                self.decoded_s = now_s
        if self.credit:
            timeout_s, linger_s = self.waits_s
            if self.first_s is None:
                is_due = now_s - self.sent_s > timeout_s
            else:
                # As `Outbox.take` waits: behind the first message that it finds.
                is_due = now_s - max(self.first_s, self.sent_s) > linger_s
            if is_due:
                self.send(now_s)

    def finish(self, num: int, now_s: float) -> None:
        if not num:
            return
        assert self.depot is not None
        numbers = list(range(self.places, self.places + num))
        self.places += num
        put = ["put", numbers, [len(self.payload)] * num]
        self.depot.send(wire.to_bytes(put), self.payload * num)
        for place in numbers:
            number, index, start_s = self.running.popleft()
            span = 3, start_s, now_s
            told = TOKENS, self.version, "stop"
            self.tell(now_s, "finished", number, place, *span, *told)
            score = float(index % 2), {"answer": 1.0}, None
            self.tell(now_s, "scored", number, *score)

    def send(self, now_s: float) -> None:
        told = {kind: rows for kind, rows in self.rows.items() if rows}
        if told:
            self.said.append(["samples", wire.to_bytes(told)])
        head = {
            "epoch": self.epoch,
            "now_s": now_s,
            "facts": FACTS,
            "items": self.said,
            "forms": FORMS,
            "named": 0,
        }
        self.line.send(wire.to_bytes(head))
        self.said, self.first_s, self.sent_s = [], None, now_s
        self.credit -= 1
        self.rows = {kind: [] for kind in tables.ROWS}


class Learner:
    """The one learner; on the threads of its contact and of Ray."""

    def __init__(self, charter: dict[str, Any]):
        self.token = charter["token"]
        self.lock = threading.Lock()
        self.commands = Commands(
            learn=self.learn,
            accumulate=self.accumulate,
            forget=self.forget,
            step=self.step,
            publish=self.publish,
            save=self.save,
            rest=self.rest,
        )
        self.outbox = Outbox(Clock(), charter["epoch"])
        self.outbox.facts = lambda: {"compilations": 0}
        self.outbox.post("hello", 0, "learner", "elsewhere")
        self.depot: Any = None
        Contact(charter, self.outbox, take=self.take, fail=failed, end=lambda: None)

    def take(self, batch: bytes) -> None:
        with self.lock:
            self.commands.take(batch)

    def event(self, event) -> None:
        self.outbox.post("event", type(event).__name__, wire.plain(event))

    def learn(self, values) -> None:
        self.depot = Depot("127.0.0.1", self.token, failed)
        self.offer(values[2], frozen=self.stored(b"base"))

    def stored(self, data):
        tickets = {"p": ("ray", ray.put(data))}
        return offers.put(Offer(manifest="{}", tickets=tickets))

    def offer(self, version, frozen=None) -> None:
        self.outbox.newest.put(version, self.stored(b"weights"), frozen)
        told = "run", time.monotonic(), self.depot.address
        self.outbox.post("weights", version, *told)

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
        # What they do makes no cycles, and looking for some would take from what
        # the controller has of this machine.
        gc.disable()
        keep_to(load.cores)
        self.load = load
        self.selector = selectors.DefaultSelector()
        self.hosts: dict[str, Any] = {}
        # What other threads want of the loop.
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.threads = concurrent.futures.ThreadPoolExecutor(ASKING)
        threading.Thread(target=self.run, daemon=True).start()

    def hire(self, charter, rank):
        name = charter["name"]
        if name == "learner":
            self.hosts[name] = Learner(charter)
            return
        sampler = Sampler(charter, self.load, rank, self.beside)
        self.hosts[name] = sampler
        self.selector.register(sampler.line, selectors.EVENT_READ, sampler)

    def beside(self, function, *args):
        def call():
            try:
                self.calls.put(function(*args))
            except BaseException as error:  # noqa: BLE001
                # The outermost handler of this thread.
                failed(ThreadFailed("weights", error))

        self.threads.submit(call)

    def run(self):
        try:
            while True:
                self.turn()
        except BaseException as error:  # noqa: BLE001
            # The outermost handler of this thread.
            failed(ThreadFailed("hosts", error))

    def turn(self):
        for key, _ in self.selector.select(TICK_S):
            key.data.read()
        while not self.calls.empty():
            self.calls.get()()
        for host in list(self.hosts.values()):
            if isinstance(host, Sampler):
                host.tick(time.monotonic())

    @ray.method(concurrency_group="commands")
    def do(self, name, batch, _refs):
        host = self.hosts[name]
        take = host.take if isinstance(host, Learner) else host.commands.take
        self.calls.put(lambda: take(batch))

    @ray.method(concurrency_group="messages")
    def named(self, name, number):
        return self.hosts[name].outbox.named(number)

    @ray.method(concurrency_group="offers")
    def offered(self, version, with_frozen):
        return self.hosts["learner"].outbox.newest.get(version, with_frozen)

    @ray.method(concurrency_group="life")
    def live(self):
        threading.Event().wait()


class Handle:
    """One host's handle, as Ray would give it."""

    # Of all hosts, by whoever has their handles: the controller.
    num_calls = 0

    def __init__(self, actor, name):
        self.actor = actor
        self.do = _Method(actor.do, name)
        self.named = _Method(actor.named, name)
        self.live = actor.live


class _Method:
    def __init__(self, method, name):
        self.method, self.name = method, name

    def remote(self, *args):
        Handle.num_calls += 1
        return self.method.remote(self.name, *args)
