"""Costs from the model's shape and the chips, calibrated by a plan where there is one.

Without a plan every part takes its roofline time: operations at peak, bytes at full
bandwidth, collectives on the ring of `planning.collectives`. A plan, which the TPU
compiler made, says how far the kernels of its own shapes are from that, and kernels are
stretched by that ratio. At the plan's shapes the prediction is then the plan's; how far
it carries to others, docs/simulator.md has.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jigsaw_jax.planning import flops, memory
from jigsaw_jax.planning.chips import CHIPS, Chip, parse_slice
from jigsaw_jax.planning.collectives import Collective
from jigsaw_jax.settings import Train, sizes
from jigsaw_jax.simulation import overrides
from jigsaw_jax.simulation.cost import Decode, Line, Training, micro_shapes
from jigsaw_jax.simulation.packing import packing_of
from jigsaw_jax.simulation.recorded import CostError

_WIDTH = {"bfloat16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A plan's kernels over the roofline's at the same shapes; 1 without a plan.

    Attributes:
      chips: of the plan's sides; none without a plan.
      decode: of a decode step.
      prefill: of a prompt.
      gradient: of a micro-batch.
      step: of the optimizer.
      sampler_ratio: temporaries over the cache, on one chip.
      learner_bytes: temporaries of a row x token on one chip of the spread, without
        the micro-batch's own gradients; None where only a lower bound is known.
    """

    chips: Mapping[str, int] = dataclasses.field(default_factory=dict)
    decode: float = 1.0
    prefill: float = 1.0
    gradient: float = 1.0
    step: float = 1.0
    sampler_ratio: float = 0.0
    learner_bytes: float | None = None


class Model:
    """Costs and memory of a run's programs on chips.

    Args:
      train: the run.
      chip: of both sides.
      stretches: what plans say; the first serves where no other is of as many chips.

    Attributes:
      chip: of both sides.
    """

    def __init__(self, train: Train, chip: Chip, stretches: Sequence[Stretch]) -> None:
        self._train, self.chip, self._stretches = train, chip, stretches

    def planned(self) -> dict[str, bool]:
        """Whether each side has as many chips as some plan's; others are carried."""
        chips = self._chips()
        return {
            side: any(one.chips.get(side) == num for one in self._stretches)
            for side, num in chips.items()
        }

    def _chips(self) -> dict[str, int]:
        mesh = self._train.mesh
        return {"sampler": mesh.sampler_tensor, "learner": mesh.learner_devices}

    def _stretch(self, side: str, chips: int | None = None) -> Stretch:
        wanted = self._chips()[side] if chips is None else chips
        same = [one for one in self._stretches if one.chips.get(side) == wanted]
        return (same or self._stretches)[0]

    def decode(self, slots: int, tensor: int) -> Decode:
        """Decode steps of a worker with so many slots on so many chips.

        The engine's shapes are static: every step reads all slots' caches at full
        length, so a step costs the same whatever runs.
        """
        train = _with(self._train, slots=slots, sampler_tensor=tensor)
        kernels_s, wire_s = decode_parts_s(train, self.chip)
        stretch = self._stretch("sampler", tensor)
        step_s = kernels_s * stretch.decode + wire_s
        prompt_s = prefill_roofline_s(train, self.chip) * stretch.prefill
        # A prompt costs its bucket, however short it is.
        tokens = max(train.simulation.workload.prompt_tokens, 1)
        return Decode(
            lines=(Line(fixed_s=step_s),),
            prefill_token_s=prompt_s / tokens,
            calls=train.sampler.steps_per_call,
        )

    def training(self) -> Training:
        """The learner's work, and a publish that hands each chip its share."""
        train, chip = self._train, self.chip
        kernels_s, wire_s = gradient_parts_s(train, chip)
        stretch = self._stretch("learner")
        gradient_s = max(kernels_s * stretch.gradient, wire_s)
        params = sizes.num_params(train.decoder)
        # Weights go over the data-centre network or the host: a link a worker is the
        # slowest of what the runtime does.
        publish_s = params * _WIDTH[train.decoder.dtype] / chip.link_bytes_s
        costs = train.simulation.costs
        return Training(
            micro_s=micro_shapes(train, gradient_s),
            packing=packing_of(train),
            step_s=step_roofline_s(train, chip) * stretch.step,
            publish_s=costs.publish_s or publish_s,
            checkpoint_s=costs.checkpoint_s,
            dispatch_s=costs.dispatch_s,
            trains=costs.trains,
        )

    def memory_bytes(self) -> dict[str, float]:
        """Bytes on one chip of each side, temporaries as the plan scales them."""
        train, stretch = self._train, self._stretch("sampler")
        cache = memory.sampler(train).scaled["KV cache"]
        sampler = memory.sampler(train, stretch.sampler_ratio * cache)
        stretch = self._stretch("learner")
        if stretch.learner_bytes is None:
            return {"sampler": sampler.total, "learner": memory.learner(train).total}
        spread = train.mesh.data * train.mesh.fsdp
        tokens = train.learner.rows * train.learner.row_tokens / spread
        chips = train.mesh.fsdp * train.mesh.tensor
        own = 4 * sizes.num_params(train.decoder) / chips
        temporaries = own + stretch.learner_bytes * tokens / train.mesh.tensor
        learner = memory.learner(train, temporaries)
        return {"sampler": sampler.total, "learner": learner.total}


