"""What of a group trains, token by token."""

import numpy as np
import pytest

from jigsaw_jax.records import FinishReason, Sample, SampleId, Segment
from jigsaw_jax.train import sequences
from tests.train.make_groups import make_group


def sample(*segments, reason=FinishReason.STOP):
    return Sample(
        id=SampleId("u", 0, 0), attempt=0, segments=segments, finish_reason=reason
    )


def sampled(tokens, first=0.0):
    logprobs = tuple(-first - i for i in range(len(tokens)))
    return Segment(tokens=tokens, logprobs=logprobs, versions=(4,) * len(tokens))


def observed(tokens):
    return Segment(tokens=tokens, logprobs=(), versions=(), is_sampled=False)


def test_the_stop_token_trains_and_the_prompt_does_not():
    got = sequences.from_sample(
        (1, 2), sample(sampled((5, 6, 0), 0.5)), group=0, place=7
    )
    assert got.tokens_T.tolist() == [1, 2, 5, 6, 0]
    assert got.is_trained_T.tolist() == [False, False, True, True, True]
    assert got.logprobs_T.tolist() == [0, 0, -0.5, -1.5, -2.5]
    assert got.versions_T.tolist() == [-1, -1, 4, 4, 4]
    assert (got.num_inputs, got.num_trained, got.place) == (4, 3, 7)


def test_no_observed_token_trains_and_every_sampled_one_does():
    turns = (
        sampled((5, 6)),
        observed((1000, 1001)),
        sampled((7,)),
        observed((1002,)),
        sampled((8, 9)),
    )
    got = sequences.from_sample((1003,), sample(*turns), group=0, place=0)
    assert got.tokens_T[got.is_trained_T].tolist() == [5, 6, 7, 8, 9]
    assert (got.tokens_T[~got.is_trained_T] >= 1000).all()


def test_missing_rewards_and_by_choice_truncated_samples_are_left_out():
    group = make_group(0, rewards=[None, 0.0, float("nan")], truncated=True)
    kept = sequences.trajectories([group, group], mask_truncated=False)
    assert [t.place for t in kept] == [1, 4]
    assert not sequences.trajectories([group], mask_truncated=True)


def test_scores_are_padded_with_missing_groups():
    group = make_group(0, rewards=[0.0, None, 2.0])
    scores = sequences.scores_of([group], 2, 3)
    np.testing.assert_array_equal(scores.rewards_PG, [[0, np.nan, 2], [np.nan] * 3])
    lengths = [s.num_sampled for s in group.samples]
    np.testing.assert_array_equal(scores.lengths_PG, [lengths, [0, 0, 0]])


def test_a_group_of_another_size_is_refused():
    with pytest.raises(ValueError, match="must have 4 samples and scores, got 3"):
        sequences.scores_of([make_group(0)], 1, 4)


def test_a_solution_trains_whole():
    got = sequences.from_pair((1, 2), (3, 0))
    assert got.tokens_T[got.is_trained_T].tolist() == [3, 0]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="prompt must have at least one token"):
        sequences.from_pair((), (3, 0))
