"""Weights on their way to the sampler."""

import dataclasses

import pytest

from tests.runtime.test_local import (
    assert_close,
    final_params,
    make_train,
    rollouts,
    run,
)

pytestmark = pytest.mark.slow


def test_a_sampler_that_takes_layers_apart_samples_and_trains_the_same(tmp_path):
    train = make_train(updates=2)
    decoder = dataclasses.replace(train.decoder, scan_layers=True)
    scanned = dataclasses.replace(train, decoder=decoder)
    sampler = dataclasses.replace(train.sampler, unroll_layers=True)
    unrolled = dataclasses.replace(scanned, sampler=sampler)
    runs = [run(scanned, tmp_path / "scanned"), run(unrolled, tmp_path / "unrolled")]
    assert rollouts(tmp_path / "scanned") == rollouts(tmp_path / "unrolled")
    scanned_params, unrolled_params = map(final_params, runs)
    assert_close(scanned_params, unrolled_params, 1e-6)
