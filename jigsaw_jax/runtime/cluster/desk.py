"""A worker's desk: commands in order on one thread, each to the duty that does it.

    line --queue--> [desk thread] -> SamplerDuty / LearnerDuty -> their own threads
    every error on any of them -> outbox "failed" -> controller

A worker has no role until it is told one, and can be told both. In a slice of several
hosts the first has the worker's desk, and passes on what all of them must do; at the
others' desks that comes in as entries of the slice's log.
"""

import os
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from jigsaw_jax.records import (
    AdmitSample,
    CancelSample,
    PauseSample,
    Prompt,
    SampleId,
    StepUpdate,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.allocator import keep_freed_where_small
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.contact import Contact
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.places import read_prompt
from jigsaw_jax.runtime.cluster.tables import read_admitted
from jigsaw_jax.runtime.lines.depot import FarDepot, read_address, read_keys
from jigsaw_jax.runtime.lines.porter import Porter
from jigsaw_jax.runtime.slice.join import join
from jigsaw_jax.runtime.slice.log import DivergedError, Reader
from jigsaw_jax.runtime.slice.loops import LOOP
from jigsaw_jax.runtime.slice.peers import TELL, Peers
from jigsaw_jax.runtime.threads import CommandThread, ThreadFailed
from jigsaw_jax.runtime.weights.machines import machine
from jigsaw_jax.sample.loop import SampleRequest
from jigsaw_jax.settings import Train

# Heartbeats that nobody has asked for until a worker ends itself.
FORSAKEN_BEATS = 3.0


def wait_until_forsaken(
    outbox: Outbox, limit_s: float, end: Callable[[], None], tick_s: float = 1.0
) -> None:
    """End a worker that is cut off: it was replaced, and its devices are wanted.

    Time counts only while this thread can run: a process that was stopped, or that
    compiles, is not taken for one that nobody asks.

    Args:
      outbox: of the worker.
      limit_s: without anybody asking for messages.
      end: ends the process.
      tick_s: how often it looks.
    """
    idle_s, seen = 0.0, -1
    while idle_s < limit_s:
        threading.Event().wait(tick_s)
        idle_s = idle_s + tick_s if outbox.num_asked == seen else 0.0
        seen = outbox.num_asked
    end()


class Desk:
    """Takes commands and hands them on.

    Args:
      charter: who this worker is, as the controller wrote it.
      others: of its slice, where it is the first of several hosts.

    Attributes:
      outbox: its messages.
      contact: its line to the controller.
      peers: its slice.
    """

    def __init__(self, charter: dict[str, Any], others: Sequence[Any] = ()) -> None:
        self._name = charter["name"]
        self._train: Train = wire.read(Train, charter["train"])
        keep_freed_where_small(self._train)
        self._clock = Clock()
        self.outbox = Outbox(self._clock, charter["epoch"])
        self.peers = Peers(charter["host"], others, num_hosts=charter["num_hosts"])
        self._log = Reader()
        self._lock = threading.Lock()
        self._sequence = 0
        self._early: dict[int, tuple[Any, list[Any]]] = {}
        self._token: str = charter["token"]
        self._worker: str = charter["worker"]
        self._shelf: FarDepot | None = None
        self._prompts: dict[str, Prompt] = {}
        self._sampler: Any = None
        self._learner: Any = None
        self._helper: Any = None
        self._thread = CommandThread("desk", self._failed)
        self._thread.start()
        limit_s = FORSAKEN_BEATS * self._train.cluster.heartbeat_s
        threading.Thread(
            target=wait_until_forsaken,
            args=(self.outbox, limit_s, lambda: os._exit(1)),
            name="forsaken",
            daemon=True,
        ).start()
        self.outbox.post("hello", os.getpid(), socket.gethostname(), home())
        self.contact = Contact(charter, self.outbox, take=self.queue, fail=self._failed)

    def queue(self, batch: bytes, refs: Sequence[Any] = ()) -> None:
        """Queue the commands of a batch; one that came before is let go.

        Those that name objects come by another way, so one may overtake another: it
        waits for its turn.

        Args:
          batch: a number in sequence, and commands with their values.
          refs: objects in Ray's store that they name.
        """
        try:
            self._queue(wire.from_bytes(batch), list(refs))
        except wire.WireError as error:
            # Nobody waits for this call, so that what it raises would be lost.
            self._failed(ThreadFailed("commands", error))

    def _queue(self, batch: Any, refs: list[Any]) -> None:
        sequence, commands = wire.read_list(batch, 2)
        with self._lock:
            if wire.read(int, sequence) <= self._sequence:
                return
            self._early[sequence] = commands, refs
            while due := self._early.pop(self._sequence + 1, None):
                self._sequence += 1
                self._thread.do(self._run, *due)

    def follow(self, entries: bytes, refs: list[Any]) -> None:
        """Take in entries of the slice's log, on a host that is not the first.

        Args:
          entries: number, name, values and places among the objects, of each.
          refs: objects in Ray's store that they name.
        """
        try:
            for entry in wire.read_list(wire.from_bytes(entries)):
                number, *call, first, num = wire.read_list(entry, 5)
                due = self._log.take(number, [*call, refs[first : first + num]])
                for name, values, named in due:
                    if name == TELL:
                        key, told = values
                        self.peers.put(key, told, named)
                    else:
                        self._thread.do(self._run_one, name, values, named)
        except (wire.WireError, DivergedError) as error:
            # Nobody waits for this call's answer.
            self._failed(ThreadFailed("log", error))

    def leave(self) -> None:
        """Say that this host is about to go."""
        self.outbox.post("leaving")

    def _run(self, commands: Any, refs: list[Any]) -> None:
        for command in wire.read_list(commands):
            name, values, first, num = wire.read_list(command, 4)
            named = refs[first : first + num]
            if name in _OF_ALL_HOSTS:
                # What is saved beside the arrays concerns the first host alone.
                told = [values[0], {}, values[2]] if name == "save" else values
                self.peers.write(name, *told, refs=named)
            self._run_one(name, values, named)
        self._prompts.clear()

    def _run_one(self, name: str, values: list[Any], refs: list[Any]) -> None:
        if name not in _COMMANDS:
            raise wire.WireError(f"command must be known, got {name!r}")
        _COMMANDS[name](self, values, refs)

    def _failed(self, failed: ThreadFailed) -> None:
        lines = traceback.format_exception(failed.error)
        kind = type(failed.error).__name__
        self.outbox.post(
            "failed", failed.thread, kind, str(failed.error), "".join(lines)
        )

    # Commands.

    def _begin(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        epoch = wire.read(int, values[0])
        if self._sampler is not None:
            self._sampler.reset(epoch)
        else:
            self.outbox.begin(epoch)

    def _sample(self, values: list[Any], refs: list[Any]) -> None:
        del values, refs
        join(self.peers, self._train)
        if not self.peers.leads:
            self._follow_sampler()
            return
        from jigsaw_jax.runtime.cluster.sampler_duty import SamplerDuty

        self._sampler = SamplerDuty(
            self._train,
            self._name,
            peers=self.peers,
            outbox=self.outbox,
            porter=Porter(self._worker, self._token, self._failed),
            clock=self._clock,
            fail=self._failed,
        )

    def _follow_sampler(self) -> None:
        from jigsaw_jax.runtime.cluster.sampler_follower import SamplerFollower

        self._sampler = SamplerFollower(
            self._train,
            self._name,
            peers=self.peers,
            clock=self._clock,
            fail=self._failed,
        )

    def _loop(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._sampler.follow(values)

    def _learn(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        from jigsaw_jax.runtime.cluster.learner_duty import LearnerDuty

        join(self.peers, self._train)
        run_dir, step, version = values
        self._learner = LearnerDuty(
            self._train,
            run_dir=wire.read(str, run_dir),
            step=wire.read(int | None, step),
            version=wire.read(int, version),
            peers=self.peers,
            outbox=self.outbox,
            token=self._token,
            fail=self._failed,
        )

    def _help(self, values: list[Any], refs: list[Any]) -> None:
        del values, refs
        from jigsaw_jax.runtime.cluster.helper_duty import HelperDuty

        self._helper = HelperDuty(
            self._train,
            self._name,
            outbox=self.outbox,
            clock=self._clock,
            fail=self._failed,
        )

    def _load(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        depot, *message = values
        address = read_address(depot)
        is_new = self._sampler.load(message, address)
        if self._helper is not None and self._sampler.has_weights:
            # What is sent again, for others, is older than what it has borrowed since.
            if is_new:
                self._helper.follow(self._sampler.weights(), self._sampler.version)
            if self._shelf is None or self._shelf.address != address:
                self._shelf = FarDepot(address, self._token, self._worker)

    def _again(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._learner.again(wire.read(int, values[0]))

    def _take_prompts(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        prompts = map(read_prompt, wire.read_list(values[0]))
        self._prompts.update((prompt.uid, prompt) for prompt in prompts)

    def _admit(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        for row in read_admitted(values[0]):
            effect = AdmitSample(
                id=SampleId(row.uid, row.draw, row.sample),
                attempt=row.attempt,
                worker=self._worker,
                version=row.version,
                is_resumed=row.is_resumed,
            )
            self._sampler.admit(row.number, effect, self._prompts[row.uid])

    def _cancel(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._sampler.cancel(wire.read(CancelSample, values[0]))

    def _pause(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._sampler.pause(wire.read(PauseSample, values[0]))

    def _guest(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._sampler.guest(wire.read(SampleRequest, values[0]))

    def _accumulate(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        update, groups = values
        if self._learner is not None:
            self._learner.accumulate(wire.read(int, update), groups)
        else:
            self._helper.accumulate(wire.read(int, update), groups, self._shelf)

    def _forget(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._learner.forget(read_keys(values[0]))

    def _hand_in(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._helper.hand_in(wire.read(int, values[0]))

    def _lend(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._learner.lend(wire.read(int, values[0]))

    def _borrow(self, values: list[Any], refs: list[Any]) -> None:
        self._helper.borrow(values[0], refs)

    def _add(self, values: list[Any], refs: list[Any]) -> None:
        num_trained, names = values
        self._learner.add(wire.read(int, num_trained), names, refs)

    def _step(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._learner.step(wire.read(StepUpdate, values[0]))

    def _publish(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._learner.publish(wire.read(int, values[0]))

    def _save(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        updates, record, is_final = values
        self._learner.save(wire.read(int, updates), record, is_final=bool(is_final))

    def _export(self, values: list[Any], refs: list[Any]) -> None:
        del refs
        self._learner.export(wire.read(str, values[0]))

    def _rest(self, values: list[Any], refs: list[Any]) -> None:
        del values, refs
        self._learner.rest()


Command = Callable[[Desk, list[Any], list[Any]], None]
_COMMANDS: dict[str, Command] = {
    "begin": Desk._begin,
    "sample": Desk._sample,
    "learn": Desk._learn,
    "help": Desk._help,
    "load": Desk._load,
    LOOP: Desk._loop,
    "again": Desk._again,
    "prompts": Desk._take_prompts,
    "admit": Desk._admit,
    "cancel": Desk._cancel,
    "pause": Desk._pause,
    "guest": Desk._guest,
    "accumulate": Desk._accumulate,
    "forget": Desk._forget,
    "hand_in": Desk._hand_in,
    "lend": Desk._lend,
    "borrow": Desk._borrow,
    "add": Desk._add,
    "step": Desk._step,
    "publish": Desk._publish,
    "save": Desk._save,
    "export": Desk._export,
    "rest": Desk._rest,
}


# What the hosts of a slice do together, in the order in which the first was told.
_OF_ALL_HOSTS = frozenset(
    {
        "sample",
        "load",
        "learn",
        "accumulate",
        "add",
        "step",
        "publish",
        "again",
        "save",
        "export",
    }
)


def home() -> str:
    """Equal for processes that share a monotonic clock and each other's pids."""
    return machine() or socket.gethostname()
