"""Memory that both ends map: whole, unchanged as long as it is used, gone when not."""

import dataclasses
import errno
import gc
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model
from jigsaw_jax.model import decoder as decoders
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import (
    CarrierError,
    CorruptError,
    MismatchError,
    Receiver,
    StaleError,
    cutting,
)
from jigsaw_jax.runtime.weights import manifest as manifests
from jigsaw_jax.runtime.weights.carriers import block, shared
from jigsaw_jax.runtime.weights.carriers.shared import SharedCarrier
from jigsaw_jax.runtime.weights.piece import Piece
from tests.runtime.weights import two_meshes as two

ROOT = pathlib.Path(__file__).parents[3]
SIZES = [5, 0, 70_000]


def pieces(value):
    return [Piece.of(np.full(size, value, np.uint8)) for size in SIZES]


def get(carrier, ticket, sizes=SIZES):
    return carrier.get(ticket, sizes, 0.0)


def assert_are(got, value):
    assert [len(piece) for piece in got] == SIZES
    assert all((piece == value).all() for piece in got)


@pytest.fixture
def ends():
    return SharedCarrier(), SharedCarrier()


@pytest.fixture
def line(ends):
    """Sender, receiver and two trees, of which the receiver has the first."""
    params = [two.learner_tree(seed) for seed in range(2)]
    sender = two.sender(ends[0], wanted=two.wanted_like(params[0]))
    receiver = two.receiver(params[0], ends[1])
    kept = receiver.receive(sender.publish(params[0], 0))
    return sender, receiver, params, kept


def test_a_receiver_takes_every_box_where_the_sender_wrote_it(ends, line):
    _, _, params, kept = line
    two.assert_same_bits(kept, params[0])
    starts = {
        start + offset
        for start, size in ((b.ctypes.data, b.nbytes) for b in mapped(ends[1]))
        for offset in range(0, size, 64)
    }
    for leaf in jax.tree.leaves(kept):
        for shard in leaf.addressable_shards:
            assert shard.data.unsafe_buffer_pointer() in starts


def mapped(carrier):
    maps = carrier._others._maps.values()
    return [np.frombuffer(mapping, np.uint8) for _, mapping in maps]


def test_a_block_is_used_again_only_when_no_receiver_has_it(ends):
    near, far = ends
    # Of what is free, no more is kept than is used.
    for number in range(2):
        near.put(f"kept{number}", pieces(0), 0.0)
    tickets = [near.put("a", pieces(1), 0.0)]
    got = get(far, tickets[0])
    near.drop(tickets[0])
    tickets.append(near.put("b", pieces(2), 0.0))
    assert_are(got, 1)
    one = got[2][100:200]
    del got
    gc.collect()
    near.drop(tickets[1])
    # A view of one piece holds the block; the other one is free.
    tickets.append(near.put("c", pieces(3), 0.0))
    assert (one == 1).all()
    inodes = [ticket[3] for ticket in tickets]
    assert inodes[2] == inodes[1] != inodes[0]
    del one
    gc.collect()
    assert near.put("d", pieces(4), 0.0)[3] == inodes[0]


def test_a_stale_payload_of_an_earlier_version_is_refused(ends):
    near, far = ends
    old = near.put("a", pieces(1), 0.0)
    near.drop(old)
    new = near.put("b", pieces(2), 0.0)
    assert new[:4] == old[:4]
    with pytest.raises(CarrierError, match="another payload by now"):
        get(far, old)
    assert_are(get(far, new), 2)


def test_a_payload_that_is_being_written_over_is_refused(ends):
    near, far = ends
    old = near.put("a", pieces(1), 0.0)
    near.drop(old)
    seen = []

    class Slow(Piece):
        def write(self, into_u8):
            with pytest.raises(CarrierError, match="is gone"):
                get(far, old)
            seen.append(len(into_u8))
            super().write(into_u8)

    slow = [Slow(piece.shape, piece.parts) for piece in pieces(2)]
    assert_are(get(far, near.put("b", slow, 0.0)), 2)
    assert seen == SIZES


