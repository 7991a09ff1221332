"""One process of a worker as the controller has it: told what to do, heard, ended."""

import contextlib
import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Container, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.cluster import contact
from jigsaw_jax.runtime.cluster.desk import home
from jigsaw_jax.runtime.cluster.head import Place
from jigsaw_jax.runtime.cluster.tables import Admitted
from jigsaw_jax.runtime.lines.line import Line

LEARNER = "learner"
SAMPLER = "sampler-"
# How long a worker holds an empty batch back.
DRAIN_S = 1.0
# Batches that a worker may send before it is asked again.
CREDIT = 64
# How long after it has sent weights a life that is not the first waits for more
# samplers than one: their engines are warm, and weights take seconds.
GATHER_S = 10.0


@dataclasses.dataclass(eq=False)
class Unsent:
    """What waits for a flush, of all workers.

    hands: those who have commands.
    """

    hands: list["Hand"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Hand:
    """One life of one worker.

    worker: this life of it, as the pipeline knows it.
    name: stays over its lives.
    role: "sample" or "train"; "help" where a sampler has turned to gradients.
    incarnation: counts its lives from 1.
    place: where it runs.
    handle: Ray's.
    version: of the weights that it has; -1 before the first.
    wanted: of those that it was sent.
    is_joined: whether the pipeline knows it.
    is_warm: whether it was up in a life of the control loop before this one.
    is_failed: whether a thread of its has died.
    made_good: why the one was lost whose place it has, if that is still to be counted.
    pid: of its process; 0 until heard.
    host: its name.
    offset_s: to add to its clock.
    facts: what it counts.
    hired_s: when it was, or was told of a life of the control loop.
    sent_s: when it was last sent weights.
    is_lost: whether this life is over.
    marked_s: when the log last said that it lives.
    is_near: whether it is on this host.
    called: Ray's name of it, by which other workers find it; empty where none does.
    ticket: by which its line is known.
    line: to it, once it has come.
    life: reference that tells why its process has ended.
    asked_s: when it was last asked for batches.
    heard_s: since when its next batch is waited for.
    credit: batches that it was asked for and that have not come.
    others: processes of the slice behind the first, which is this one.
    first: of the slice, where this is one of the others.
    unsent: what all of the fleet hold back.
    """

    name: str
    role: str
    incarnation: int
    place: Place
    handle: Any = None
    version: int = -1
    wanted: int = -1
    is_joined: bool = False
    is_warm: bool = False
    is_failed: bool = False
    made_good: str = ""
    pid: int = 0
    host: str = ""
    offset_s: float = 0.0
    facts: dict[str, int] = dataclasses.field(default_factory=dict)
    hired_s: float = 0.0
    sent_s: float = 0.0
    is_lost: bool = False
    marked_s: float = 0.0
    is_near: bool = False
    called: str = ""
    ticket: str = ""
    line: Line | None = None
    life: Any = None
    asked_s: float = 0.0
    heard_s: float = 0.0
    credit: int = 0
    others: list["Hand"] = dataclasses.field(default_factory=list)
    first: "Hand | None" = None
    unsent: "Unsent" = dataclasses.field(default_factory=lambda: Unsent())
    _sequence: int = 0
    _commands: list[Any] = dataclasses.field(default_factory=list)
    _refs: list[Any] = dataclasses.field(default_factory=list)
    _prompts: dict[str, bytes] = dataclasses.field(default_factory=dict)
    _rows: list[Admitted] | None = None
    _early: list[bytes] = dataclasses.field(default_factory=list)
    _attaching: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """What goes to another life of the worker is not for this one."""
        self.worker = f"{self.name}/{self.incarnation}"

    @property
    def whole(self) -> "Hand":
        """The worker that it is a process of: the first process stands for it."""
        return self.first or self

    @property
    def label(self) -> str:
        """Which host of a slice it is, for a reason; nothing where there is one."""
        hosts = [self.whole, *self.whole.others]
        return f"host {hosts.index(self)}: " if len(hosts) > 1 else ""

    @property
    def is_up(self) -> bool:
        """Whether it has built what it works with."""
        return self.is_joined or self.version >= 0

    def command(self, name: str, *values: Any, refs: Sequence[Any] = ()) -> None:
        """Hold a command back until `flush`; values are plain."""
        if not self._commands:
            self.unsent.hands.append(self)
        self._rows = None
        self._commands.append([name, list(values), len(self._refs), len(refs)])
        self._refs.extend(refs)

    def admit(self, row: Admitted, prompt: bytes) -> None:
        """Hold an admission back; those between two other commands go as one.

        Every batch has the prompts of its own admissions. Whoever listens flushes
        too, between two of a group: whoever counts from turn to turn of the control
        loop sends the second without a prompt.

        Args:
          row: what is told.
          prompt: as `Letters` writes it.
        """
        self._prompts[row.uid] = prompt
        if self._rows is None:
            rows: list[Admitted] = []
            self.command("admit", rows)
            self._rows = rows
        self._rows.append(row)

    def flush(self) -> None:
        """Send what was held back, in one frame."""
        if not self._commands:
            return
        if self._prompts:
            told = ["prompts", [list(self._prompts.values())], 0, 0]
            self._commands.insert(0, told)
            self._prompts.clear()
        self._rows = None
        self._sequence += 1
        batch = wire.to_bytes([self._sequence, self._commands])
        refs, self._commands, self._refs = self._refs, [], []
        if refs:
            # Objects of Ray's go by a call of Ray's; the number keeps the order.
            self.handle.do.remote(batch, refs)
            return
        with self._attaching:
            if self.line is None:
                self._early.append(batch)
            else:
                self.line.post(contact.do(), batch)

    def attach(self, line: Line) -> None:
        """Its line is there: what it was told before goes out, and it is asked."""
        with self._attaching:
            self.line = line
            for batch in self._early:
                line.post(contact.do(), batch)
            self._early.clear()

    def kill(self) -> None:
        """End its processes, also one that is stopped."""
        for other in self.others:
            other.kill()
        if self.is_near and self.pid:
            # Ray need not be asked, which would wait where its head has ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.handle, no_restart=True)

    def greet(self, pid: int, host: str, its_home: str) -> None:
        """Take in who it is."""
        self.pid, self.host, self.is_near = pid, host, its_home == home()

    def row(self, slots: int) -> dict[str, Any]:
        """As the summary lists it; `slots` are a sampler's."""
        return {
            "name": self.name,
            "pid": self.pid,
            "host": self.host,
            "hosts": 1 + len(self.others),
            "role": "sample+train" if self.role == "help" else self.role,
            "version": self.version,
            "slots": slots if self.role == "sample" else 0,
            "restarts": self.incarnation - 1,
            "compilations": self.facts.get("compilations", 0),
        }

    def heard(self, now_s: float, linger_s: float) -> None:
        """A batch is here: ask for more when few are left, or now and then.

        Being asked tells a worker that somebody hears it.
        """
        self.heard_s = now_s
        self.credit -= 1
        if self.credit <= CREDIT // 2 or now_s - self.asked_s >= DRAIN_S:
            self.ask(now_s, linger_s)

    def ask(self, now_s: float, linger_s: float) -> None:
        """Ask for batches; what follows the first message of one so soon comes with it.

        Args:
          now_s: on the controller's clock.
          linger_s: how soon.
        """
        assert self.line is not None, "a process is asked when its line is there"
        num, self.asked_s, self.credit = CREDIT - self.credit, now_s, CREDIT
        self.line.post(contact.ask(num, DRAIN_S, linger_s))


def index_of(name: str) -> int:
    """Number of a worker, by its name; the learner is 0, and sampler-0 is 1."""
    return 0 if name == LEARNER else 1 + int(name.removeprefix(SAMPLER))


def free_name(taken: Container[str], wish: str = "") -> str:
    """The wished one, or the first that no sampler has."""
    names = (f"{SAMPLER}{i}" for i in itertools.count())
    names = itertools.chain([wish], names) if wish else names
    return next(name for name in names if name not in taken)


def can_begin(hands: Iterable[Hand], *, epoch: int, now_s: float) -> bool:
    """Whether a life of the control loop can begin with those who are there.

    Args:
      hands: all processes.
      epoch: number of the life, from 1.
      now_s: of the clock by which they were sent weights.

    Returns:
      Whether every sampler has joined; in a later life than the first, one, and no
      other is expected, so that who is cut off holds nobody and joins later.
    """
    samplers = [hand for hand in hands if hand.role == "sample"]
    late = [hand for hand in samplers if not hand.is_joined]
    if epoch > 1:
        late = [hand for hand in late if hand.pid and now_s - hand.sent_s < GATHER_S]
    return not late and any(hand.is_joined for hand in samplers)
