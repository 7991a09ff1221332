"""The channel between processes; slow, since each of them imports JAX."""

import logging
import threading

import pytest
import ray

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import CarrierError
from jigsaw_jax.runtime.weights.carriers.ray_objects import RayCarrier
from tests.runtime.weights import far
from tests.runtime.weights import two_meshes as two

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster():
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100 * 2**20,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_bits_arrive_from_another_process_and_a_dead_one_is_an_error(tmp_path):
    learner, sampler = far.start(tmp_path), far.start(tmp_path)
    offer = far.wait(learner.publish.remote(1, 1))
    assert {name for name, _ in offer.tickets.values()} == {"ray"}
    got = far.wait(sampler.receive.remote(offer))
    assert got == far.flat_bits(two.learner_tree(1))

    lost, clock = learner.die.remote(), Clock()
    with pytest.raises(CarrierError, match="Ray lost"):
        RayCarrier(clock).get(lost, [1], clock.now_s() + 60)


@pytest.mark.usefixtures("cluster")
def test_an_object_that_never_comes_is_given_up_at_the_deadline():
    @ray.remote(num_cpus=0)
    def sleeps():
        threading.Event().wait(30)

    carrier, clock = RayCarrier(Clock()), Clock()
    start_s = clock.now_s()
    with pytest.raises(CarrierError, match="Ray lost"):
        carrier.get(sleeps.remote(), [1], start_s + 0.3)
    # Well before it ends.
    assert clock.now_s() - start_s < 25