def test_a_damaged_piece_is_seen_and_another_carrier_brings_the_bits(ends):
    params, spare = two.learner_tree(), two.Memory("spare")
    sender = two.sender(ends[0], spare, wanted=two.wanted_like(params))
    receiver = two.receiver(params, ends[1], spare)
    offer = sender.publish(params, 0)
    (used,) = ends[0]._used.values()
    used.pages[64 + 3] ^= 1
    with pytest.raises(CorruptError, match="must have checksum"):
        receiver.receive(offer)
    assert receiver.version == -1
    two.assert_same_bits(receiver.receive(offer, again=sender.again), params)
    assert spare.gets


def test_receivers_of_different_speeds_each_keep_what_they_have(ends, line):
    sender, fast, params, first = line
    slow = two.receiver(params[0], SharedCarrier())
    held = slow.receive(two.whole(sender))
    for version in range(1, 9):
        offer = sender.publish(params[version % 2], version)
        two.assert_same_bits(fast.receive(offer), params[version % 2])
        if version in (3, 7):
            held = slow.receive(offer)
        two.assert_same_bits(held, params[version >= 3])
    two.assert_same_bits(first, params[0])
    # Two versions of the sender's, one to write the next into, two that are held.
    assert len(ends[0]._used) + len(ends[0]._free) <= 5


def test_weights_stay_whole_when_an_array_of_them_is_donated(line):
    sender, receiver, params, kept = line
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    again = two.receiver(params[0], SharedCarrier()).receive(two.whole(sender))
    for leaf in jax.tree.leaves(again):
        double(leaf).block_until_ready()
    two.assert_same_bits(kept, params[0])
    two.assert_same_bits(receiver.receive(sender.publish(params[1], 1)), params[1])


def test_memory_that_is_short_is_an_error(ends, monkeypatch):
    def none(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "posix_fallocate", none)
    with pytest.raises(CarrierError, match="no shared memory for a: no space"):
        ends[0].put("a", pieces(1), 0.0)


def test_what_is_no_ticket_of_this_machine_is_refused(ends, tmp_path):
    near, far = ends
    good = near.put("a", pieces(1), 0.0)
    machine, process, file, inode, use = good
    with (tmp_path / "secret").open("w+") as other:
        wrong = [
            ("elsewhere", process, file, inode, use),
            (machine, process, other.fileno(), inode, use),
            (machine, process, 99_999, inode, use),
            (machine, 2**30, file, inode, use),
            (machine, process, file, inode + 1, use),
            (machine, process, file, inode, use + 1),
            (machine, "../self", file, inode, use),
            (machine, process, file, inode),
            None,
        ]
        for ticket in wrong:
            with pytest.raises(CarrierError, match="shared memory"):
                get(far, ticket)
    with pytest.raises(CarrierError, match="must have 200000 bytes"):
        get(far, good, [200_000])
    assert_are(get(far, good), 1)


@pytest.mark.slow
def test_mappings_and_files_go_with_the_blocks_of_their_sender():
    far = SharedCarrier()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for value in range(3):
        near = SharedCarrier()
        for _ in range(3):
            assert_are(get(far, near.put("a", pieces(value), 0.0)), value)
        del near
        gc.collect()
    assert_are(get(far, (last := SharedCarrier()).put("a", pieces(9), 0.0)), 9)
    assert len(mapped(far)) == 1
    # A block has a file for its owner, whose mapping has one, as has the receiver's.
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    del last


CHILD = """
import sys
import numpy as np
from jigsaw_jax.runtime.weights.carriers.shared import SharedCarrier
from jigsaw_jax.runtime.weights.piece import Piece
import json
carrier = SharedCarrier()
for value in (1, 2):
    pieces = [Piece.of(np.full(size, value, np.uint8)) for size in (5, 0, 70_000)]
    print(json.dumps(carrier.put(str(value), pieces, 0.0)), flush=True)
sys.stdin.read()
"""


def test_a_sender_that_dies_between_pieces_leaves_those_that_were_taken():
    carrier = SharedCarrier()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        tickets = [json.loads(child.stdout.readline()) for _ in range(2)]
        got = get(carrier, tickets[0])
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert_are(got, 1)
    with pytest.raises(CarrierError, match="shared memory is gone"):
        get(carrier, tickets[1])
    assert_are(got, 1)


