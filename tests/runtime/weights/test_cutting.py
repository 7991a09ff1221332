"""Boxes as the receivers hold them, out of shards that are cut otherwise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import settings
from jigsaw_jax.runtime.weights import cutting, snapshot
from jigsaw_jax.runtime.weights import manifest as manifests
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.piece import Piece, gather
from jigsaw_jax.runtime.weights.placement import Host, box_shape, local_boxes
from tests.runtime.weights import two_meshes as two


def split(array, *cuts):
    """A snapshot of one leaf, cut along dim 0."""
    starts, stops = (0, *cuts), (*cuts, len(array))
    boxes = tuple(
        snapshot.Box(0, ((a, b), (0, array.shape[1])), array[a:b])
        for a, b in zip(starts, stops, strict=True)
    )
    leaf = manifests.Leaf(
        name="x", dtype="uint32", sent="uint32", shape=array.shape, shards=()
    )
    return snapshot.Snapshot(0, (leaf,), boxes)


def test_boxes_are_put_together_from_parts_of_several_shards():
    array = np.arange(24, dtype=np.uint32).reshape(6, 4)
    version = cutting.cut(split(array, 2, 4), {"x": (3, 2)})
    want: dict[manifests.Index, np.ndarray] = {
        ((a, a + 3), (b, b + 2)): array[a : a + 3, b : b + 2]
        for a in (0, 3)
        for b in (0, 2)
    }
    assert {cut.index for cut in version.cuts} == set(want)
    pieces = [version.piece(cut) for cut in version.cuts]
    for cut, data in zip(version.cuts, gather(pieces, Arena()), strict=True):
        assert data.tobytes() == want[cut.index].tobytes()


@pytest.mark.parametrize("name", ["y", "x"])
def test_a_leaf_that_nobody_named_or_of_which_others_have_a_part_goes_in_shards(name):
    taken = split(np.arange(24, dtype=np.uint32).reshape(6, 4), 2)
    if name == "x":
        taken = dataclasses.replace(taken, boxes=taken.boxes[:1])
    version = cutting.cut(taken, {name: (3, 2)})
    assert [cut.index for cut in version.cuts] == [box.index for box in taken.boxes]


def test_leaves_of_no_elements_or_no_dims_are_sent_too():
    params = {"none": jnp.zeros((0, 3)), "one": jnp.float32(7)}
    wanted = jax.tree.map(two.abstract_of_one, params)
    carrier = two.Memory()
    sender = two.Sender("run", [carrier], wanted=wanted, clock=two.Clock())
    receiver = two.Receiver("run", wanted, [carrier], clock=two.Clock())
    two.assert_same_bits(receiver.receive(sender.publish(params, 0)), params)


@pytest.mark.parametrize("encoding", ["exact", "bf16", "delta"])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_every_box_that_is_sent_is_one_that_receivers_hold(
    encoding, tensor, monkeypatch
):
    mesh = settings.Mesh(
        fsdp=2, tensor=2, sampler_data=4 // tensor, sampler_tensor=tensor
    )
    params, carrier = two.learner_tree(), two.Memory()
    wanted = two.wanted_like(params, mesh)
    sender = two.sender(carrier, encoding=encoding, wanted=wanted)
    receiver = two.receiver(params, carrier, mesh=mesh, keep_base=True)
    # A copy would be a fault: none is needed.
    monkeypatch.setattr(Host, "write", None)
    want = params
    for version in range(3):
        offer = sender.publish(params, version)
        if encoding == "bf16":
            want = jax.tree.map(_rounded, params)
        if encoding == "delta" and version:
            monkeypatch.undo()
        two.assert_same_bits(receiver.receive(offer), want)
        params = jax.tree.map(lambda x: x.at[0].multiply(1.5), params)
        want = params


def _rounded(x):
    return x.astype(jnp.bfloat16).astype(x.dtype)


def test_who_has_none_of_a_mesh_s_devices_knows_its_boxes():
    mesh = settings.Mesh(fsdp=2, tensor=2, sampler_data=2, sampler_tensor=2)
    params = two.learner_tree(mesh=mesh)
    distant = meshes.distant_sampler_mesh(mesh)
    shardings = meshes.sharding_tree(distant, two.AXES, params)
    for far, near in zip(
        jax.tree.leaves(meshes.abstract(params, shardings)),
        jax.tree.leaves(two.wanted_like(params, mesh)),
        strict=True,
    ):
        assert box_shape(far) == box_shape(near)
        for box in local_boxes(near):
            assert box_shape(far) == tuple(stop - start for start, stop in box)


def test_what_lies_together_is_taken_where_it_lies_and_the_rest_is_copied_once():
    whole = np.arange(12, dtype=np.uint32).reshape(3, 4)
    pieces = [Piece((3, 4), [(whole, (slice(None), slice(None)))])]
    pieces.append(Piece((3, 2), [(whole[:, :2], (slice(None), slice(None)))]))
    got = gather(pieces, Arena())
    assert np.shares_memory(got[0], whole)
    assert not np.shares_memory(got[1], whole)
    assert got[1].tobytes() == whole[:, :2].tobytes()
    written = np.empty(24, np.uint8)
    again = Piece((3, 2), pieces[1].parts)
    again.write(written)
    assert again.checksum == pieces[1].checksum
