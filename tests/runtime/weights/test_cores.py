import os

import pytest

from jigsaw_jax.runtime.weights.cores import num_threads


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (96, 4)])
def test_a_version_takes_half_of_the_cores_and_four_at_most(
    cores, threads, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert num_threads() == threads
