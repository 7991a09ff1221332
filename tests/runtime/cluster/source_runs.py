"""A sampler's `Source` before real learners, in a process of its own: Ray forks.

python -m tests.runtime.cluster.source_runs

The learner's actor is not a worker's, but answers as that does, beside what it
computes; it is stopped, killed, and another takes its place.
"""

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import ray

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import offers
from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.runtime.cluster.newest import Newest
from jigsaw_jax.runtime.cluster.source import GoneError, Source
from jigsaw_jax.runtime.weights import CarrierError, Offer
from jigsaw_jax.runtime.weights.carriers.ray_objects import RayCarrier
from jigsaw_jax.runtime.weights.piece import Piece
from tests.runtime.test_local import make_train

# More than Ray sends along with an answer.
NUM_BYTES = 1 << 20


class Learner:
    """Publishes, and computes, in turns; answers beside."""

    def __init__(self):
        self.newest = Newest()
        self.carrier = RayCarrier(Clock())
        self.enough = threading.Event()

    def publish(self, version):
        piece = Piece.of(np.full(NUM_BYTES, version, np.uint8))
        ticket = self.carrier.put(f"v{version}", [piece], 0.0)
        # One that is an object of Ray's, and one that goes along with the answer.
        text = f"v{version}".ljust(2 * offers.ALONG_BYTES)
        made = Offer(manifest=text, tickets={"p": ("ray", ticket)})
        base = Offer(manifest="base", tickets={})
        self.newest.put(version, offers.put(made), offers.put(base))
        return os.getpid()

    def compute(self):
        while not self.enough.is_set():
            pass

    @ray.method(concurrency_group="offers")
    def rest(self):
        self.enough.set()

    @ray.method(concurrency_group="offers")
    def offered(self, version, with_frozen):
        return self.newest.get(version, with_frozen)


def start(name):
    remote: Any = ray.remote
    made = remote(concurrency_groups={"offers": 1}, num_cpus=0)(Learner)
    return made.options(name=name).remote()


def content(offer):
    """The one value that a version's bytes have."""
    _, ticket = offer.tickets["p"]
    (data_u8,) = RayCarrier(Clock()).get(ticket, [NUM_BYTES], Clock().now_s() + 20.0)
    assert len(data_u8) == NUM_BYTES
    (value,) = set(data_u8.tolist())
    return value


def main():
    head = Head("local:2", make_train())
    head.open()
    try:
        learner = start("learner/1 a")
        source = Source(20.0)
        ray.get(learner.publish.remote(1))
        computing = learner.compute.remote()
        first, base = source.ask("learner/1 a", 1, True)
        # It has answered while it computes.
        assert not ray.wait([computing], timeout=0)[0]
        ray.get([learner.rest.remote(), computing])
        assert (first.manifest.rstrip(), base.manifest) == ("v1", "base")
        pid: Any = ray.get(learner.publish.remote(2))
        with pytest.raises(GoneError, match="superseded"):
            source.ask("learner/1 a", 1, False)
        (second,) = source.ask("learner/1 a", 2, False)
        # Whoever has asked in time keeps what was offered.
        assert (content(first), content(second)) == (1, 2)

        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(CarrierError, match="does not answer"):
            Source(2.0).ask("learner/1 a", 2, False)
        # One that was asked before, and killed while it is stopped.
        threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(GoneError, match="ended"):
            source.ask("learner/1 a", 2, False)
        for asker in (source, Source(20.0)):
            with pytest.raises(GoneError, match="ended"):
                asker.ask("learner/1 a", 2, False)
        with pytest.raises(CarrierError, match="learner/9 is not found"):
            Source(20.0).ask("learner/9 a", 2, False)

        learner = start("learner/2 b")
        ray.get(learner.publish.remote(1))
        (again,) = source.ask("learner/2 b", 1, False)
        assert content(again) == 1
    finally:
        head.close()


if __name__ == "__main__":
    main()
