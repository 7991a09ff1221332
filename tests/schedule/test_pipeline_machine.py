import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from jigsaw_jax.settings import Pipeline as Settings
from jigsaw_jax.settings.work import ADMISSIONS
from tests.schedule.fake_shell import FakeShell, Run, any_order

INDEX = st.integers(0, 10**6)


def random_run(rng) -> Run:
    """Any small run; `rng` has `choice`."""
    mode = rng.choice(["sync", "stream", "async"])
    per_update = rng.choice([1, 2, 3])
    staleness_max = rng.choice([0, 1, 2, 3]) if mode == "async" else 0
    return Run(
        settings=Settings(
            mode=mode,
            groups_per_update=per_update,
            groups_per_round=per_update * rng.choice([1, 2, 3]),
            samples_per_group=rng.choice([2, 3]),
            staleness_max=staleness_max,
            over_issue_groups=rng.choice([0, staleness_max * per_update // 2]),
            early_stop=staleness_max > 0 and rng.choice([False, True]),
            request_order=rng.choice(["arrival", "longest_first"]),
            refill_groups_max=0 if mode == "async" else rng.choice([0, 1, 4]),
            admission=rng.choice(ADMISSIONS if mode != "sync" else ADMISSIONS[:3]),
            frontier_groups=rng.choice([1, 2]),
            filter=rng.choice(["drop", "keep"]),
            redraws_max=rng.choice([0, 0, 1, 2]),
            empty_rounds_max=rng.choice([1, 3, 20]),
            attempts_max=rng.choice([1, 3]),
            reduction=rng.choice(["arrival", "ordered"]),
            token_budget=rng.choice([0, 0, 20, 40]),
            prefetch_groups=rng.choice([0, 1, 2]),
            queue_groups_max=rng.choice([0, 0, 1, 2]),
            queue_tokens_max=rng.choice([0, 0, 20]),
        ),
        updates=rng.choice([1, 3, 6]),
        prompts=rng.choice([None, None, 0, 1, 7, 11]),
        flat=rng.choice([0.0, 0.3, 0.6, 1.0]),
        failing=rng.choice([0.0, 0.2]),
        checkpoint_every=rng.choice([1, 2, 5]),
    )


def disturb(shell, rng):
    """Do one thing that may go wrong at any time."""
    chance = rng.random()
    if chance < 0.25:
        shell.fail(rng.randrange(100))
    elif chance < 0.75:
        shell.repeat(rng.randrange(1000))
    elif chance < 0.85:
        shell.crash(to_checkpoint=rng.random() < 0.5)
    elif chance < 0.92:
        shell.lose(rng.choice("ab"))
    else:
        shell.join(rng.choice("ab"), rng.choice([1, 2, 4]))


def survive(seed):
    """One seeded run under disturbance, to its end."""
    rng = random.Random(seed)
    shell = FakeShell(random_run(rng))
    for _ in range(400):
        if shell.finish is not None:
            break
        if rng.random() < 0.12 or not shell.tasks:
            disturb(shell, rng)
        else:
            shell.deliver(rng.randrange(len(shell.tasks)))
    if shell.finish is None and rng.random() < 0.1:
        shell.stop()
    if shell.finish is None:
        shell.join("c", 2)
    shell.run_to_end(any_order(seed))


@pytest.mark.parametrize("decade", range(20))
def test_every_draw_ends_once_whatever_happens(decade):
    for seed in range(decade * 10, decade * 10 + 10):
        survive(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(50))
def test_every_draw_ends_once_whatever_happens_for_long(hundred):
    for seed in range(1000 + hundred * 100, 1100 + hundred * 100):
        survive(seed)


class PipelineMachine(RuleBasedStateMachine):
    """The fake shell, with Hypothesis as its scheduler; it shrinks what fails."""

    @initialize(seed=INDEX)
    def begin(self, seed):
        self.shell = FakeShell(random_run(random.Random(seed)))

    def goes_on(self):
        return self.shell.finish is None

    @precondition(lambda self: self.goes_on() and self.shell.tasks)
    @rule(indices=st.lists(INDEX, min_size=1, max_size=12))
    def deliver(self, indices):
        for index in indices:
            if self.goes_on() and self.shell.tasks:
                self.shell.deliver(index)

    @precondition(goes_on)
    @rule(index=INDEX)
    def fail(self, index):
        self.shell.fail(index)

    @rule(index=INDEX)
    def repeat(self, index):
        self.shell.repeat(index)

    @precondition(goes_on)
    @rule(to_checkpoint=st.booleans())
    def crash(self, to_checkpoint):
        self.shell.crash(to_checkpoint=to_checkpoint)

    @precondition(goes_on)
    @rule(name=st.sampled_from("ab"), slots=st.integers(0, 4))
    def replace(self, name, slots):
        if slots:
            self.shell.join(name, slots)
        else:
            self.shell.lose(name)

    @precondition(goes_on)
    @rule()
    def stop(self):
        self.shell.stop()

    def teardown(self):
        if hasattr(self, "shell"):
            if self.goes_on():
                self.shell.join("c", 2)
            self.shell.run_to_end(any_order(0))


TestPipeline = PipelineMachine.TestCase
TestPipeline.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
