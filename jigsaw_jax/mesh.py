"""Device meshes of learner and sampler, and the table from logical to mesh axes."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jigsaw_jax import settings

AXES = ("data", "fsdp", "tensor")

# Which mesh axes carry a logical axis. Rows of a batch are spread over both `data`
# and `fsdp`: parameters are gathered along `fsdp` where a layer needs them whole.
MESH_AXES: dict[str, str | tuple[str, ...] | None] = {
    "rows": ("data", "fsdp"),
    "embed": "fsdp",
    "vocab": "tensor",
    "mlp": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    # Every device has a slice of each expert's hidden dim, so no token travels.
    "expert": None,
    "layers": None,
}

# A model has few key-value heads, often fewer than devices on `tensor`; each device
# then holds all of them. Every other dim has to divide.
REPLICATED_WHERE_UNEVEN = frozenset({"kv_heads"})


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
    """`sampler_tensor` devices: behind the learner's, or the first when shared."""
    _check_enough(mesh, devices)
    start = 0 if mesh.shared else mesh.learner_devices
    own = devices[start : start + mesh.sampler_tensor]
    return _mesh(own, (1, 1, mesh.sampler_tensor))


def partition_spec(
    mesh: jax.sharding.Mesh,
    logical_axes: Sequence[str],
    shape: Sequence[int] | None = None,
) -> PartitionSpec:
    """How an array whose dims have these logical names lies on the mesh.

    Args:
      mesh: of the devices.
      logical_axes: a name for each dim.
      shape: of the array. With it, a dim that its devices do not divide is replicated
        where `REPLICATED_WHERE_UNEVEN` names it and refused otherwise.

    Returns:
      The mesh axes of each dim.

    Raises:
      ValueError: an unknown name, or a dim that must divide and does not.
    """
    spec = []
    for dim, name in enumerate(logical_axes):
        if name not in MESH_AXES:
            known = ", ".join(sorted(MESH_AXES))
            raise ValueError(f"logical axis must be one of {known}, got {name!r}")
        axis = MESH_AXES[name]
        if axis is not None and shape is not None:
            axes = (axis,) if isinstance(axis, str) else axis
            num_devices = int(np.prod([mesh.shape[a] for a in axes]))
            if shape[dim] % num_devices:
                if name not in REPLICATED_WHERE_UNEVEN:
                    raise ValueError(
                        f"{name} must be a multiple of {num_devices}, the devices on "
                        f"Mesh.{' x '.join(axes)}, got {shape[dim]!r}; "
                        "take fewer devices on that axis"
                    )
                axis = None
        spec.append(axis)
    return PartitionSpec(*spec)


def sharding_tree(
    mesh: jax.sharding.Mesh, logical_axes: Any, arrays: Any | None = None
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


def rows_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Sharding of arrays whose first dim is rows of a batch."""
    return NamedSharding(mesh, partition_spec(mesh, ("rows",)))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def _is_names(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(name, str) for name in node)


def _check_enough(mesh: settings.Mesh, devices: Sequence[Any]) -> None:
    learner, sampler = mesh.learner_devices, mesh.sampler_tensor
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
    return jax.sharding.Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))
