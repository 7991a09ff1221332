"""Meshes and the logical-axis table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jigsaw_jax import mesh as meshes
from jigsaw_jax.settings import Mesh


def test_learner_and_sampler_take_disjoint_devices():
    learner, sampler = meshes.build_meshes(
        Mesh(data=2, tensor=2, sampler_tensor=3), jax.devices()
    )
    assert dict(learner.shape) == {"data": 2, "fsdp": 1, "tensor": 2}
    assert dict(sampler.shape) == {"data": 1, "fsdp": 1, "tensor": 3}
    assert list(learner.devices.flat) == jax.devices()[:4]
    assert list(sampler.devices.flat) == jax.devices()[4:7]


def test_shared_meshes_start_at_the_same_device():
    mesh = Mesh(data=2, sampler_tensor=2, shared=True)
    learner, sampler = meshes.build_meshes(mesh, jax.devices()[:2])
    assert list(learner.devices.flat) == list(sampler.devices.flat)


def test_too_few_devices_are_refused_with_the_way_out():
    one = jax.devices()[:1]
    with pytest.raises(ValueError, match=r"got 2; .*Mesh.shared = True"):
        meshes.build_meshes(Mesh(), one)
    with pytest.raises(ValueError, match=r"got 2; take smaller axes$"):
        meshes.build_meshes(Mesh(data=2, shared=True), one)
    meshes.build_meshes(Mesh(shared=True), one)


def test_sharding_tree_places_each_dim_by_its_logical_name():
    mesh = meshes.learner_mesh(Mesh(fsdp=2, tensor=2), jax.devices())
    axes = {"embedding": ("vocab", "embed"), "norm": ("layers", "embed")}
    arrays = {"embedding": jnp.zeros((6, 4)), "norm": jnp.zeros((3, 4))}
    tree = meshes.sharding_tree(mesh, axes, arrays)
    assert tree["embedding"].spec == P("tensor", "fsdp")
    assert tree["norm"].spec == P(None, "fsdp")
    assert tree == meshes.sharding_tree(mesh, axes)
    placed = jax.device_put(arrays["embedding"], tree["embedding"])
    assert placed.sharding.shard_shape(placed.shape) == (3, 2)


def test_uneven_key_value_heads_are_replicated_and_other_dims_refused():
    mesh = meshes.learner_mesh(Mesh(tensor=2), jax.devices())
    names = ("embed", "kv_heads", "head_dim")
    assert meshes.partition_spec(mesh, names, (8, 3, 4)) == P("fsdp", None, None)
    assert meshes.partition_spec(mesh, names, (8, 4, 4)) == P("fsdp", "tensor", None)
    with pytest.raises(ValueError, match=r"heads must be a multiple of 2.*got 9"):
        meshes.partition_spec(mesh, ("embed", "heads"), (8, 9))


@pytest.mark.parametrize(
    ("heads", "tensor", "copies"), [(8, 2, 1), (2, 4, 2), (6, 4, 2), (3, 4, 4)]
)
def test_key_value_heads_are_repeated_until_they_divide(heads, tensor, copies):
    mesh = meshes.learner_mesh(Mesh(tensor=tensor, shared=True), jax.devices())
    assert meshes.head_copies(mesh, heads) == copies
    keys = jnp.arange(heads)[None]
    repeat = meshes.on_mesh(mesh, lambda x: meshes.repeat_heads(x, dim=1))
    (repeated,) = jax.jit(repeat)(keys).tolist()
    # Query heads 0 to 11 still find their own, and each device has as many.
    num_queries = 12 if heads != 8 else 16
    found = [repeated[n * len(repeated) // num_queries] for n in range(num_queries)]
    assert found == [n * heads // num_queries for n in range(num_queries)]
    assert len(repeated) % tensor == 0


def test_programs_without_a_mesh_repeat_no_heads():
    keys = jnp.arange(3)
    assert meshes.repeat_heads(keys, dim=0) is keys
    assert meshes.platform() == "cpu"


def test_an_unknown_logical_axis_is_refused():
    mesh = meshes.learner_mesh(Mesh(), jax.devices())
    with pytest.raises(ValueError, match="got 'experts'"):
        meshes.partition_spec(mesh, ("experts",))


def test_rows_are_spread_over_data_and_fsdp():
    mesh = meshes.learner_mesh(
        Mesh(data=2, fsdp=2, tensor=2, shared=True), jax.devices()
    )
    rows = jax.device_put(jnp.zeros((8, 3)), meshes.rows_sharding(mesh))
    assert rows.sharding.shard_shape(rows.shape) == (2, 3)
    assert meshes.replicated(mesh).is_fully_replicated


def test_an_array_is_held_to_its_axes_inside_a_placed_program_only():
    mesh = meshes.learner_mesh(Mesh(data=2, fsdp=4, shared=True), jax.devices())
    x = jnp.ones((8, 3, 5))
    assert meshes.constrain(x, "rows") is x

    def double(x):
        assert meshes.is_spread("logits", 16)
        assert not meshes.is_spread("logits", 17)
        return meshes.constrain(2 * x, "rows")

    placed = meshes.on_mesh(mesh, double)
    out = jax.jit(placed)(jax.device_put(x, meshes.replicated(mesh)))
    assert out.sharding.is_equivalent_to(meshes.rows_sharding(mesh), 3)
    assert placed.__name__ == "double"


def test_shapes_stand_for_arrays_with_one_sharding_or_one_each():
    mesh = meshes.learner_mesh(Mesh(fsdp=2, shared=True), jax.devices())
    rows, whole = meshes.rows_sharding(mesh), meshes.replicated(mesh)
    tree = {"a": jnp.zeros((4, 2)), "b": jnp.zeros(3, jnp.int32)}
    same = meshes.abstract(tree, whole)
    assert {name: leaf.sharding for name, leaf in same.items()} == dict.fromkeys(
        "ab", whole
    )
    each = meshes.abstract(tree, {"a": rows, "b": whole})
    assert (each["a"].shape, each["a"].sharding) == ((4, 2), rows)
    assert (each["b"].dtype, each["b"].sharding) == (jnp.int32, whole)


def test_what_is_placed_and_fetched_on_one_host_is_the_same_array():
    mesh = meshes.learner_mesh(Mesh(fsdp=2, shared=True), jax.devices())
    tree = {"a": np.arange(8.0, dtype=np.float32).reshape(4, 2), "b": np.int32(3)}
    shardings = {
        "a": meshes.rows_sharding(mesh),
        "b": meshes.replicated(mesh),
    }
    placed = meshes.place(tree, shardings)
    assert placed["a"].sharding == shardings["a"]
    fetched = meshes.fetch(placed)
    np.testing.assert_array_equal(fetched["a"], tree["a"])
    assert fetched["b"] == 3
    # One sharding for all leaves.
    whole = meshes.place(tree, meshes.replicated(mesh))
    assert whole["a"].sharding == meshes.replicated(mesh)


def test_one_process_offers_all_its_devices():
    assert meshes.host_devices(3) == jax.devices()


class Device:
    """Stands for one of another process."""

    def __init__(self, process_index, number):
        self.process_index = process_index
        self.number = number


def test_processes_offer_as_many_devices_each_in_their_order(monkeypatch):
    devices = [Device(i % 2, i) for i in range(8)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert [d.number for d in meshes.host_devices(4)] == [0, 2, 1, 3]
    with pytest.raises(ValueError, match="as many devices of each"):
        meshes.host_devices(3)
    with pytest.raises(ValueError, match="at most 4, got 10"):
        meshes.host_devices(10)
