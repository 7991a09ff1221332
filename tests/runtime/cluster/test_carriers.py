"""Weights by each carrier of `Cluster.carriers`, and by the next where one fails."""

import pathlib
import subprocess
import sys

import pytest

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import carriers
from jigsaw_jax.settings import Cluster
from jigsaw_jax.settings.cluster import CARRIERS
from tests.runtime.test_local import rollouts

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"carriers": ("ray", "ray")}, "each once"),
        ({"carriers": ("pigeon",)}, "carriers"),
        ({"carrier_s": 0.0}, "carrier_s"),
    ],
)
def test_carriers_that_are_none_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        Cluster(**wrong)


def test_workers_are_told_what_the_user_left_open(tmp_path):
    def told(cluster, *, is_local):
        return carriers.resolve(
            cluster, run_dir=tmp_path, samplers=3, is_local=is_local
        )

    open_ = told(Cluster(), is_local=False)
    assert open_.carrier_folder == str(tmp_path / "weights")
    assert open_.samplers == 3
    assert open_.carriers == ("line", "ray")
    assert told(Cluster(), is_local=True).carriers == ("shared", "ray")
    own = Cluster(samplers=2, carrier_folder="/mnt/weights", carriers=("folder",))
    assert told(own, is_local=True) == own


def test_both_ends_have_the_carriers_in_the_order_of_the_setting(tmp_path):
    cluster = Cluster(
        carriers=("folder", "shared", "ray"), carrier_folder=str(tmp_path)
    )
    made = carriers.make(cluster, clock=Clock())
    assert [one.name for one in made] == ["folder", "shared", "ray"]


def test_each_time_that_a_version_does_not_arrive_one_carrier_more_is_passed_over():
    cluster = Cluster(carriers=("transfer", "ray", "folder"))
    passed = [carriers.passed_over(cluster, tries) for tries in range(5)]
    assert passed == [
        (),
        ("transfer",),
        ("transfer", "ray"),
        (),
        ("transfer",),
    ]


@pytest.mark.slow
def test_every_carrier_brings_the_same_weights(tmp_path):
    command = [sys.executable, "-m", "tests.runtime.cluster.carrier_runs"]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ways = [rollouts(tmp_path / name) for name in CARRIERS]
    # Later rounds are sampled with weights that have come this way.
    assert len(ways[0]) == 3 * 4 * 3
    assert all(way == ways[0] for way in ways)
    assert not (tmp_path / "folder" / "weights").exists()
