"""Makes the plan of a run: refuse, lower, check, compile, describe."""

from typing import Any

from jigsaw_jax.planning import flops, memory, programs, roofline
from jigsaw_jax.planning.chips import Slice, parse_slice
from jigsaw_jax.settings import Train, fields


def make(
    train: Train,
    *,
    sampler_topology: str | None,
    learner_topology: str | None,
    name: str,
) -> dict[str, Any]:
    """Compile the run's programs for two slices and say what they cost.

    Args:
      train: the run.
      sampler_topology: like "v5e:2x4".
      learner_topology: likewise.
      name: of the run.

    Returns:
      The plan, as JSON values.

    Raises:
      PlanError: nothing fits, or the compiler isn't there.
      ValueError: a slice is unknown, or has other chips than the mesh asks for.
    """
    on_sampler = parse_slice("--sampler_topology", sampler_topology)
    on_learner = parse_slice("--learner_topology", learner_topology)
    _check_chips("sampler", train.mesh.sampler_tensor, on_sampler)
    _check_chips("learner", train.mesh.learner_devices, on_learner)
    _check_fits(train, on_sampler, on_learner)
    of_sampler = _compiled(
        programs.lower_sampler(train, programs.tpu_devices(on_sampler)), on_sampler
    )
    of_learner = _compiled(
        programs.lower_learner(train, programs.tpu_devices(on_learner)), on_learner
    )
    return {
        "name": name,
        "settings": _settings(train),
        "sampler": describe_sampler(train, of_sampler, on_sampler),
        "learner": describe_learner(train, of_learner, on_learner),
        "flops_check": _flops_check(train),
    }


def describe_sampler(
    train: Train, compiled: dict[str, programs.Program], on: Slice
) -> dict[str, Any]:
    """The plan's side of `generate` and `prefill`; a call has all its steps."""
    steps = train.sampler.steps_per_call
    one = flops.generate(train)
    call = flops.Flops(
        model=steps * one.model,
        program=steps * one.program,
        attention=steps * one.attention,
    )
    found = {
        "generate": roofline.describe(compiled["generate"], call, on, open_trips=steps),
        "prefill": roofline.describe(compiled["prefill"], flops.prefill(train), on),
    }
    return roofline.sampler(train, found, on)


def describe_learner(
    train: Train, compiled: dict[str, programs.Program], on: Slice
) -> dict[str, Any]:
    """The plan's side of `gradient` and `step`."""
    counted = {
        "gradient": flops.gradient(train, train.learner.rows),
        # Elementwise work alone.
        "step": flops.Flops(model=0, program=0),
    }
    found = {
        name: roofline.describe(compiled[name], counted[name], on) for name in counted
    }
    return roofline.learner(train, found, on)


def _settings(train: Train) -> dict[str, Any]:
    """What decides the programs, so that a simulation knows what the times are of."""
    prefixes = ("Decoder.", "Sampler.", "Learner.", "Mesh.", "Objective.", "Pipeline.")
    flat = fields.flatten(train)
    return {name: flat[name] for name in flat if name.startswith(prefixes)}


def _compiled(lowered: dict, on: Slice) -> dict[str, programs.Program]:
    return {
        name: programs.compile_program(name, program, on)
        for name, program in lowered.items()
    }


def _check_chips(side: str, needed: int, on: Slice) -> None:
    if needed != on.num_chips:
        axes = "sampler_tensor" if side == "sampler" else "data x fsdp x tensor"
        raise ValueError(
            f"--{side}_topology must have as many chips as Mesh.{axes} = {needed}, "
            f"got {on.name!r} with {on.num_chips}"
        )


def _check_fits(train: Train, on_sampler: Slice, on_learner: Slice) -> None:
    """Refuse before the compiler takes its minutes."""
    spread = train.mesh.data * train.mesh.fsdp
    slots = train.sampler.slots
    checks = (
        ("sampler", memory.sampler(train), on_sampler, 1 / slots),
        ("learner", memory.learner(train), on_learner, spread / train.learner.rows),
    )
    for side, held, on, smallest in checks:
        refusal = memory.refusal(side, held, on.chip.hbm_bytes, smallest)
        if refusal:
            raise programs.PlanError(refusal)


def _flops_check(train: Train) -> dict[str, float]:
    """XLA's count of the unrolled programs over ours; it has elementwise work too."""
    flat = programs.unrolled(train)
    found = programs.unrolled_flops(flat)
    ours = {
        "gradient": flops.gradient(flat, flat.learner.rows),
        "generate": flops.generate(flat),
        "prefill": flops.prefill(flat),
    }
    return {name: found[name] / ours[name].program for name in found}
