from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jigsaw_jax.records import GroupId, PromptsOffered, UpdateStepped
from jigsaw_jax.schedule.assembly import Assembly
from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.rounds import Rounds
from jigsaw_jax.schedule.source import Source
from jigsaw_jax.schedule.standing import Standing
from jigsaw_jax.settings import Pipeline

R, U = 4, 2


class RoundsMachine(RuleBasedStateMachine):
    """One round after the other, by hand; groups complete, or are lost, at random."""

    @initialize(
        mode=st.sampled_from(["sync", "stream"]),
        refill_max=st.sampled_from([0, 1, 9]),
        rounds=st.integers(1, 4),
        prompts=st.integers(0, 40),
    )
    def begin(self, mode, refill_max, rounds, prompts):
        self.settings = Pipeline(
            mode=mode,
            groups_per_round=R,
            groups_per_update=U,
            refill_groups_max=refill_max,
        )
        self.updates = rounds * R // U
        self.prompts = prompts
        self.groups = {}
        self.rounds = Rounds(self.settings, updates=self.updates)
        self.now = Standing(Source(), self.groups, {}, Assembly())
        self.sent = None
        self.opened = self.trained = 0
        self.work()

    def work(self):
        """What the pipeline does when it may: prompts, openings, hand-offs, the end."""
        now = self.now
        request = now.source.top_up(self.rounds.wanted(now))
        if request is not None:
            first = now.source.position
            last = max(min(first + request.num, self.prompts), first)
            uids = tuple(f"p{i}" for i in range(first, last))
            now.source.offer(PromptsOffered(now_s=0.0, uids=uids))
        num = self.rounds.openings(now)
        if not num or (self.rounds.opens_whole and not now.source.can_give(num)):
            return
        opening = now.source.take(num)
        for uid, order in opening:
            self.groups[order] = OpenGroup(GroupId(uid, 0), order, 1)
        if opening:
            if self.rounds.opens_whole:
                assert len(self.groups) <= R
                assert self.sent is None
                self.opened = self.trained = 0
            self.opened += len(opening)
            self.rounds.opened(len(opening))

    @precondition(lambda self: self.groups)
    @rule(index=st.integers(0, 9), passes=st.booleans())
    def judge(self, index, passes):
        waiting = [g for g in self.groups.values() if g not in self.now.pending]
        if not waiting:
            return
        group = waiting[index % len(waiting)]
        if passes:
            self.now.pending.append(group)
        else:
            del self.groups[group.order]
        self.work()

    @rule()
    def feed(self):
        now = self.now
        if now.updates_done >= self.updates:
            return
        free = U - now.filled
        for group in self.rounds.takeable(now)[:free]:
            if self.settings.mode == "sync":
                # The barrier is open: nothing of the round is still sampled.
                assert len(now.pending) == len(self.groups)
            now.pending.remove(group)
            del self.groups[group.order]
            now.assembly.groups.append(group)
        if now.filled == U or (now.filled and self.rounds.is_tail(now)):
            update, size = now.updates_done, now.filled
            now.assembly._is_stepping = True
            now.assembly.stepped(UpdateStepped(now_s=0.0, update=update))
            self.rounds.stepped(size)
            self.trained += size
        elif not now.filled:
            version = self.rounds.close(now)
            if version is not None:
                assert self.sent is None
                assert not self.groups
                assert version == self.rounds.version + 1
                assert self.trained > 0
                self.sent = version
        self.work()

    @precondition(lambda self: self.sent is not None)
    @rule()
    def publish(self):
        assert self.sent is not None
        for _ in range(2):
            self.rounds.published(self.sent)
        assert self.rounds.version == self.sent
        assert self.rounds.version_updates == self.now.updates_done
        self.sent = None
        self.work()

    @rule()
    def resume(self):
        """What the update under way has goes back; a version is sent again."""
        snapshot = self.rounds.snapshot()
        for group in self.now.assembly.groups:
            self.groups[group.order] = group
        self.now.assembly.groups.clear()
        self.now.pending.clear()
        again = Rounds(self.settings, updates=self.updates)
        again.restore(snapshot, updates_done=self.now.updates_done)
        self.rounds = again
        self.sent = None

    @invariant()
    def a_round_never_has_more_than_its_groups_and_refills(self):
        if not hasattr(self, "rounds"):
            return
        assert self.opened <= R + self.settings.refill_groups_max
        # A lost group is replaced once, so the living never exceed R.
        alive = len(self.groups) + self.now.filled
        assert alive + (self.trained if self.groups else 0) <= R
        if self.sent is not None:
            assert self.rounds.openings(self.now) == 0

    def teardown(self):
        """Whatever happened, it goes on to its end."""
        if not hasattr(self, "rounds"):
            return
        for _ in range(400):
            is_out = self.now.source.is_exhausted and not self.groups
            if self.now.updates_done >= self.updates or (is_out and not self.sent):
                return
            self.judge(0, True) if self.groups else None
            self.feed()
            if self.sent is not None:
                self.publish()
        raise AssertionError("a round is stuck")


TestRounds = RoundsMachine.TestCase
TestRounds.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
)