def model_of(train: Train) -> Model:
    """The costs that a run's `Costs` ask for, "analytic" or from a plan.

    Args:
      train: the run.

    Returns:
      Its model.

    Raises:
      CostError: the plan can't be read, or the generation is unknown.
    """
    costs = train.simulation.costs
    if costs.source == "analytic":
        if costs.generation not in CHIPS:
            raise CostError(
                f"Costs.generation must be one of {', '.join(CHIPS)}, "
                f"got {costs.generation!r}"
            )
        return Model(train, CHIPS[costs.generation], [Stretch()])
    assert costs.path is not None
    plans = [read_plan(path) for path in (costs.path, *costs.more_plans)]
    chip = parse_slice("topology", plans[0]["sampler"]["topology"]).chip
    return Model(train, chip, [stretch_of(train, plan, chip) for plan in plans])


@functools.cache
def read_plan(path: str) -> dict[str, Any]:
    """A plan as `python -m jigsaw_jax.plan --json` wrote it.

    Args:
      path: of the file, from the working directory or the checkout.

    Returns:
      Its values.

    Raises:
      CostError: it is not there, or no plan.
    """
    root = pathlib.Path(__file__).parents[2]
    found = next((p for p in (pathlib.Path(path), root / path) if p.is_file()), None)
    if found is None:
        raise CostError(f"Costs.path must be an existing plan, got {path!r}")
    try:
        plan = json.loads(found.read_text(encoding="utf-8"))
        is_plan = all(plan[name] for name in ("settings", "sampler", "learner"))
        assert is_plan
    except (ValueError, KeyError, TypeError, AssertionError):
        raise CostError(
            f"Costs.path must be a plan with its settings, got {path!r}; write it "
            "anew: python -m jigsaw_jax.plan --gin FILE --json OUT"
        ) from None
    return plan


