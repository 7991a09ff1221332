"""From programs and their costs to times, bounds, tokens a second and MFU."""

import math
from typing import Any

from jigsaw_jax.planning import costs, flops, hlo, memory, pages
from jigsaw_jax.planning.chips import Slice
from jigsaw_jax.planning.programs import Program
from jigsaw_jax.settings import Train, sizes

# A Pallas kernel has no cycles. Ours are attention, and are taken to move their
# operands and then to reach this share of the peak over the blocks that they compute.
# The compiler's schedule of splash attention on a v5e, without any wait, has 0.50
# forward and 0.91 backward: docs/performance.md.
PALLAS = "tpu_custom_call"
KERNEL = 0.5
_SIZES = (
    "peak_bytes",
    "arguments_bytes",
    "temporaries_bytes",
    "output_bytes",
    "code_bytes",
)


def describe(
    program: Program,
    counted: flops.Flops,
    a_slice: Slice,
    *,
    open_trips: int = 1,
    kernels: tuple[costs.Kernel, ...] = (),
) -> dict[str, Any]:
    """One program's costs a run, as JSON values.

    The roofline has the operations that the mathematics needs, the bytes that the
    compiled program moves and the time of its collectives; the estimate has the
    compiler's cycles, and is never below the roofline's compute and memory time.

    Args:
      program: compiled.
      counted: its operations.
      a_slice: that it is for.
      open_trips: runs of a loop whose count isn't in the text.
      kernels: Pallas kernels of known traffic.

    Returns:
      Names to numbers; bytes and cycles on one chip, operations over all.
    """
    chip = a_slice.chip
    walk = costs.Walk(
        hlo.parse(program.text),
        chip,
        a_slice.num_chips,
        open_trips=open_trips,
        kernels=kernels,
    )
    cost = walk.cost()
    parts = {
        "compute": counted.program / a_slice.num_chips / chip.peak_flops,
        "memory": cost.hbm_bytes / chip.hbm_bytes_s,
        "interconnect": cost.collective_s,
    }
    bound = max(parts, key=lambda name: parts[name])
    floor = max(parts["compute"], parts["memory"])
    kernels_s = cost.kernels_s
    if PALLAS in cost.unestimated and not kernels:
        kernels_s += counted.attention / a_slice.num_chips / chip.peak_flops / KERNEL
    return {
        "compile_s": round(program.compile_s, 1),
        **{name: getattr(program, name) for name in _SIZES},
        "flops": counted.program,
        "model_flops": counted.model,
        "bytes": cost.hbm_bytes,
        "estimated_cycles": cost.cycles,
        "kernels_s": kernels_s,
        "collective_s": cost.collective_s,
        "collectives": _collectives(cost),
        "time_s": max(cost.time_s + kernels_s - cost.kernels_s, floor),
        "roofline_s": parts,
        "bound": bound,
        "unestimated": dict(cost.unestimated.most_common()),
        "open_loops": dict.fromkeys(cost.uncounted, open_trips),
    }


def sampler(train: Train, found: dict[str, dict[str, Any]], on: Slice) -> dict:
    """The sampler's side of a plan.

    Args:
      train: the run.
      found: `describe` of "generate" (all steps of a call) and "prefill".
      on: its slice.

    Returns:
      JSON values; `decode_ratio` is the time of a step over that of reading once the
      weights and what there is of the sequences, `decode_tokens_mean` of each.
    """
    call, steps = found["generate"], train.sampler.steps_per_call
    held = memory.sampler(train, call["temporaries_bytes"])
    needed = held.fixed["weights"] + pages.step_bytes(train)
    step_s = call["time_s"] / steps
    decode_s = needed / on.chip.hbm_bytes_s
    busy = max(call["peak_bytes"], found["prefill"]["peak_bytes"])
    hbm = busy + held.fixed["next version's weights"]
    slots, length = train.sampler.slots, train.sampler.length_max
    limit = memory.FILL * on.chip.hbm_bytes
    rooms = memory.largest(lambda x: held.at(x / slots) <= limit, 1)
    return {
        **_side(call, on, hbm),
        "decode_step_s": step_s,
        "decode_roofline_s": decode_s,
        "decode_ratio": step_s / decode_s,
        "decode_tokens_mean": pages.mean_tokens(train),
        "prefill_s": found["prefill"]["time_s"],
        "tokens_per_s": slots / step_s,
        "slots_largest": rooms,
        "context_largest": memory.largest(lambda x: held.at(x / length) <= limit, 128),
        "programs": found,
    }


def learner(train: Train, found: dict[str, dict[str, Any]], on: Slice) -> dict:
    """The learner's side of a plan; rows are taken to be full.

    Args:
      train: the run.
      found: `describe` of "gradient" and "step".
      on: its slice.

    Returns:
      JSON values.
    """
    gradient, step = found["gradient"], found["step"]
    pipeline = train.pipeline
    rows, row_tokens = sizes.row_shapes(train)[0]
    samples = pipeline.groups_per_update * pipeline.samples_per_group
    tokens = samples * train.sampler.length_max
    micro_batches = max(math.ceil(tokens / (rows * row_tokens)), 1)
    update_s = micro_batches * gradient["time_s"] + step["time_s"]
    peak = on.num_chips * on.chip.peak_flops
    held = memory.learner(train, gradient["temporaries_bytes"])
    # The moments are no argument of the gradient, but lie there while it runs.
    moments = held.fixed["optimizer moments (float32)"]
    hbm = max(gradient["peak_bytes"] + moments, step["peak_bytes"])
    hbm += held.fixed.get(memory.PUBLISHED, 0)
    spread = train.mesh.data * train.mesh.fsdp
    limit = memory.FILL * on.chip.hbm_bytes
    return {
        **_side(gradient, on, hbm),
        "micro_batches": micro_batches,
        "update_s": update_s,
        "tokens_per_s": micro_batches * rows * row_tokens / update_s,
        "mfu": micro_batches * gradient["model_flops"] / (update_s * peak),
        "mfu_roofline": gradient["model_flops"]
        / (max(gradient["roofline_s"].values()) * peak),
        "rows_largest": memory.largest(lambda x: held.at(x / rows) <= limit, spread),
        "programs": found,
    }


def _side(main: dict[str, Any], on: Slice, hbm: int | float) -> dict[str, Any]:
    """What both sides have, of the program that takes most of the time."""
    names = (
        "flops",
        "bytes",
        "collectives",
        "estimated_cycles",
        "roofline_s",
        "bound",
        "unestimated",
    )
    return {
        "topology": on.name,
        "chips": on.num_chips,
        "hbm_bytes": hbm,
        "hbm_limit_bytes": on.chip.hbm_bytes,
        "hbm_fraction": hbm / on.chip.hbm_bytes,
        **{name: main[name] for name in names},
        "largest_by": "analytic memory, scaled from the compiled program's, to "
        f"{memory.FILL:.0%} of HBM",
    }


def _collectives(cost: costs.Cost) -> list[dict[str, Any]]:
    """Largest first."""
    rows = [
        {"kind": kind, "bytes": size, "devices": group, "runs": runs}
        for (kind, size, group), runs in cost.collectives.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"] * row["runs"])
