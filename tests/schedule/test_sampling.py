"""Many samples at once are each of them, one after the other."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jigsaw_jax import records
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Pipeline as Settings
from tests.schedule.fake_shell import told_one_by_one

MODES: dict[str, dict[str, Any]] = {
    "stream": {
        "mode": "stream",
        "admission": "frontier_strict",
        "groups_per_round": 4,
    },
    "longest first": {
        "mode": "stream",
        "request_order": "longest_first",
        "groups_per_round": 4,
    },
    "adaptive": {
        "mode": "async",
        "staleness_max": 1,
        "admission": "frontier_adaptive",
        "groups_per_round": 2,
    },
    "stopped early": {
        "mode": "async",
        "staleness_max": 2,
        "early_stop": True,
        "groups_per_round": 2,
    },
}


class Both:
    """Two machines that are told the same: the second of many samples at once."""

    def __init__(self, rng, choices, *, asks_scores, admissions_max):
        chosen = Settings(
            groups_per_update=2,
            samples_per_group=3,
            attempts_max=2,
            lost_after_s=9.0,
            filter="keep",
            **choices,
        )
        self.rng = rng
        self.machines = [
            Pipeline(
                chosen,
                updates=6,
                checkpoint_every=2,
                asks_scores=asks_scores,
                admissions_max=admissions_max,
            )
            for _ in range(2)
        ]
        self.now_s, self.num_prompts = 0.0, 0
        self.admitted, self.finished, self.answers = [], [], []
        self.take([machine.start() for machine in self.machines])
        for name in "ab":
            self.tell(records.WorkerJoined(now_s=0.0, worker=name, slots=4))

    def take(self, told):
        first, second = map(told_one_by_one, told)
        assert first == second
        one, other = self.machines
        assert one.ledger_counts() == other.ledger_counts()
        assert one.snapshot() == other.snapshot()
        for effect in first:
            if isinstance(effect, records.AdmitSample):
                self.admitted.append(effect)
            else:
                self.answer(effect)

    def answer(self, effect):
        now_s = self.now_s
        if isinstance(effect, records.RequestPrompts):
            uids = tuple(f"p{self.num_prompts + i}" for i in range(effect.num))
            self.num_prompts += effect.num
            self.answers.append(records.PromptsOffered(now_s=now_s, uids=uids))
        elif isinstance(effect, records.AccumulateGroups):
            done = {"groups": effect.groups, "update": effect.update}
            self.answers.append(records.GroupsAccumulated(now_s=now_s, **done))
        elif isinstance(effect, records.StepUpdate):
            done = records.UpdateStepped(now_s=now_s, update=effect.update)
            self.answers.append(done)
        elif isinstance(effect, records.PublishVersion):
            done = records.VersionPublished(now_s=now_s, version=effect.version)
            self.answers.append(done)

    def tell(self, event):
        self.take([machine.apply(event) for machine in self.machines])

    def report(self):
        """Word of some samples, old attempts and doubled ones among them."""
        rng, now_s = self.rng, self.now_s
        news = self.admitted[-12:]
        new = [rng.choice(news) for _ in range(rng.randrange(5)) if news]
        ended = [rng.choice(news) for _ in range(rng.randrange(5)) if news]
        started = [(e.id, e.attempt, now_s) for e in new]
        finished = [
            (e.id, e.attempt, rng.randrange(1, 9), e.version + (rng.random() < 0.05))
            for e in ended
        ]
        self.finished += [row[:2] for row in finished]
        known = self.finished[-8:]
        keys = [rng.choice(known) for _ in range(rng.randrange(5)) if known]
        scored = [(*key, rng.choice([None, 0.0, 1.0])) for key in keys]
        one_by_one = [
            *(
                records.SampleStarted(now_s=now_s, id=sample, attempt=attempt)
                for sample, attempt, _ in started
            ),
            *(
                records.SampleFinished(
                    now_s=now_s,
                    id=sample,
                    attempt=attempt,
                    num_tokens=num_tokens,
                    version_min=version,
                )
                for sample, attempt, num_tokens, version in finished
            ),
            *(
                records.SampleScored(
                    now_s=now_s, id=sample, attempt=attempt, value=value
                )
                for sample, attempt, value in scored
            ),
        ]
        at_once = records.SamplesReported(
            now_s=now_s, started=started, finished=finished, scored=scored
        )
        one, other = self.machines
        if one_by_one:
            self.take([one.apply(*one_by_one), other.apply(at_once)])

    def turn(self):
        rng = self.rng
        self.now_s += rng.choice([0.0, 0.5, 1.0])
        kind = rng.random()
        if kind < 0.08 and self.admitted:
            lost = rng.choice(self.admitted[-12:])
            failed = {"id": lost.id, "attempt": lost.attempt, "reason": "test"}
            self.tell(records.SampleFailed(now_s=self.now_s, **failed))
        elif kind < 0.12:
            name = rng.choice("ab")
            self.tell(records.WorkerLost(now_s=self.now_s, worker=name))
            self.tell(records.WorkerJoined(now_s=self.now_s, worker=name, slots=4))
        elif kind < 0.2:
            step = {"worker": "a", "sequences": rng.randrange(1, 5), "step_s": 0.1}
            self.tell(records.StepTimed(now_s=self.now_s, **step))
        elif kind < 0.5 and self.answers:
            self.tell(self.answers.pop(0))
        else:
            self.report()


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 2**32),
    asks_scores=st.booleans(),
    admissions_max=st.sampled_from([None, 1, 3]),
)
def test_word_of_many_samples_at_once_is_word_of_each(
    mode, seed, asks_scores, admissions_max
):
    both = Both(
        random.Random(seed),
        MODES[mode],
        asks_scores=asks_scores,
        admissions_max=admissions_max,
    )
    for _ in range(60):
        both.turn()
    assert both.machines[0].updates_done > 0 or both.finished
