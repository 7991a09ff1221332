"""Device meshes of learner and sampler, and the table from logical to mesh axes."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jigsaw_jax import settings

AXES = ("data", "fsdp", "tensor")
_AUTO = (AxisType.Auto,) * len(AXES)

# Which mesh axes carry a logical axis. Rows of a batch are spread over both `data`
# and `fsdp`: parameters are gathered along `fsdp` where a layer needs them whole.
MESH_AXES: dict[str, str | tuple[str, ...] | None] = {
    "rows": ("data", "fsdp"),
    "embed": "fsdp",
    "vocab": "tensor",
    # A device's share is a part of the share that it has of the vocabulary.
    "logits": ("tensor", "data", "fsdp"),
    # In the same order, so that one exchange takes logits from the one to the other.
    "slots": ("tensor", "data", "fsdp"),
    "mlp": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    # Every device has a slice of each expert's hidden dim, so no token travels.
    "expert": None,
    # Of an adapter: small, and summed over.
    "rank": None,
    "layers": None,
}

# A model has few key-value heads, often fewer than devices on `tensor`; each device
# then holds all of them, and draws for all slots where these don't divide. A prompt is
# a row that every replica of the sampler prefills, while a learner's rows divide by its
# settings. Every other dim has to divide.
REPLICATED_WHERE_UNEVEN = frozenset({"kv_heads", "rows", "slots"})


def build_meshes(
    mesh: settings.Mesh, devices: Sequence[Any]
) -> tuple[jax.sharding.Mesh, jax.sharding.Mesh]:
    """The learner's mesh and the sampler's."""
    return learner_mesh(mesh, devices), sampler_mesh(mesh, devices)


def learner_mesh(mesh: settings.Mesh, devices: Sequence[Any]) -> jax.sharding.Mesh:
    """The first data x fsdp x tensor devices."""
    _check_enough(mesh, devices)
    shape = (mesh.data, mesh.fsdp, mesh.tensor)
    return _mesh(devices[: mesh.learner_devices], shape)


def sampler_mesh(mesh: settings.Mesh, devices: Sequence[Any]) -> jax.sharding.Mesh:
    """Its data x tensor devices: behind the learner's, or the first when shared."""
    _check_enough(mesh, devices)
    start = 0 if mesh.shared else mesh.learner_devices
    own = devices[start : start + mesh.sampler_devices]
    return _mesh(own, (mesh.sampler_data, 1, mesh.sampler_tensor))


def distant_sampler_mesh(mesh: settings.Mesh) -> jax.sharding.AbstractMesh:
    """The shape of the sampler's mesh, for who has none of its devices."""
    sizes = (mesh.sampler_data, 1, mesh.sampler_tensor)
    return jax.sharding.AbstractMesh(sizes, AXES, axis_types=_AUTO)


def partition_spec(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    logical_axes: Sequence[str | None],
    shape: Sequence[int] | None = None,
) -> PartitionSpec:
    """How an array whose dims have these logical names lies on the mesh.

    Args:
      mesh: of the devices.
      logical_axes: a name for each dim, None for one that is whole everywhere.
      shape: of the array. With it, a dim that its devices do not divide is replicated
        where `REPLICATED_WHERE_UNEVEN` names it and refused otherwise.

    Returns:
      The mesh axes of each dim.

    Raises:
      ValueError: an unknown name, or a dim that must divide and does not.
    """
    spec = []
    for dim, name in enumerate(logical_axes):
        if name is None:
            spec.append(None)
            continue
        if name not in MESH_AXES:
            known = ", ".join(sorted(MESH_AXES))
            raise ValueError(f"logical axis must be one of {known}, got {name!r}")
        axis = MESH_AXES[name]
        if axis is not None and shape is not None:
            num_devices = _num_devices(mesh, axis)
            if shape[dim] % num_devices:
                if name not in REPLICATED_WHERE_UNEVEN:
                    axes = (axis,) if isinstance(axis, str) else axis
                    raise ValueError(
                        f"{name} must be a multiple of {num_devices}, the devices on "
                        f"Mesh.{' x '.join(axes)}, got {shape[dim]!r}; "
                        "take fewer devices on that axis"
                    )
                axis = None
        spec.append(axis)
    return PartitionSpec(*spec)


