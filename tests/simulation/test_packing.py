import numpy as np
import pytest

from jigsaw_jax.simulation.packing import Packing, packing_of
from jigsaw_jax.train import packing as trained
from jigsaw_jax.train.sequences import Trajectory
from tests.simulation.make_train import make

PROMPT = 5


def trajectories(groups):
    """What the learner packs: prompts of PROMPT tokens, and what came behind them."""
    found = []
    for index, group in enumerate(groups):
        for length in group:
            is_trained = np.arange(length) >= PROMPT
            found.append(
                Trajectory(
                    tokens_T=np.ones(length, np.int32),
                    is_trained_T=is_trained,
                    logprobs_T=np.zeros(length, np.float32),
                    versions_T=np.where(is_trained, 0, -1).astype(np.int32),
                    place=len(found),
                    group=index,
                    num_prompt=PROMPT,
                )
            )
    return found


@pytest.mark.parametrize("shares_prefix", [False, True])
@pytest.mark.parametrize("min_fill", [0.0, 0.5, 1.0])
def test_micro_batches_are_those_that_the_learner_packs(shares_prefix, min_fill):
    train = make(
        Sampler__new_tokens_max=40,
        Learner__rows=8,
        Learner__row_tokens=80,
        Learner__row_shapes=3,
        Learner__min_fill=min_fill,
        Learner__shared_prefix=shares_prefix,
        Workload__prompt_tokens=PROMPT,
    )
    packing, rng = packing_of(train), np.random.default_rng(0)
    shapes = trained.shapes_of(train)
    for num_groups in (1, 1, 2, 3, 5, 9):
        lengths = PROMPT + rng.integers(1, 41, (num_groups, 4))
        groups = lengths.tolist()
        batches = trained.pack(trajectories(groups), shapes)
        found = packing.micro_batches(groups)
        assert found == [len(batch.tokens_RT) for batch in batches]
        assert packing.least_rows(groups) <= packing.rows(groups)
    assert packing.micro_batches([]) == []


def test_rows_are_filled_best_fit_and_longest_first():
    packing = Packing(shapes=(1,), row_tokens=10, row_trained=100, min_fill=1.0)
    # Inputs of 7 and 3 share a row, 6 and 4 too, 5 stays alone.
    assert packing.rows([[6, 4, 8], [5, 7]]) == 3
    # Two of 5 fill a row, but it has places in the loss for one of them alone.
    narrow = Packing(shapes=(1,), row_tokens=10, row_trained=6, min_fill=1.0)
    assert narrow.rows([[6, 6]]) == 2
