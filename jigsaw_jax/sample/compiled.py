"""The engine's programs wrapped for its mesh, and how all that they hold lies there."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model
from jigsaw_jax.model import paged
from jigsaw_jax.model.paged import Paging
from jigsaw_jax.sample import cache, programs, state
from jigsaw_jax.sample.pages import PageTable
from jigsaw_jax.sample.programs import Limits
from jigsaw_jax.sample.state import DecodeState, SlotSnapshot
from jigsaw_jax.settings import Decoder, Sampler
from jigsaw_jax.types import Params


def limits_of(
    decoder: Decoder,
    sampler: Sampler,
    mesh: jax.sharding.Mesh,
    stop_tokens: tuple[int, ...],
) -> Limits:
    """What an engine's programs are compiled for.

    Args:
      decoder: the policy's shape.
      sampler: slots, caps and cache.
      mesh: of the sampler.
      stop_tokens: ids that end a completion.

    Returns:
      The limits.

    Raises:
      ValueError: replicas without pages, or slots or pages that don't divide over them.
    """
    replicas = mesh.shape["data"]
    paging = None
    if sampler.cache == "pages":
        if sampler.slots % replicas or sampler.pages_total % replicas:
            raise ValueError(
                f"Sampler.slots and Sampler.num_pages must be multiples of {replicas} "
                f"replicas, got {sampler.slots} and {sampler.pages_total}"
            )
        platform = mesh.devices.flat[0].platform
        paging = Paging(
            page_size=sampler.page_size,
            length=sampler.length_max,
            num_pages=sampler.pages_total + replicas,
            kv_dtype=sampler.kv_dtype,
            replicas=replicas,
            tensor=mesh.shape["tensor"],
            kernel=paged.has_kernel(
                decoder, platform, sampler.kv_dtype, mesh.shape["tensor"]
            ),
        )
    elif replicas > 1:
        raise ValueError(
            f"Sampler.cache must be 'pages' on {replicas} replicas, got 'slots'"
        )
    return Limits(
        num_slots=sampler.slots,
        length=sampler.length_max,
        num_steps=sampler.steps_per_call,
        stop_tokens=tuple(token for token in stop_tokens if token >= 0),
        kv_dtype=sampler.kv_dtype,
        paging=paging,
        is_drained=bool(sampler.slots_draining),
    )


def unrolled(decoder: Decoder, sampler: Sampler) -> Decoder:
    """The decoder that the sampler's programs are made of."""
    is_scanned = decoder.scan_layers and not sampler.unroll_layers
    return dataclasses.replace(decoder, scan_layers=is_scanned)


