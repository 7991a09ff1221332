"""The worker processes as the controller sees them: hired, heard, lost.

    hire -> starting --message--> heard --silence, death--> lost (killed) -> on_loss
                                    ^ |
            one listens to all lines: a batch, if need be empty, is the heartbeat

A worker may be a slice of several hosts, a process each. The first is the one that is
told and heard; the others only say that they live, and the loss of one is the loss of
the worker: all its processes are killed.

A process that says nothing for `heartbeat_s` is killed before it is called lost, so one
that wakes up later can do no harm; what it said before is of an earlier incarnation.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    RayError,
)

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import actor
from jigsaw_jax.runtime.cluster.batch import Batch
from jigsaw_jax.runtime.cluster.endings import WorkerFailedError, is_fault, reason_of
from jigsaw_jax.runtime.cluster.hand import DRAIN_S, Hand, Unsent
from jigsaw_jax.runtime.cluster.head import Place
from jigsaw_jax.runtime.cluster.listening import Listening
from jigsaw_jax.runtime.cluster.outbox import LASTING
from jigsaw_jax.runtime.cluster.switchboard import Switchboard, make_ticket
from jigsaw_jax.runtime.lines.line import LineClosedError
from jigsaw_jax.runtime.threads import ThreadFailed
from jigsaw_jax.settings import Train

# How long a batch waits for more behind its first message: of one worker, for each
# worker more, and at most.
LINGER_S = 0.001
LINGER_MORE_S = 0.0004
LINGER_MAX_S = 0.012
# Of that, from one time that all are heard to the next.
PAUSE = 0.8
# How often hosts that have joined are looked for, and how often Ray itself.
LOOK_S = 5.0
CHECK_S = 0.5
# In which Ray tells why processes whose lines have ended at a time did.
WHY_S = 2.0
# In which a process says its first word, once Ray is asked for it.
HELLO_S = 120.0
# Errors of a host whose slice has lost another one, by their names: the program that
# both were in, or word to it.
BROKEN = frozenset(
    {"JaxRuntimeError", "XlaRuntimeError", "HostLostError", "CarrierError"}
)


class Fleet:
    """Every worker of the run, and what they say.

    Args:
      train: the run.
      clock: of the controller.
      check: called twice a second; raises where Ray itself has ended.
      host: address of this one, at which workers call.
      environment: that workers start with.

    Attributes:
      token: that every process of the run shares.
      listening: to them all.
      hands: those that live, by name.
      lives: how many each name has had.
      epoch: which life of the control loop is under way.
      num_stale: batches of an earlier epoch that were let go.
      losses: workers lost since the last update.
    """

    def __init__(
        self,
        train: Train,
        clock: Clock,
        *,
        check: Callable[[], None],
        host: str,
        environment: Mapping[str, str],
    ) -> None:
        self._train = train
        self._environment = environment
        self._board = Switchboard(host, self._ask)
        self.token = self._board.token
        self._clock = clock
        self._head_check = check
        self._checked_s = 0.0
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self.listening = Listening(
            clock,
            self._hear_all,
            pause_s=lambda: PAUSE * self._linger_s,
            fail=self._fail,
        )
        self._plain = wire.plain(train)
        self.hands: dict[str, Hand] = {}
        self.lives: dict[str, int] = {}
        self.epoch = 0
        self.num_stale = 0
        self.losses = 0
        self.on_batch: Callable[[Hand, Batch], None]
        self.on_loss: Callable[[Hand, str], None]
        self.on_error: Callable[[ThreadFailed], None]
        self.on_look: Callable[[], None]
        self.on_heard: Callable[[], None]
        self._looked_s = 0.0
        self._why_s = WHY_S
        self._unsent = Unsent()

    def listen(
        self,
        on_batch: Callable[[Hand, Batch], None],
        on_loss: Callable[[Hand, str], None],
        on_error: Callable[[ThreadFailed], None],
        on_look: Callable[[], None],
        on_heard: Callable[[], None],
    ) -> None:
        """Say who is told, by whoever listens, from a new epoch on.

        Args:
          on_batch: takes a worker and its messages.
          on_loss: takes a worker and why it is lost; it is dead by then.
          on_error: takes that behind which nothing is heard any more.
          on_look: called every few seconds.
          on_heard: called behind all that has come at a time.
        """
        # First, so that a batch of the epoch before does not come to who is told now.
        self.epoch += 1
        self.on_batch, self.on_loss, self.on_error = on_batch, on_loss, on_error
        self.on_look, self.on_heard = on_look, on_heard
        self.listening.start()

    def hire(self, name: str, role: str, place: Place, index: int) -> Hand:
        """Start a process; its first word comes when it is up.

        Args:
          name: of the worker.
          role: what it will do.
          place: where.
          index: of the worker, for its cores.

        Returns:
          Its new life.
        """
        self.lives[name] = self.lives.get(name, 0) + 1
        others = [
            self._start(name, role, place, index=index, host=host)
            for host in range(1, len(place.nodes))
        ]
        hand = self._start(name, role, place, index=index, host=0, others=others)
        with self._lock:
            self.hands[name] = hand
        return hand

    def _start(
        self,
        name: str,
        role: str,
        place: Place,
        *,
        index: int,
        host: int,
        others: Sequence[Hand] = (),
    ) -> Hand:
        """One process of a worker; the first comes last, since it knows the others."""
        ticket = make_ticket()
        charter = {
            "name": name,
            "worker": f"{name}/{self.lives[name]}",
            "door": self._board.address,
            "token": self.token,
            "ticket": ticket,
            "epoch": self.epoch,
            "train": self._plain,
            "cores": self._cores(index, host),
            "environment": dict(self._environment),
            "host": host,
            "num_hosts": len(place.nodes),
        }
        hand = Hand(name, role, self.lives[name], place)
        for other in others:
            other.first = hand
            hand.others.append(other)
        options = place.options(host)
        if role == "train" and host == 0:
            # Another run in the same Ray may have a worker of this life, too.
            hand.called = f"{charter['worker']} {make_ticket()}"
            options = {**options, "name": hand.called}
        hand.unsent = self._unsent
        hand.hired_s = hand.heard_s = self._clock.now_s()
        # It may call before Ray has returned.
        self._board.expect(ticket, hand)
        hand.handle = actor.make(
            options,
            json.dumps(charter).encode(),
            [other.handle for other in others],
        )
        hand.life = hand.handle.live.remote()
        return hand

    def _ask(self, hand: Hand) -> None:
        hand.heard_s = self._clock.now_s()
        hand.ask(hand.heard_s, self._linger_s)

    def flush(self) -> None:
        """One frame to each worker that has commands; for one thread at a time."""
        while self._unsent.hands:
            self._unsent.hands.pop().flush()

    @property
    def _linger_s(self) -> float:
        """More workers are each heard less often: an answer costs as much as many."""
        return min(LINGER_S + LINGER_MORE_S * len(self.hands), LINGER_MAX_S)

    def retire(self, hand: Hand) -> None:
        """End a worker without calling it lost."""
        with self._lock:
            hand.is_lost = True
            if self.hands.get(hand.name) is hand:
                del self.hands[hand.name]
        hand.kill()
        for one in (hand, *hand.others):
            self._board.hang_up(one)

    def close(self) -> None:
        """End every worker and the thread."""
        self._closing.set()
        self._board.close()
        for hand in list(self.hands.values()):
            self.retire(hand)
        self.listening.close()

    def _cores(self, index: int, host: int) -> list[int]:
        cluster = self._train.cluster
        number = index * max(cluster.learner_hosts, cluster.sampler_hosts, 1) + host
        return [cluster.cores[number % len(cluster.cores)]] if cluster.cores else []

    def _processes(self) -> list[Hand]:
        # Others hire meanwhile.
        hands = list(self.hands.values())
        return [one for hand in hands for one in (hand, *hand.others)]

    # Listening.

    def _fail(self, failed: ThreadFailed) -> None:
        if not self._closing.is_set():
            self.on_error(failed)

    def _hear_all(self, timeout_s: float) -> None:
        """What has come, or comes within this time; and who has ended."""
        self._why_s = WHY_S
        for hand in self._board.ready(timeout_s):
            self._hear(hand)
        now_s = self._clock.now_s()
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            self._head_check()
            self._check_lives()
            self._check_silent(now_s)
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self.on_look()
        self.on_heard()

    def _check_lives(self) -> None:
        """Lose those of which Ray says that they have ended."""
        lives = {hand.life: hand for hand in self._processes()}
        if lives:
            ended, _ = ray.wait(list(lives), num_returns=len(lives), timeout=0)
            for life in ended:
                self._lose(lives[life], self._why(lives[life], 0.0))

    def _why(self, hand: Hand, within_s: float) -> str:
        """What Ray says of a process that has ended; raises what its own code did."""
        try:
            ray.get(hand.life, timeout=within_s)
        except GetTimeoutError:
            return hand.label + "its line has ended"
        except RayError as error:
            if is_fault(error):
                raise WorkerFailedError(f"in {hand.name}: {error}") from error
            return hand.label + reason_of(error)
        return hand.label + "its process has ended"

    def _check_silent(self, now_s: float) -> None:
        """Lose those that say nothing, and those that don't get ready."""
        for hand in self._processes():
            silent_s = self._silent_s(hand)
            if now_s - hand.heard_s > silent_s:
                self._lose(hand, f"{hand.label}silent for {silent_s:g} s")
        startup_s = self._train.cluster.startup_s
        for hand in list(self.hands.values()):
            if not hand.is_up and now_s - hand.hired_s > startup_s:
                self._lose(hand, f"not ready in {startup_s:g} s")

    def _silent_s(self, hand: Hand) -> float:
        """How long its answer may be waited for."""
        cluster = self._train.cluster
        if hand.whole.is_up or hand.whole.is_warm:
            return DRAIN_S + cluster.heartbeat_s
        return DRAIN_S + (cluster.building_s if hand.pid else HELLO_S)

    def _hear(self, hand: Hand) -> None:
        if hand.whole.is_lost or hand.line is None:
            return
        try:
            frames = hand.line.arrived()
        except LineClosedError:
            asked_s = self._clock.now_s()
            reason = self._why(hand, self._why_s)
            self._why_s = max(self._why_s - (self._clock.now_s() - asked_s), 0.0)
            self._lose(hand, reason)
            return
        for head, body in frames:
            self._take(hand, head, body)

    def _take(self, hand: Hand, data: bytes, body: bytes) -> None:
        head, on_batch = wire.from_bytes(data), self.on_batch
        now_s = self._clock.now_s()
        hand.facts = head["facts"]
        hand.heard(now_s, self._linger_s)
        items = self._news(hand, head, now_s)
        worker = hand.whole
        told = items if worker.others else []
        broken = [item[3] for item in told if _is_broken(item)]
        if broken:
            self._lose(hand, hand.label + broken[0])
        if worker.is_lost:
            return
        number, within_s = head["named"], self._train.cluster.heartbeat_s
        batch = Batch(
            items=items,
            forms=head["forms"],
            body=body,
            named=lambda: ray.get(hand.handle.named.remote(number), timeout=within_s),
        )
        try:
            on_batch(worker, batch)
        except RayError as error:
            # It spoke, and was cut off before what it spoke of could be fetched.
            self._lose(hand, hand.label + reason_of(error))

    def _news(self, hand: Hand, head: dict[str, Any], now_s: float) -> list[Any]:
        """The messages of a batch, as far as they are of this epoch."""
        items = wire.read_list(head["items"])
        for item in items:
            if item[0] == "hello":
                hand.greet(*item[1:4])
        if not hand.is_near:
            # Of the one-way delays the shortest says most about the clocks.
            ahead_s = now_s - head["now_s"]
            hand.offset_s = min(ahead_s, hand.offset_s or ahead_s)
        if hand.first is not None or head["epoch"] != self.epoch:
            self.num_stale += hand.first is None
            items = [item for item in items if item[0] in LASTING]
        return items

    def _lose(self, hand: Hand, reason: str) -> None:
        hand = hand.whole
        if hand.is_lost:
            return
        # With Ray all workers end, and no other can be hired.
        self._head_check()
        self.retire(hand)
        if not self._closing.is_set():
            self.on_loss(hand, reason)


def _is_broken(item: list[Any]) -> bool:
    """Whether a host failed of what it does when another of its slice is gone."""
    return item[0] == "failed" and item[2] in BROKEN
