import concurrent.futures
import os
import threading

import pytest

from jigsaw_jax.runtime.weights.cores import NICENESS, give_way, num_threads


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (96, 4)])
def test_a_version_takes_half_of_the_cores_and_four_at_most(
    cores, threads, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert num_threads() == threads


def test_a_thread_that_gives_way_does_so_alone():
    def own():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = own()
    with concurrent.futures.ThreadPoolExecutor(1, initializer=give_way) as pool:
        assert pool.submit(own).result() == min(before + NICENESS, 19)
    assert own() == before
