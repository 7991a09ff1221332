"""Metrics of an update from its sums."""

import pytest

from jigsaw_jax.train import metrics

SUMS = {
    "loss": 6.0,
    "weight": 3.0,
    "tokens": 8.0,
    "entropy": 4.0,
    "clip_low": 1.0,
    "clip_high": 2.0,
    "kl_behavior": 0.8,
    "mismatch_count": 4.0,
    "mismatch_abs": 1.0,
    "mismatch_abs_max": 0.5,
    "mismatch_weight": 4.4,
    "grad_norm": 7.0,
}


def test_each_mean_has_its_own_denominator():
    assert metrics.of_update(SUMS, 0.1) == pytest.approx(
        {
            "loss": 2.0,
            "policy/entropy": 0.5,
            "policy/kl_behavior": 0.1,
            "policy/clip_fraction_low": 0.125,
            "policy/clip_fraction_high": 0.25,
            "mismatch/logprob_abs_mean": 0.25,
            "mismatch/logprob_abs_max": 0.5,
            "mismatch/weight_mean": 1.1,
            "optim/grad_norm": 7.0,
            "optim/lr": 0.1,
            "optim/skipped": 0.0,
            "tokens/trained": 8.0,
        }
    )


def test_means_over_nothing_are_left_out():
    later = SUMS | {"mismatch_count": 0.0, "mismatch_abs": 0.0, "kl_ref": 1.6}
    got = metrics.of_update(later, 0.1)
    assert not [name for name in got if name.startswith("mismatch")]
    assert got["policy/kl_ref"] == pytest.approx(0.2)


def test_a_skipped_update_says_so():
    assert metrics.of_update({}, 0.1) == {
        "optim/grad_norm": 0.0,
        "optim/lr": 0.1,
        "optim/skipped": 1.0,
        "tokens/trained": 0.0,
    }
