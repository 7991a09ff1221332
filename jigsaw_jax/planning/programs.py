"""The very programs of a run, lowered for slices that are not here, and compiled."""

import dataclasses
import functools
import importlib.util
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.stages import Lowered

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.model import decode
from jigsaw_jax.planning import flops
from jigsaw_jax.planning.chips import Slice
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.settings import Train, sizes
from jigsaw_jax.train.programs import Programs
from jigsaw_jax.types import Array, Float, Int, Params

# What makes a program that doesn't fit smaller.
_SHRINK = {
    "generate": "Sampler.slots",
    "prefill": "tokens in Sampler.prompt_buckets",
    "gradient": "Learner.rows",
}


class PlanError(Exception):
    """The plan can't be made, for a reason the user can do something about."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled program.

    Attributes:
      name: "gradient", "step", "generate" or "prefill".
      text: the compiled HLO.
      arguments_bytes: of what it is given, on each chip.
      temporaries_bytes: of what it needs besides.
      output_bytes: of what it returns in new memory, not in a donated argument.
      code_bytes: of the program itself.
      compile_s: how long it took.
    """

    name: str
    text: str
    arguments_bytes: int
    temporaries_bytes: int
    output_bytes: int
    code_bytes: int
    compile_s: float

    @property
    def peak_bytes(self) -> int:
        """On each chip while it runs."""
        parts = (self.arguments_bytes, self.temporaries_bytes, self.output_bytes)
        return sum(parts) + self.code_bytes


def tpu_devices(a_slice: Slice) -> list[Any]:
    """Devices of a slice that only the compiler knows.

    Args:
      a_slice: which.

    Returns:
      As many as the slice has chips.

    Raises:
      PlanError: libtpu is not installed, is in use, or doesn't know the shape.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise PlanError(
            "The TPU compiler (libtpu) must be installed to plan, got none; run: "
            "pip install 'jigsaw-jax[tpu]' (no TPU is needed)"
        )
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=a_slice.name)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise PlanError(
            f"{a_slice.name} must be a shape that libtpu can compile for, while no "
            f"other process uses libtpu; it says: {first}"
        ) from None
    return list(found.devices)


def lower_sampler(train: Train, devices: list[Any]) -> dict[str, Lowered]:
    """`generate` and `prefill` of the engine that the run would build."""
    alone = _alone(train, data=1, fsdp=1, tensor=1)
    mesh = meshes.sampler_mesh(alone, devices)
    stops = tuple(token for token in train.sampler.stop_tokens if token >= 0)
    # The tokenizer's stop tokens are not read here: only their number would matter.
    engine = Engine(train.decoder, train.sampler, mesh, stop_tokens=stops or (0,))
    return engine.lower()


def lower_learner(train: Train, devices: list[Any]) -> dict[str, Lowered]:
    """`gradient` of the largest micro-batch, and `step`."""
    alone = _alone(train, sampler_data=1, sampler_tensor=1)
    mesh = meshes.learner_mesh(alone, devices)
    shapes = jax.eval_shape(functools.partial(model.init_params, train.decoder), 0)
    programs = Programs(train, mesh, shapes)
    rows, _ = sizes.row_shapes(train)[0]
    return {
        "gradient": programs.lower_policy(
            rows, has_round=flops.has_frozen_round(train)
        ),
        "step": programs.lower_step(),
    }


def compile_program(name: str, lowered: Lowered, a_slice: Slice) -> Program:
    """Compiles with the TPU compiler: ten seconds to some minutes.

    Args:
      name: of the program.
      lowered: it.
      a_slice: that it is for.

    Returns:
      The program.

    Raises:
      PlanError: it doesn't fit in the chip's memory.
    """
    start = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        lines = [x.strip() for x in str(error).splitlines() if x.strip()]
        used = next((x for x in lines if "Used" in x and "hbm" in x), lines[0])
        raise PlanError(
            f"{name} must fit in a chip of {a_slice.name}; the compiler says: {used} "
            f"Take fewer {_SHRINK.get(name, 'parameters')} or a larger slice"
        ) from None
    memory = compiled.memory_analysis()
    assert memory is not None
    return Program(
        name=name,
        text=compiled.as_text() or "",
        arguments_bytes=memory.argument_size_in_bytes,
        temporaries_bytes=memory.temp_size_in_bytes,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        compile_s=time.perf_counter() - start,
    )


def unrolled(train: Train) -> Train:
    """The run without a loop: layers unrolled, the head at once; on one device."""
    sampler = dataclasses.replace(
        train.sampler, cache="slots", num_pages=0, kv_dtype=None
    )
    return dataclasses.replace(
        train,
        sampler=sampler,
        decoder=dataclasses.replace(train.decoder, scan_layers=False),
        learner=dataclasses.replace(train.learner, logprob_chunk=0),
        mesh=settings.Mesh(),
    )


def unrolled_flops(flat: Train) -> dict[str, float]:
    """Operations of the programs of an `unrolled` run, as XLA counts them.

    XLA counts a loop's body once; here nothing loops. Of `generate` it is one step up
    to the logits: XLA would also count the sort for top-k, which training never runs.
    Lowered for one CPU device from shapes alone, so it costs seconds and no memory.

    Args:
      flat: the run.

    Returns:
      Operations by program; elementwise ones are among them.
    """
    devices = jax.devices("cpu")[:1]
    lowered = {
        "gradient": lower_learner(flat, devices)["gradient"],
        "generate": _lower_step(flat.decoder, flat.sampler),
        "prefill": lower_sampler(flat, devices)["prefill"],
    }
    return {
        name: float((program.cost_analysis() or {})["flops"])
        for name, program in lowered.items()
    }


def _lower_step(decoder: settings.Decoder, sampler: settings.Sampler) -> Lowered:
    """One decode step up to the logits, on one device."""

    def step(
        params: Params,
        tokens_B: Int[Array, " B"],
        positions_B: Int[Array, " B"],
        cache: Any,
    ) -> tuple[Float[Array, "B V"], Any]:
        hidden_BD, cache = decode.decode_step(
            decoder, params, tokens_B, positions_B, cache
        )
        return model.logits(decoder, params, hidden_BD), cache

    params = jax.eval_shape(functools.partial(model.init_params, decoder), 0)
    slots = jax.ShapeDtypeStruct((sampler.slots,), jnp.int32)
    cache = jax.eval_shape(
        lambda: decode.empty_cache(decoder, sampler.slots, sampler.length_max)
    )
    return jax.jit(step).lower(params, slots, slots, cache)


def _alone(train: Train, **others: int) -> settings.Mesh:
    """Each side has a slice of its own, which holds nothing of the `others`."""
    return dataclasses.replace(train.mesh, shared=True, **others)
