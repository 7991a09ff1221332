"""Who works, in which role and with which weights; who joins, and who is lost.

    sampler: hired -> compiled -> loaded (current weights) -> joined -> lost -> hired
    learner: hired -> learns --weights--> every sampler -> VersionPublished
             lost: the run goes on from its last checkpoint, with the samplers it has

A sampler joins the pipeline only with the weights that are served, so a replacement
never samples with older ones.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from jigsaw_jax import records
from jigsaw_jax.runtime.cluster.endings import error_of
from jigsaw_jax.runtime.cluster.fleet import Fleet
from jigsaw_jax.runtime.cluster.hand import LEARNER, Hand, free_name, index_of
from jigsaw_jax.runtime.cluster.head import Place
from jigsaw_jax.runtime.cluster.offers import Weights
from jigsaw_jax.runtime.cluster.publishing import Publishing
from jigsaw_jax.runtime.cluster.sites import Sites
from jigsaw_jax.runtime.crew import CrewLostError
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.runtime.threads import ThreadFailed

# How often the log says that a worker lives.
BEAT_S = 5.0
# How often weights are sent again in a run.
TRIES_MAX = 20


class Roster:
    """Keeps the workers of one life of the control loop; from any thread, locked.

    Args:
      seat: of the crew.
      fleet: the processes.
      sites: where they may run.

    Attributes:
      lock: held for every change, here and in the crew.
      flush: sends every command that was held back.
      is_open: whether the pipeline has been told who is there.
      on_lost: told of each sampler that is lost.
      on_joined: told of each that joins.
    """

    def __init__(self, seat: Seat, fleet: Fleet, sites: Sites) -> None:
        self._train = seat.train
        self._fleet = fleet
        self.flush = fleet.flush
        self._sites = sites
        self._journal = seat.record.journal
        self._clock = seat.clock
        self._post = seat.post
        self._published = seat.published
        self._say = seat.progress.say
        self._publishing = Publishing()
        self._failure: BaseException | None = None
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._is_closed = False
        self._tries = 0
        self._is_sent_again = False
        self.is_open = False
        self.on_lost: Callable[[Hand], None] = lambda _: None
        self.on_joined: Callable[[Hand], None] = lambda _: None

    # Who is there.

    def open(self, *, run_dir: str, step: int | None, version: int) -> None:
        """Hire whoever is missing and tell the learner what to go on from.

        Args:
          run_dir: whose checkpoints the learner writes.
          step: updates of the checkpoint, or None.
          version: that the samplers are to have.
        """
        own = self._sites.learner()
        with self.lock:
            # Who is not told that a life begins is not heard in it.
            for hand in self._others():
                self._begin(hand)
            self._fill()
            learner = self._hire(LEARNER, "train", own)
            learner.command("learn", run_dir, step, version)
            learner.flush()

    def _begin(self, hand: Hand) -> None:
        """A sampler that is there already forgets all; its engine is warm."""
        if hand.role != "sample" or hand.is_failed:
            self._fleet.retire(hand)
            self._hire(hand.name, "sample", hand.place)
            return
        hand.is_warm = hand.is_warm or hand.is_up
        hand.is_joined, hand.version, hand.wanted = False, -1, -1
        hand.hired_s = self._clock.now_s()
        hand.command("begin", self._fleet.epoch)
        hand.flush()

    def _fill(self) -> None:
        """Hire wherever a sampler is missing, under the first name that is free."""
        for place in self._vacant():
            self._hire(free_name(self._fleet.hands), "sample", place)
        for reason in self._sites.take_unfit():
            self._say(reason)

    def _vacant(self, wish: Place | None = None) -> list[Place]:
        return self._sites.vacant([one.place for one in self._others()], wish=wish)

    def _hire(self, name: str, role: str, place: Place) -> Hand:
        index = index_of(name)
        hand = self._fleet.hire(name, role, place, index)
        self._mark(hand, "hired", index=index)
        if role == "sample":
            hand.command("sample")
            if self._train.cluster.role_switch_after:
                # Compiled ahead, so that nothing is at the change.
                hand.command("help")
            if self._publishing.weights is not None:
                self._send(hand, self._publishing.weights)
            hand.flush()
        return hand

    @property
    def learner(self) -> Hand:
        """The learner, if need be dead: its loss is told soon."""
        hand = self._fleet.hands.get(LEARNER)
        if hand is None:
            raise CrewLostError("the learner is lost")
        return hand

    def samplers(self) -> list[Hand]:
        """Those that the pipeline knows, in the order of their names."""
        hands = sorted(self._fleet.hands.items())
        return [hand for _, hand in hands if hand.role == "sample" and hand.is_joined]

    def hands(self) -> list[Hand]:
        """Every process that lives."""
        return [hand for _, hand in sorted(self._fleet.hands.items())]

    def _others(self) -> list[Hand]:
        return [hand for hand in self.hands() if hand.role != "train"]

    def find(self, worker: str) -> Hand | None:
        """A life of a worker that the pipeline may know; None where it is over."""
        hand = self._fleet.hands.get(worker.rpartition("/")[0])
        return hand if hand is not None and hand.worker == worker else None

    def joined(self, hand: Hand) -> records.WorkerJoined:
        """What the pipeline is told."""
        return records.WorkerJoined(
            now_s=self._clock.now_s(),
            worker=hand.worker,
            slots=self._train.sampler.slots,
            incarnation=hand.incarnation,
        )

    def settle(self) -> None:
        """The pipeline is told who is there; the weights that they have are served."""
        self.is_open = True
        self._publishing.settle()
        self._switch(self._publishing.version)

    def close(self) -> None:
        """End the learner, and take no more notice of losses."""
        with self.lock:
            self._is_closed = True
            learner = self._fleet.hands.get(LEARNER)
            if learner is not None:
                self._fleet.retire(learner)

    def now_s(self) -> float:
        """Of the controller's clock."""
        return self._clock.now_s()

    def _gone(self, hand: Hand) -> records.WorkerLost:
        return records.WorkerLost(
            now_s=self._clock.now_s(),
            worker=hand.worker,
            incarnation=hand.incarnation,
        )

    # Weights.

    def take_weights(self, offered: Weights) -> None:
        """Send a version to every sampler; it is published when all have it."""
        hands = self._others()
        awaited = [hand.worker for hand in hands if hand.is_joined]
        self._publishing.begin(offered, awaited)
        self._is_sent_again = False
        for hand in hands:
            self._send(hand, offered)
            hand.flush()
        self._publish_when_all_have_it()

    def _send(self, hand: Hand, weights: Weights) -> None:
        hand.wanted, hand.sent_s = weights.version, self._clock.now_s()
        hand.command(
            "load",
            list(weights.depot),
            weights.learner,
            weights.version,
            weights.run,
        )

    def take_unloaded(self, hand: Hand, version: int, reason: str) -> None:
        """A version did not arrive; the learner sends it again, to all who miss it."""
        self._mark(hand, "unloaded", version=version, reason=reason)
        learner = self._fleet.hands.get(LEARNER)
        if version != self._publishing.version or learner is None:
            # Another version is on its way, or will be from another learner.
            return
        if self._is_sent_again:
            return
        self._tries += 1
        if self._tries > TRIES_MAX:
            self.fail(RuntimeError(f"weights don't reach {hand.name}: {reason}"))
            return
        self._is_sent_again = True
        self._say(f"weights are sent to {hand.name} again: {reason}")
        learner.command("again", version)

    def take_loaded(self, hand: Hand, version: int, end_s: float) -> None:
        """A worker has placed a version and decodes with it."""
        hand.version = version
        self._mark(hand, "loaded", version=version)
        if version == hand.wanted and not hand.is_joined and hand.role == "sample":
            self._join(hand)
        if version == self._publishing.version:
            self._publishing.drop(hand.worker)
            self._publish_when_all_have_it(end_s)
        self.changed.notify_all()

    def _join(self, hand: Hand) -> None:
        hand.is_joined = True
        self._mark(hand, "joined", slots=self._train.sampler.slots)
        if self.is_open:
            self._post(self.joined(hand))
        self.on_joined(hand)

    def _publish_when_all_have_it(self, end_s: float | None = None) -> None:
        weights = self._publishing.take_done() if self.is_open else None
        if weights is not None:
            self._switch(weights.version)
            end_s = self._clock.now_s() if end_s is None else end_s
            self._published(weights.version, weights.start_s, end_s)

    # Roles.

    def _switch(self, version: int) -> None:
        """Between two rounds, let the first sampler turn to gradients for good."""
        after = self._train.cluster.role_switch_after
        samplers = self.samplers()
        has_helper = any(hand.role == "help" for hand in self.hands())
        if not after or version < after or has_helper or len(samplers) < 2:
            return
        hand = samplers[0]
        self._post(self._gone(hand))
        hand.role = "help"
        self._mark(hand, "role", version=version)

    def helper(self) -> Hand | None:
        """Who sums gradients beside the learner, with the weights of now."""
        for hand in self.hands():
            is_ready = hand.is_joined and hand.version == self._publishing.version
            if hand.role == "help" and is_ready:
                return hand
        return None

    # Losses.

    def lost(self, hand: Hand, reason: str) -> None:
        """A process is dead: reissue what it had, and hire another in its place."""
        with self.lock:
            if self._is_closed:
                return
            self._mark(hand, "lost", reason=reason)
            if hand.role != "train":
                self._replace(hand, reason)
            elif self._count(hand.name, reason):
                self.fail(CrewLostError(f"the learner is lost: {reason}"))
            self.changed.notify_all()

    def _count(self, name: str, reason: str) -> bool:
        """Whether the run goes on behind this loss; with too many in a row it ends."""
        num = self._fleet.losses = self._fleet.losses + 1
        if num <= self._train.cluster.losses_max:
            return True
        text = f"{num} workers were lost without an update between, the last, {name}"
        self.fail(RuntimeError(f"{text}, with: {reason}"))
        return False

    def look_around(self) -> None:
        """Hire on hosts that have joined, and for samplers whose host had gone."""
        with self.lock:
            # Where a learner was that is lost its next life goes.
            if not self._is_closed and LEARNER in self._fleet.hands:
                self._fill()

    def progressed(self) -> None:
        """An update has stepped: what was lost before it is made good."""
        self._fleet.losses = 0
        for hand in self.hands():
            hand.made_good = ""

    def leaving(self, hand: Hand) -> None:
        """A worker's host is about to go: it is taken for lost while it can be."""
        self._mark(hand, "leaving")
        if hand.role == "train":
            self._post(records.StopRequested(now_s=self._clock.now_s()))
            return
        self._fleet.retire(hand)
        if not self._sites.leave(hand.place) or self._count(hand.name, "preempted"):
            self.lost(hand, "preempted")

    def _replace(self, hand: Hand, reason: str) -> None:
        if hand.is_joined and self.is_open and hand.role == "sample":
            self._post(self._gone(hand))
        self.on_lost(hand)
        self._publishing.drop(hand.worker)
        self._publish_when_all_have_it()
        place = next(iter(self._vacant(wish=hand.place)), None)
        if place is None:
            rest = "" if self._others() else "; the run waits for a host that joins"
            self._say(f"{hand.name} is lost, and its host: {reason}{rest}")
            return
        # A host that goes is no fault of the run, however many do: a loss counts once
        # another has spoken there, or was lost there while the host was.
        is_here = place == hand.place
        if is_here and hand.made_good and not self._count(hand.name, hand.made_good):
            return
        self._say(f"{hand.name} is lost: {reason}; another takes its place")
        name = free_name(self._fleet.hands, hand.name)
        self._hire(name, "sample", place).made_good = reason if is_here else ""

    def failed(self, thread: str, kind: str, text: str, trace: str) -> None:
        """A thread of a worker died of an error, which would come again."""
        if self._failure is not None or self._is_closed:
            # Many say so of one loss, each for itself.
            return
        error = error_of(thread, kind, text, trace)
        if type(error) is CrewLostError and (
            LEARNER not in self._fleet.hands or not self._count(thread, text)
        ):
            return
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End this life of the control loop."""
        with self.lock:
            self._failure = self._failure or error
            self._post(ThreadFailed("cluster", error))
            self.changed.notify_all()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait on the control loop's thread, while it takes no events.

        Args:
          is_so: what is waited for.

        Raises:
          CrewLostError: the learner is lost meanwhile; other errors as they came.
        """
        with self.lock:
            # Signals are handled between two waits.
            while not self.changed.wait_for(lambda: self._failure or is_so(), 0.5):
                pass
            if self._failure is not None:
                raise self._failure

    # The log.

    def beat(self, hand: Hand) -> None:
        """Note now and then that a worker lives."""
        reason, hand.made_good = hand.made_good, ""
        if reason:
            self._count(hand.name, reason)
        now_s = self._clock.now_s()
        if now_s - hand.marked_s >= BEAT_S:
            hand.marked_s = now_s
            self._mark(hand, "heartbeat", version=hand.version, **hand.facts)

    def _mark(self, hand: Hand, name: str, **fields: Any) -> None:
        self._journal.mark(
            f"worker/{hand.name}",
            name,
            self._clock.now_s(),
            role=hand.role,
            incarnation=hand.incarnation,
            pid=hand.pid,
            **fields,
        )

    def rows(self) -> list[Mapping[str, Any]]:
        """Every worker as the summary lists it."""
        return [hand.row(self._train.sampler.slots) for hand in self.hands()]