class Compiled:
    """The programs; each compiles at its first call of a shape.

    Args:
      decoder: the policy's shape.
      limits: what is fixed.
      mesh: of the sampler.

    Attributes:
      of_slot: how an extracted slot lies on the mesh.
    """

    def __init__(
        self, decoder: Decoder, limits: Limits, mesh: jax.sharding.Mesh
    ) -> None:
        self._decoder, self._limits, self._mesh = decoder, limits, mesh
        of_all = meshes.replicated(mesh)
        of_state = self._state_sharding()
        of_slots = of_state.slots
        of_one = self._one_sharding()
        self.of_slot = SlotSnapshot(cache=of_one, slots=of_slots)

        def program(
            function: Callable, out: Any, *, donate: str | None, options: Any = None
        ) -> Any:
            return jax.jit(
                meshes.on_mesh(mesh, function),
                out_shardings=out,
                donate_argnames=donate,
                compiler_options=options,
            )

        bound = functools.partial
        generate = bound(programs.generate, decoder, limits)
        # A prefix's length is that of its bucket where pages hold it.
        prefill = bound(programs.prefill, decoder, limits)
        extend = bound(programs.extend, decoder, limits)
        restore = programs.insert_snapshot
        self.empty = program(self._empty_state, of_state, donate=None)
        self.prefill = program(prefill, of_one, donate=None)
        self.insert = program(programs.insert, of_state, donate="state")
        options = _generate_options(decoder, limits, mesh)
        self.generate = program(
            generate, (of_state, of_all), donate="state", options=options
        )
        self.extend = program(extend, of_state, donate="state")
        self.extract = program(programs.extract, self.of_slot, donate=None)
        self.restore = program(restore, of_state, donate="state")
        self.release = program(programs.release, of_state, donate="state")
        self.resize = program(programs.resize, of_state, donate=None)

    @property
    def of_prefix(self) -> cache.SlotCache:
        """How the cache of a prefix lies on the mesh."""
        return self.of_slot.cache

    def page_table(self) -> PageTable | None:
        """All pages free; None with a cache of slots."""
        paging = self._limits.paging
        if paging is None:
            return None
        return PageTable(
            num_slots=self._limits.num_slots,
            pages_per_slot=paging.pages_per_slot,
            page_size=paging.page_size,
            num_pages=paging.num_pages,
            replicas=paging.replicas,
        )

    def prepare(self, params: Params) -> Params:
        """Weights cast, and taken apart layer by layer, where they lie."""
        if not self._decoder.scan_layers and model.is_stacked(params):
            params = _unstack(params)

        def cast(leaf: jax.Array, dtype: Any) -> jax.Array:
            # A cast to the same type would still be a call for each leaf.
            return leaf if leaf.dtype == dtype else leaf.astype(dtype)

        return jax.tree.map(cast, params, self.dtypes(params))

    def params_sharding(self, params: Params) -> Any:
        """How the weights, or subtrees of them, lie on the mesh."""
        return meshes.sharding_tree(self._mesh, self._axes(params), params)

    def _axes(self, params: Params) -> Any:
        axes = model.logical_axes(self._decoder)
        return {name: axes[name] for name in params}

    def dtypes(self, params: Params) -> Any:
        """Of each leaf of the weights as the decode loop reads it."""

        def one(leaf: Any, names: tuple[str, ...]) -> Any:
            is_norm = len(set(names) - {"layers"}) == 1
            return leaf.dtype if is_norm else jax.numpy.dtype(self._decoder.dtype)

        return jax.tree.map(one, params, self._axes(params))

    def lower(self, prompt_tokens: int) -> dict[str, Lowered]:
        """`generate` and a prefill, lowered from shapes alone."""
        shapes = jax.eval_shape(functools.partial(model.init_params, self._decoder), 0)
        cast = jax.tree.map(
            lambda x, dtype: jax.ShapeDtypeStruct(x.shape, dtype),
            shapes,
            self.dtypes(shapes),
        )
        params = meshes.abstract(cast, self.params_sharding(shapes))
        running = jax.eval_shape(self._empty_state)
        running = meshes.abstract(running, self._state_sharding())
        of_all = meshes.replicated(self._mesh)
        steps = meshes.abstract(np.int32(0), of_all)
        table = self.page_table()
        tables = None if table is None else meshes.abstract(table.tables_BO, of_all)
        tokens = meshes.abstract(np.zeros(prompt_tokens, np.int32), of_all)
        return {
            "generate": self.generate.lower(params, running, steps, tables),
            "prefill": self.prefill.lower(params, tokens),
        }

    def count(self) -> int:
        """Programs compiled so far, one for each shape they were called with."""
        wrapped = (
            self.empty,
            self.prefill,
            self.insert,
            self.generate,
            self.extend,
            self.extract,
            self.restore,
            self.release,
            self.resize,
        )
        return sum(program._cache_size() for program in wrapped)

    def _empty_state(self) -> DecodeState:
        limits = self._limits
        if limits.paging is not None:
            kept: cache.Cache = cache.empty_pages(self._decoder, limits.paging)
        else:
            kept = cache.empty(
                self._decoder, limits.num_slots, limits.length, limits.kv_dtype
            )
        return state.empty(kept, limits.num_slots)

    def _state_sharding(self) -> DecodeState:
        shapes = jax.eval_shape(self._empty_state)
        paging = self._limits.paging
        if paging is None:
            of_cache = self._one_sharding()
        else:
            spec = paged.pool_spec(self._decoder, paging)
            of_pool = NamedSharding(self._mesh, spec)
            of_cache = jax.tree.map(lambda _: of_pool, shapes.cache)
        of_all = meshes.replicated(self._mesh)
        return DecodeState(
            cache=of_cache, slots=jax.tree.map(lambda _: of_all, shapes.slots)
        )

    def _one_sharding(self) -> cache.SlotCache:
        """Key-value heads over "tensor" where they divide; all else on every device."""
        heads = meshes.partition_spec(
            self._mesh, ("kv_heads",), (self._decoder.num_kv_heads,)
        )
        one = functools.partial(cache.empty, self._decoder, 1, 1)
        shapes = jax.eval_shape(lambda: one(self._limits.kv_dtype))
        spec = PartitionSpec(*[None] * (shapes.slot_dim + 1), *heads)
        of_cache = NamedSharding(self._mesh, spec)
        return jax.tree.map(lambda _: of_cache, shapes)


def _generate_options(
    decoder: Decoder, limits: Limits, mesh: jax.sharding.Mesh
) -> dict[str, str] | None:
    """What keeps a row's bits where a drained state has fewer rows.

    XLA's CPU backend hands a sum to YNNPACK or not by its size, and the two round
    differently; of its products those of 2 to 32 rows agree. The canonical option has
    one height anyway, and must round as the learner does.
    """
    if not limits.is_drained or decoder.canonical_tile:
        return None
    if mesh.devices.flat[0].platform != "cpu":
        return None
    products = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
    return {"xla_cpu_experimental_ynn_fusion_type": products}


@jax.jit
def _unstack(params: Params) -> Params:
    """One program: a slice a leaf and layer would be hundreds of calls."""
    return model.unstack(params)