def test_processes_of_this_machine_can_share():
    assert block.can_share()


def test_what_fitted_of_a_version_is_free_again_when_the_rest_went_another_way(
    ends, monkeypatch
):
    monkeypatch.setattr(cutting, "PAYLOAD_BYTES", 200)
    params, spare = two.learner_tree(), two.Memory("spare")
    sender = two.sender(ends[0], spare, wanted=two.wanted_like(params))
    left = iter([True, True])
    made = block.Block

    def short(num_bytes):
        if not next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return made(num_bytes)

    monkeypatch.setattr(shared, "Block", short)
    offer = sender.publish(params, 0)
    assert {name for name, _ in offer.tickets.values()} == {"spare"}
    (reason,) = sender.passed_over
    assert "shared: no shared memory" in reason
    assert "Too many open files" in reason
    assert not ends[0]._used
    receiver = two.receiver(params, ends[1], spare)
    two.assert_same_bits(receiver.receive(offer), params)
    # There is memory again: the next version goes the usual way.
    monkeypatch.setattr(shared, "Block", made)
    offer = sender.publish(params, 1)
    assert {name for name, _ in offer.tickets.values()} == {"shared"}
    assert sender.passed_over == ()
    two.assert_same_bits(receiver.receive(offer), params)


def test_a_receiver_without_a_file_left_says_so_and_asks_for_another_way(
    ends, monkeypatch
):
    params, spare = two.learner_tree(), two.Memory("spare")
    sender = two.sender(ends[0], spare, wanted=two.wanted_like(params))
    receiver = two.receiver(params, ends[1], spare)
    offer = sender.publish(params, 0)

    def none(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(block, "_open", none)
    with pytest.raises(CarrierError, match="Too many open files"):
        receiver.receive(offer)
    two.assert_same_bits(receiver.receive(offer, again=sender.again), params)


TREES = {
    "tied": {"tied_head": True},
    "untied": {"tied_head": False},
    "leaf by leaf": {"tied_head": True, "scan_layers": False},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", TREES)
def test_every_leaf_of_every_kind_of_tree_arrives_once_and_as_itself(ends, kind, dtype):
    decoder = dataclasses.replace(two.DECODER, **TREES[kind])
    shapes = jax.eval_shape(lambda: model.init_params(decoder, 0))
    axes = decoders.logical_axes(decoder)
    learner = meshes.learner_mesh(two.MESH, jax.devices())
    sampler = meshes.sampler_mesh(two.MESH, jax.devices())
    number = itertools.count(1)
    params = jax.tree.map(
        lambda leaf, place: jax.device_put(
            np.full(leaf.shape, next(number), jnp.dtype(dtype)), place
        ),
        shapes,
        meshes.sharding_tree(learner, axes, shapes),
    )
    wanted = meshes.abstract(params, meshes.sharding_tree(sampler, axes, params))
    sender = two.sender(ends[0], wanted=wanted)
    receiver = Receiver("run", wanted, [ends[1]], clock=Clock())
    offer = sender.publish(params, 0)
    got = receiver.receive(offer)
    two.assert_same_bits(got, params)
    # No constant twice: no leaf is in another's place.
    leaves = jax.tree.leaves(got)
    assert len({float(np.asarray(leaf).flat[0]) for leaf in leaves}) == len(leaves)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert manifests.from_json(offer.manifest).num_bytes == total


def test_weights_of_an_older_version_or_another_type_or_layout_change_nothing(line):
    sender, receiver, params, kept = line
    old = two.whole(sender)
    now = receiver.receive(sender.publish(params[1], 1))
    with pytest.raises(StaleError, match="version must be over 1, got 0"):
        receiver.receive(old)
    turned = jax.tree.map(lambda leaf: leaf.T, params[0])
    as_int = jax.tree.map(lambda leaf: leaf.view(jnp.int32), params[0])
    for number, wrong in enumerate((turned, as_int), 2):
        with pytest.raises(MismatchError, match="must be"):
            receiver.receive(sender.publish(wrong, number))
    assert receiver.version == 1
    two.assert_same_bits(now, params[1])
    two.assert_same_bits(kept, params[0])
    two.assert_same_bits(receiver.receive(sender.publish(params[0], 9)), params[0])
