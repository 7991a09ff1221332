"""Whole versions from a learner's mesh to a sampler's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import settings
from jigsaw_jax.runtime.weights import MismatchError, Offer, cutting, merge
from jigsaw_jax.runtime.weights import manifest as manifests
from tests.runtime.weights import two_meshes as two


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_every_bit_arrives_on_a_mesh_cut_otherwise(dtype, tensor):
    mesh = settings.Mesh(
        fsdp=2, tensor=2, sampler_data=4 // tensor, sampler_tensor=tensor
    )
    params, carrier = two.learner_tree(dtype=dtype), two.Memory()
    receiver = two.receiver(params, carrier, mesh=mesh)
    got = receiver.receive(two.sender(carrier).publish(params, 3))
    two.assert_same_bits(got, params)
    assert receiver.version == 3
    for leaf, want in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(two.wanted_like(params, mesh)),
        strict=True,
    ):
        assert leaf.sharding == want.sharding
        # Every replica, not only the one that `np.asarray` reads.
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, np.asarray(leaf)[shard.index])


def test_each_element_travels_once_though_the_learner_has_replicas():
    mesh = settings.Mesh(data=2, fsdp=2)
    params, carrier = two.learner_tree(mesh=mesh), two.Memory()
    two.sender(carrier).publish(params, 0)
    assert carrier.num_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def test_nan_infinity_and_minus_zero_keep_their_bits():
    odd = np.array([np.nan, -np.nan, np.inf, -0.0, 1e-45, 3.0], np.float32)
    params = jax.tree.map(
        lambda x: jax.device_put(np.resize(odd, x.shape), x.sharding),
        two.learner_tree(),
    )
    carrier = two.Memory()
    got = two.receiver(params, carrier).receive(two.sender(carrier).publish(params, 0))
    two.assert_same_bits(got, params)


def test_bf16_halves_the_bytes_and_arrives_as_the_rounded_value():
    params, carrier = two.learner_tree(), two.Memory()
    sender = two.sender(carrier, encoding="bf16")
    got = two.receiver(params, carrier).receive(sender.publish(params, 0))
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)
    two.assert_same_bits(got, rounded)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert carrier.num_bytes * 2 == total


def test_payloads_are_cut_between_shards_and_at_the_limit(monkeypatch):
    monkeypatch.setattr(cutting, "PAYLOAD_BYTES", 100)
    monkeypatch.setattr(cutting, "PAYLOADS_MAX", 10_000)
    params, carrier = two.learner_tree(), two.Memory()
    offer = two.sender(carrier).publish(params, 0)
    sizes = [[len(p) for p in pieces] for pieces in carrier.payloads.values()]
    assert all(len(s) == 1 or sum(s) <= 100 for s in sizes)
    assert any(len(s) > 1 for s in sizes)
    assert any(sum(s) > 100 for s in sizes)
    two.assert_same_bits(two.receiver(params, carrier).receive(offer), params)


def test_versions_follow_each_other_and_the_old_tree_keeps_its_values():
    carrier = two.Memory()
    params = [two.learner_tree(seed) for seed in range(6)]
    sender, receiver = two.sender(carrier), two.receiver(params[0], carrier)
    kept = []
    for version, tree in enumerate(params):
        kept.append(receiver.receive(sender.publish(tree, version)))
        # Memory of trees that nobody has is used again; of those kept it isn't.
        if version == 3:
            kept[0] = kept[1] = None
    for version, tree in enumerate(kept):
        if tree is not None:
            two.assert_same_bits(tree, params[version])


def test_payloads_of_the_version_before_the_last_are_dropped():
    carrier = two.Memory()
    params = two.learner_tree()
    sender = two.sender(carrier)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    for version in range(4):
        sender.publish(params, version)
    assert carrier.num_bytes == 2 * size
    sender.drop_before(4)
    assert not carrier.payloads


def test_hosts_of_a_slice_make_one_offer_of_their_parts():
    params, carrier = two.learner_tree(), two.Memory()
    offer = two.sender(carrier).publish(params, 5)
    whole = manifests.from_json(offer.manifest)
    halves = [_part(offer, whole, host) for host in range(2)]
    got = two.receiver(params, carrier).receive(merge(halves))
    two.assert_same_bits(got, params)
    with pytest.raises(MismatchError, match="must cover"):
        merge(halves[:1])
    with pytest.raises(MismatchError, match="must cover"):
        merge([*halves, halves[0]])


def _part(offer, whole, host):
    """The offer of one of two hosts, which have every other shard of each leaf."""

    def every_other(leaf):
        return dataclasses.replace(leaf, shards=leaf.shards[host::2])

    text = two.with_leaves(whole, every_other).to_json()
    return Offer(manifest=text, tickets=offer.tickets)
