"""A learner's tree on four devices, what a sampler on two others wants, a carrier."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.model import decoder as decoders
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import CarrierError, Receiver, Sender
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.piece import gather

DECODER = settings.Decoder(
    vocab_size=16,
    num_layers=2,
    model_dim=8,
    hidden_dim=16,
    num_heads=4,
    num_kv_heads=1,
    head_dim=4,
)
MESH = settings.Mesh(data=1, fsdp=2, tensor=2, sampler_data=1, sampler_tensor=2)
AXES = decoders.logical_axes(DECODER)


class Memory:
    """A carrier inside one process, whose payloads a test can spoil."""

    def __init__(self, name="memory"):
        self.name = name
        self.payloads = {}
        self.is_dead = False
        self.gets = 0

    def put(self, key, pieces, deadline_s):
        del deadline_s
        if self.is_dead:
            raise CarrierError("dead")
        self.payloads[key] = [data.copy() for data in gather(pieces, Arena())]
        return key

    def get(self, ticket, sizes, deadline_s):
        del sizes, deadline_s
        self.gets += 1
        if self.is_dead or ticket not in self.payloads:
            raise CarrierError(f"{ticket} is lost")
        return self.payloads[ticket]

    def drop(self, ticket):
        self.payloads.pop(ticket, None)

    @property
    def num_bytes(self):
        return sum(len(piece) for pieces in self.payloads.values() for piece in pieces)


def learner_tree(seed=0, dtype=jnp.float32, mesh=MESH):
    """Random weights as the learner has them."""
    params = jax.tree.map(lambda x: x.astype(dtype), model.init_params(DECODER, seed))
    own = meshes.learner_mesh(mesh, jax.devices())
    return jax.device_put(params, meshes.sharding_tree(own, AXES, params))


def wanted_like(params, mesh=MESH):
    """The same leaves on the sampler's mesh."""
    own = meshes.sampler_mesh(mesh, jax.devices())
    return meshes.abstract(params, meshes.sharding_tree(own, AXES, params))


def sender(*carriers, run="run", **options):
    return Sender(run, carriers, clock=Clock(), **options)


def receiver(params, *carriers, run="run", mesh=MESH, **options):
    wanted = wanted_like(params, mesh)
    return Receiver(run, wanted, carriers, clock=Clock(), **options)


def whole(sender, without=()):
    """The last version once more; there is one."""
    offer = sender.again(without)
    assert offer is not None
    return offer


def assert_same_bits(got, want):
    """Equal to the last bit, leaf for leaf, types too."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def with_leaves(offer_manifest, change):
    """A manifest with every leaf changed."""
    leaves = tuple(change(leaf) for leaf in offer_manifest.leaves)
    return dataclasses.replace(offer_manifest, leaves=leaves)


def abstract_of_one(leaf):
    """A leaf as the last device alone wants it."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
