"""Differences lose nothing, and are not used where they would not be smaller."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jigsaw_jax.runtime.weights import CorruptError, delta
from jigsaw_jax.runtime.weights import manifest as manifests
from tests.runtime.weights import two_meshes as two


@settings(max_examples=200)
@given(
    width=st.sampled_from([1, 2, 4, 8]),
    size=st.integers(0, 300),
    share=st.floats(0, 1),
    planes=st.integers(0, 255),
    seed=st.integers(0, 2**32 - 1),
)
def test_old_and_difference_give_new(width, size, share, planes, seed):
    chance = np.random.default_rng(seed)
    old = chance.integers(0, 256, size * width, np.uint8)
    is_changed = (chance.random((size, 1)) < share) & (planes >> np.arange(width) & 1)
    new = old ^ (is_changed * chance.integers(1, 256, (size, width))).astype(
        np.uint8
    ).reshape(-1)
    sent = delta.encode(new, old, width)
    if sent is not None:
        assert len(sent) < len(new)
        np.testing.assert_array_equal(old ^ delta.decode(sent, len(new), width), new)


def encoded(new, old, width):
    sent = delta.encode(new, old, width)
    assert sent is not None
    return sent


def test_sizes_are_those_of_the_smallest_form_of_each_plane():
    old = np.zeros(1000, "<u4")
    new = old.copy()
    new[:10] = 0x01  # 10 of 1000: a list, 5 bytes each.
    new[::4] |= 0x0100  # 250 of 1000: a mask of 125 bytes and the values.
    new |= 0x010000  # All: dense. The highest plane has nothing.
    sent = encoded(new.view(np.uint8), old.view(np.uint8), 4)
    assert len(sent) == 4 * 8 + 50 + (125 + 250) + 1000
    assert delta.encode(new.view(np.uint8), 255 - old.view(np.uint8), 4) is None


def test_a_spoilt_difference_is_refused():
    old = np.zeros(1000, np.uint8)
    new = old.copy()
    new[[3, 500]] = 1
    sent = encoded(new, old, 1)
    with pytest.raises(CorruptError, match="must have 18 bytes"):
        delta.decode(np.append(sent, np.uint8(0)), 1000, 1)
    with pytest.raises(CorruptError, match="must be whole"):
        delta.decode(sent[:-1], 1000, 1)
    with pytest.raises(CorruptError, match="must have 8 bytes"):
        delta.decode(sent[:7], 1000, 1)
    with pytest.raises(CorruptError, match="under 400, got 500"):
        delta.decode(sent, 400, 1)
    unknown = sent.copy()
    unknown[0] = 9
    with pytest.raises(CorruptError, match="must be whole, got 9"):
        delta.decode(unknown, 1000, 1)
    dense = np.arange(1000, dtype=np.uint8)
    dense[::4] = 0
    masked = encoded(np.where(np.arange(1000) % 3, 0, dense), old, 1)
    assert masked[0] == delta.MASK
    masked[8] ^= 1
    with pytest.raises(CorruptError, match="bits set"):
        delta.decode(masked, 1000, 1)


def stepped(params, share, seed):
    """Weights of which a share moved, as by a small step."""

    chance = np.random.default_rng(seed)

    def one(x):
        old = np.asarray(x)
        moved = chance.random(old.shape) < share
        new = np.where(moved, (old * np.float32(1.01)).astype(old.dtype), old)
        return jax.device_put(new, x.sharding)

    return jax.tree.map(one, params)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_deltas_end_at_the_very_bits_that_whole_versions_give(dtype):
    carrier, params = two.Memory(), two.learner_tree(dtype=dtype)
    sender = two.sender(carrier, encoding="delta")
    receiver = two.receiver(params, carrier, keep_base=True)
    whole = None
    for version in range(5):
        offer = sender.publish(params, version)
        manifest = manifests.from_json(offer.manifest)
        two.assert_same_bits(receiver.receive(offer), params)
        whole = whole or manifest.num_bytes
        if version:
            assert manifest.num_bytes < 0.5 * whole
        else:
            assert not any(s.base for leaf in manifest.leaves for s in leaf.shards)
        params = stepped(params, 0.02, version)


def test_weights_that_changed_all_over_are_sent_whole():
    carrier = two.Memory()
    sender = two.sender(carrier, encoding="delta")
    sender.publish(two.learner_tree(1), 1)
    offer = sender.publish(two.learner_tree(2), 2)
    dense = [
        shard
        for leaf in manifests.from_json(offer.manifest).leaves
        for shard in leaf.shards
        if "norm" not in leaf.name
    ]
    assert dense
    assert not any(shard.base for shard in dense)


def test_a_difference_that_leads_to_other_bits_is_not_taken(monkeypatch):
    carrier, params = two.Memory(), two.learner_tree()
    sender = two.sender(carrier, encoding="delta")
    receiver = two.receiver(params, carrier, keep_base=True)
    kept = receiver.receive(sender.publish(params, 0))
    encode = delta.encode

    def wrong(new, old, width):
        return encode(np.append(new[:-1], new[-1:] ^ 1), old, width)

    monkeypatch.setattr(delta, "encode", wrong)
    offer = sender.publish(stepped(params, 0.02, 0), 1)
    with pytest.raises(CorruptError, match="after its difference was applied"):
        receiver.receive(offer)
    two.assert_same_bits(kept, params)