def on_mesh(mesh: jax.sharding.Mesh, function: Callable) -> Callable:
    """`function` for `jax.jit`, with `constrain` inside it laying arrays on `mesh`."""

    @functools.wraps(function)
    def placed(*args: Any, **kwargs: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args, **kwargs)

    # A partial has no name of its own; traces and compiled programs show this one.
    placed.__name__ = getattr(function, "func", function).__name__
    return placed


def constrain(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """`x` laid by logical names on the mesh of `on_mesh`; without one, `x`.

    Left to itself the compiler spreads activations as the weights lie, over "fsdp"
    along D, and then sums every layer's output over all devices. With rows held to
    "fsdp" it gathers the weights instead, which are far smaller.

    Args:
      x: an array inside a program.
      *logical_axes: of its first dims; those behind are whole everywhere.

    Returns:
      The array.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    names = logical_axes + (None,) * (x.ndim - len(logical_axes))
    spec = partition_spec(mesh, names, x.shape)
    return jax.lax.with_sharding_constraint(x, spec)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(weight: jax.Array, logical_axes: tuple[str, ...]) -> jax.Array:
    """A weight whole along "fsdp", for a product; its gradient is scattered again.

    Said outright, since the partitioner would rather pass slices of the weight around
    and add up a product of each, in the product's own bfloat16.
    """
    return constrain(weight, *_whole(logical_axes))


def _gathered(
    weight: jax.Array, logical_axes: tuple[str, ...]
) -> tuple[jax.Array, None]:
    return gathered(weight, logical_axes), None


def _scattered(
    logical_axes: tuple[str, ...], _: None, gradient: jax.Array
) -> tuple[jax.Array]:
    return (constrain(gradient, *logical_axes),)


gathered.defvjp(_gathered, _scattered)


def _whole(logical_axes: tuple[str, ...]) -> tuple[str | None, ...]:
    return tuple(None if MESH_AXES[n] == "fsdp" else n for n in logical_axes)


def is_spread(logical_axis: str, size: int) -> bool:
    """Whether a dim of this size divides over its devices of `on_mesh`; see there."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = MESH_AXES[logical_axis]
    if mesh.empty or mesh.size == 1 or axes is None:
        return False
    return size % _num_devices(mesh, axes) == 0


def platform() -> str:
    """Of the devices of `on_mesh`, here or not; without one, of those that are here."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def head_copies(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, num_kv_heads: int
) -> int:
    """Copies of each key-value head that stand side by side, so that all divide.

    The rule: of K heads on t devices of "tensor", K' = lcm(K, t) are attended to, and
    each device holds K / gcd(K, t) of them. Query heads keep their order, since t
    divides their number, as K does. Weights keep K heads, whole on every device where
    t doesn't divide them.
    """
    if mesh.empty:
        return 1
    return math.lcm(num_kv_heads, mesh.shape["tensor"]) // num_kv_heads


def repeat_heads(x: jax.Array, dim: int) -> jax.Array:
    """Keys or values with `head_copies` of each head of a dim, for `on_mesh`'s mesh.

    Copies stand next to each other, so that query head n of N still belongs to head
    n K' // N.
    """
    mesh = jax.sharding.get_abstract_mesh()
    copies = head_copies(mesh, x.shape[dim])
    return x if copies == 1 else jnp.repeat(x, copies, axis=dim)


def sharding_tree(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    logical_axes: Any,
    arrays: Any | None = None,
) -> Any:
    """The sharding of each leaf of a tree whose leaves are tuples of logical names.

    `arrays` is a tree of the same structure whose leaves have a shape; with it uneven
    dims follow `partition_spec`.
    """

    def one(names: tuple[str, ...], array: Any | None = None) -> NamedSharding:
        shape = None if array is None else array.shape
        return NamedSharding(mesh, partition_spec(mesh, names, shape))

    rest = () if arrays is None else (arrays,)
    return jax.tree.map(one, logical_axes, *rest, is_leaf=_is_names)


def abstract(tree: Any, shardings: Any) -> Any:
    """Shapes and types of arrays in the place of arrays, to lower a program from.

    Args:
      tree: of whatever has a shape and a dtype.
      shardings: one for all leaves, or a tree of the same structure.

    Returns:
      A tree of `jax.ShapeDtypeStruct`.
    """

    def one(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    if isinstance(shardings, NamedSharding):
        return jax.tree.map(lambda x: one(x, shardings), tree)
    return jax.tree.map(one, tree, shardings)


def rows_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Sharding of arrays whose first dim is rows of a batch."""
    return NamedSharding(mesh, partition_spec(mesh, ("rows",)))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Any, shardings: Any) -> Any:
    """Arrays on their devices, also where other hosts have some of those.

    `jax.device_put` would compare every leaf over all hosts, by a program each. Here
    they must be equal: each host takes its devices' parts of its own copy.

    Args:
      tree: of arrays, of `HostParts`, or of arrays that lie on such devices already.
      shardings: one for all leaves, or a tree of the same structure.

    Returns:
      The tree on the devices.
    """
    leaves, treedef = jax.tree.flatten(tree)
    if isinstance(shardings, NamedSharding):
        wanted = [shardings] * len(leaves)
    else:
        wanted = treedef.flatten_up_to(shardings)
    if all(sharding.is_fully_addressable for sharding in wanted):
        return jax.device_put(tree, shardings)
    return treedef.unflatten(map(_placed, leaves, wanted))