def stretch_of(train: Train, plan: dict[str, Any], chip: Chip) -> Stretch:
    """How a plan's kernels compare with the roofline at the plan's own settings.

    Args:
      train: a run of the same model.
      plan: of `read_plan`.
      chip: it was made for.

    Returns:
      The ratios.

    Raises:
      CostError: the plan is of another model.
    """
    at = overrides.apply(train, plan["settings"])
    if at.decoder != train.decoder:
        raise CostError("Costs.path must be a plan of the run's model, got another's")
    sampler, learner = plan["sampler"], plan["learner"]
    gradient = learner["programs"]["gradient"]
    decode_s, decode_wire_s = decode_parts_s(at, chip)
    spread = at.mesh.data * at.mesh.fsdp
    chips = at.mesh.fsdp * at.mesh.tensor
    own = 4 * sizes.num_params(at.decoder) / chips
    tokens = at.learner.rows * at.learner.row_tokens / spread
    cache = memory.sampler(at).scaled["KV cache"]
    return Stretch(
        chips={
            "sampler": at.mesh.sampler_tensor,
            "learner": at.mesh.learner_devices,
        },
        decode=(sampler["decode_step_s"] - decode_wire_s) / decode_s,
        prefill=sampler["prefill_s"] / prefill_roofline_s(at, chip),
        gradient=gradient["time_s"] / gradient_parts_s(at, chip)[0],
        step=learner["programs"]["step"]["time_s"] / step_roofline_s(at, chip),
        sampler_ratio=sampler["programs"]["generate"]["temporaries_bytes"] / cache,
        learner_bytes=max(gradient["temporaries_bytes"] - own, 0)
        * at.mesh.tensor
        / tokens,
    )


def decode_parts_s(train: Train, chip: Chip) -> tuple[float, float]:
    """(kernels, collectives) of one decode step at the roofline."""
    tensor = train.mesh.sampler_tensor
    held = memory.sampler(train)
    read_s = (held.fixed["weights"] + held.scaled["KV cache"]) / chip.hbm_bytes_s
    compute_s = flops.generate(train).program / tensor / chip.peak_flops
    return max(read_s, compute_s), _sums_s(train, train.sampler.slots, tensor, chip)


def prefill_roofline_s(train: Train, chip: Chip) -> float:
    """Of one prompt of the longest bucket."""
    tensor, tokens = train.mesh.sampler_tensor, train.sampler.prompt_buckets[-1]
    compute_s = flops.prefill(train).program / tensor / chip.peak_flops
    read_s = memory.sampler(train).fixed["weights"] / chip.hbm_bytes_s
    return max(compute_s, read_s) + _sums_s(train, tokens, tensor, chip)


def gradient_parts_s(train: Train, chip: Chip) -> tuple[float, float]:
    """(operations at peak, collectives) of a full micro-batch; they run side by side.

    Over fsdp, weights are gathered forward and backward and float32 gradients
    scattered; over tensor, each layer's two sums are made forward and backward.
    """
    mesh = train.mesh
    counted = flops.gradient(train, train.learner.rows)
    compute_s = counted.program / mesh.learner_devices / chip.peak_flops
    params = sizes.num_params(train.decoder) // mesh.tensor
    width = _WIDTH[train.decoder.dtype]
    gather = Collective(
        kind="all-gather", num_bytes=params * width, group=mesh.fsdp, is_async=True
    )
    scatter = Collective(
        kind="reduce-scatter", num_bytes=params * 4, group=mesh.fsdp, is_async=True
    )
    wire_s = 2 * gather.seconds(chip) + scatter.seconds(chip)
    spread = mesh.data * mesh.fsdp
    tokens = math.ceil(train.learner.rows * train.learner.row_tokens / spread)
    return compute_s, wire_s + 2 * _sums_s(train, tokens, mesh.tensor, chip)


def step_roofline_s(train: Train, chip: Chip) -> float:
    """Of the optimizer: weights, sums and moments read, weights and moments written."""
    chips = train.mesh.fsdp * train.mesh.tensor
    return 28 * sizes.num_params(train.decoder) / chips / chip.hbm_bytes_s


def _sums_s(train: Train, tokens: int, group: int, chip: Chip) -> float:
    """Two sums of [tokens, D] a layer over the chips of a tensor axis."""
    size = tokens * train.decoder.model_dim * _WIDTH[train.decoder.dtype]
    one = Collective(kind="all-reduce", num_bytes=size, group=group, is_async=False)
    return 2 * train.decoder.num_layers * one.seconds(chip)


def _with(train: Train, *, slots: int, sampler_tensor: int) -> Train:
    return dataclasses.replace(
        train,
        sampler=dataclasses.replace(train.sampler, slots=slots),
        mesh=dataclasses.replace(train.mesh, sampler_tensor=sampler_tensor),
    )
