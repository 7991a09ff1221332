import io

import pytest
from rich.console import Console

from jigsaw_jax import config
from jigsaw_jax.simulation import outcome, overrides, recommend
from tests.simulation.make_train import ROOT, make

QWEN = overrides.apply(
    config.load([str(ROOT / "configs/sim/qwen3_1p7b_v5e.gin")]).train,
    {
        "R": 8,
        "U": 8,
        "Simulation.rounds": 1,
        "Simulation.seeds": 2,
        "Simulation.search": {"Sampler.slots": (32, 64), "Learner.rows": (8,)},
        "Costs.error": 0.2,
    },
)


@pytest.fixture(scope="module")
def found():
    return recommend.recommend(QWEN)


@pytest.mark.slow
def test_the_best_is_the_best_of_all_that_fit(found):
    times = []
    for values, train in recommend._allowed(QWEN):
        candidate = recommend._fitting(values, train)
        if candidate is not None:
            seconds = outcome.simulate(train, train.seed)[0].round_s
            times.append(seconds)
            assert seconds >= candidate.bound_s - 1e-9
    assert found.fitting == len(times)
    # With the first seed, that is: the ranking is by the mean of all.
    assert min(one.rounds_s[0] for one in found.ranked) == pytest.approx(min(times))
    assert [r.round_s for r in found.ranked] == sorted(r.round_s for r in found.ranked)
    assert found.runner_up is not None
    assert found.runner_up.candidate.split != found.ranked[0].candidate.split


@pytest.mark.slow
def test_every_candidate_fits_in_memory_and_in_the_chips(found):
    assert found.considered > found.fitting
    for one in found.ranked:
        learner, workers, tensor = one.candidate.split
        assert learner + workers * tensor <= 16
        assert max(one.candidate.hbm.values()) <= 0.9


def test_the_answer_says_how_sure_it_is(found):
    text = io.StringIO()
    recommend.show(found, Console(file=text, width=200))
    said = text.getvalue()
    assert "take: " in said
    assert "runner-up: " in said
    assert "over 2 seeds it is" in said
    assert "each off by 20%" in said


def test_what_can_not_be_searched_is_refused():
    with pytest.raises(ValueError, match=r"Costs\.source must be 'analytic' or 'plan'"):
        recommend.recommend(make())
    small = overrides.apply(QWEN, {"Simulation.chips": 2})
    with pytest.raises(ValueError, match=r"Simulation\.chips must be enough"):
        recommend.recommend(small)
    misspelt = overrides.apply(QWEN, {"Simulation.search": {"Sampler.slot": (1,)}})
    with pytest.raises(ValueError, match=r"Sampler\.slot must be a setting"):
        recommend.recommend(misspelt)
