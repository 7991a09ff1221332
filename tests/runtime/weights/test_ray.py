"""The channel between processes; slow, since each of them imports JAX."""

import threading

import pytest
import ray
from ray.exceptions import RayActorError

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import CarrierError, FolderCarrier
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
        logging_level="error",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_bits_arrive_through_ray_and_after_its_death_through_the_folder(tmp_path):
    learner, sampler = (far.Far.remote(tmp_path) for _ in range(2))
    offer = ray.get(learner.publish.remote(1, 1), timeout=120)
    assert {name for name, _ in offer.tickets.values()} == {"ray"}
    got = ray.get(sampler.receive.remote(offer), timeout=120)
    assert got == far.flat_bits(two.learner_tree(1))

    offer = ray.get(learner.publish.remote(2, 2), timeout=60)
    with pytest.raises(RayActorError):
        ray.get(learner.die.remote(), timeout=60)
    folder = FolderCarrier(tmp_path)
    sender, asked = two.sender(folder), []
    sender.publish(two.learner_tree(2), 2)

    def again(failed):
        asked.append(failed)
        return sender.again(failed)

    # What was put died with its process.
    receiver = two.receiver(two.learner_tree(2), RayCarrier(Clock()), folder)
    kept = receiver.receive(offer, again=again, carrier_s=20.0)
    two.assert_same_bits(kept, two.learner_tree(2))
    assert asked == [frozenset({"ray"})]


@pytest.mark.usefixtures("cluster")
def test_an_object_that_never_comes_is_given_up_at_the_deadline():
    @ray.remote(num_cpus=0)
    def sleeps():
        threading.Event().wait(30)

    carrier, clock = RayCarrier(Clock()), Clock()
    start_s = clock.now_s()
    with pytest.raises(CarrierError, match="Ray lost"):
        carrier.get(sleeps.remote(), [1], start_s + 0.3)
    assert clock.now_s() - start_s < 5
