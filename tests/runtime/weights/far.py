"""A learner or sampler of `two_meshes` in a process of its own, as an actor of Ray."""

import os
from typing import Any

import jax
import numpy as np
import ray

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import FolderCarrier
from jigsaw_jax.runtime.weights.carriers.ray_objects import RayCarrier
from tests.runtime.weights import two_meshes as two


def start(folder) -> Any:
    """A `Far` in a process of its own."""
    return ray.remote(num_cpus=0)(Far).remote(folder)


def wait(ref, timeout_s=120) -> Any:
    return ray.get(ref, timeout=timeout_s)


class Far:
    """One end of the channel."""

    def __init__(self, folder):
        jax.config.update("jax_num_cpu_devices", 8)
        self.params = two.learner_tree(0)
        self.carriers = [RayCarrier(Clock()), FolderCarrier(folder)]
        self.sender = two.sender(*self.carriers)
        self.receiver = two.receiver(self.params, *self.carriers)

    def publish(self, seed, version):
        return self.sender.publish(two.learner_tree(seed), version)

    def receive(self, offer):
        return flat_bits(self.receiver.receive(offer, carrier_s=60.0))

    def die(self):
        os._exit(1)


def flat_bits(params):
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