@dataclasses.dataclass(frozen=True, slots=True)
class HostParts:
    """What one host has of an array that lies over several.

    Attributes:
      shape: of the whole array.
      parts: of each device of this host.
    """

    shape: tuple[int, ...]
    parts: dict[Any, np.ndarray]


def fetch(tree: Any) -> Any:
    """Arrays on the host, for `place` to bring back; of several hosts, on each its own.

    What every device has whole is an array, and so is all that lies on one host.
    """
    return jax.tree.map(_fetched, tree)


def host_devices(num: int) -> list[Any]:
    """The first devices of each process, as many of each, in the order of processes.

    Args:
      num: of all of them.

    Returns:
      Devices for `learner_mesh` or `sampler_mesh`; all that there are in one process.

    Raises:
      ValueError: the processes can't have as many each, or one has too few.
    """
    processes = jax.process_count()
    if processes == 1:
        return jax.devices()
    by_process: list[list[Any]] = [[] for _ in range(processes)]
    for device in jax.devices():
        by_process[device.process_index].append(device)
    each, rest = divmod(num, processes)
    fewest = min(map(len, by_process))
    if rest or fewest < each:
        raise ValueError(
            f"a mesh over {processes} hosts must have as many devices of each, and at "
            f"most {fewest}, got {num}; take other axes in Mesh"
        )
    return [device for of_one in by_process for device in of_one[:each]]


def _placed(x: Any, sharding: NamedSharding) -> Any:
    if isinstance(x, HostParts):
        parts = [jax.device_put(part, device) for device, part in x.parts.items()]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    whole = np.asarray(x)
    return jax.make_array_from_process_local_data(sharding, whole, whole.shape)


def _fetched(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return jax.device_get(x)
    shards = x.addressable_shards
    return HostParts(x.shape, {one.device: np.asarray(one.data) for one in shards})


def _num_devices(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, axes: str | tuple[str, ...]
) -> int:
    axes = (axes,) if isinstance(axes, str) else axes
    return math.prod(mesh.shape[axis] for axis in axes)


def _is_names(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(name, str) for name in node)


def _check_enough(mesh: settings.Mesh, devices: Sequence[Any]) -> None:
    learner, sampler = mesh.learner_devices, mesh.sampler_devices
    needed = max(learner, sampler) if mesh.shared else learner + sampler
    if needed <= len(devices):
        return
    fix = "take smaller axes"
    if not mesh.shared:
        fix += (
            ", set Mesh.shared = True (sampler and learner take turns), or on CPU set "
            f"jax_num_cpu_devices to {needed}"
        )
    raise ValueError(
        f"Mesh (learner {learner}, sampler {sampler}) must have at most "
        f"{len(devices)} devices, got {needed}; {fix}"
    )


def _mesh(devices: Sequence[Any], shape: tuple[int, int, int]) -> jax.sharding.Mesh:
    grid = np.array(devices, dtype=object).reshape(shape)
    return jax.sharding.Mesh(grid, AXES, axis_types=_AUTO)
