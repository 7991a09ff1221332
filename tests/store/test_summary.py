import os
import subprocess
import sys

import pytest

from jigsaw_jax.store import summary


def test_touching_and_nested_intervals_join_and_empty_ones_vanish():
    intervals = [(5.0, 6.0), (0.0, 2.0), (1.0, 1.5), (2.0, 3.0), (9.0, 9.0)]
    assert summary.union(intervals) == [(0.0, 3.0), (5.0, 6.0)]
    assert summary.union_s(intervals) == 4.0
    assert summary.union_s([]) == 0


def test_clipping_keeps_what_lies_between():
    intervals = [(0.0, 2.0), (3.0, 4.0), (5.0, 9.0)]
    assert summary.clipped(intervals, 1.0, 6.0) == [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    assert summary.clipped(intervals, 2.0, 3.0) == []


def test_overlap_of_two_sets():
    sampler = [(0.0, 4.0), (3.0, 5.0), (8.0, 10.0)]
    learner = [(4.0, 6.0), (7.0, 9.0), (9.5, 12.0)]
    # 4-5, 8-9 and 9.5-10.
    assert summary.overlap_s(sampler, learner) == 2.5
    assert summary.overlap_s(learner, sampler) == 2.5
    assert summary.overlap_s(sampler, []) == 0


def test_round_times_of_a_hand_made_round():
    trains = [(4.0, 6.0), (7.0, 10.0)]
    waits = [(1.0, 4.0), (6.0, 7.0)]
    assert summary.first_dispatch_s(1.0, trains) == 3.0
    assert summary.rollout_to_train_end_s(1.0, trains) == 9.0
    # 4 s of waiting beside 5 s of work.
    assert summary.trainer_wait_ratio(waits, trains) == pytest.approx(4 / 9)
    assert summary.trainer_wait_ratio([], []) == 0


HOG = """
import subprocess, sys
block = bytearray(60_000_000)
block[::4096] = b"x" * len(block[::4096])
if len(sys.argv) > 1:
    child = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE)
    child.stdout.readline()
del block
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_peaks_of_children_and_their_children_are_summed():
    own_mb = summary.peak_rss_mb([os.getpid()])
    child = subprocess.Popen(
        [sys.executable, "-c", HOG, HOG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    with_children_mb = summary.peak_rss_mb()
    child.communicate()
    assert own_mb > 1
    # Two processes of at least 60 MB that have freed them again: a peak stays.
    assert with_children_mb > own_mb + 120


def test_a_process_that_is_gone_counts_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert summary.peak_rss_mb([process.pid]) == 0
