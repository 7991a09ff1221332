"""What lies in a chip's HBM, and the largest shapes that fit, by arithmetic.

The parts that are the run's own arrays are exact. Temporaries are the compiler's at
the shapes that were compiled, scaled with rows, or with slots; before anything is
compiled they are taken as the least that any program needs, so a refusal is certain
and a fit is not.
"""

import dataclasses
from collections.abc import Callable

from jigsaw_jax.planning import pages
from jigsaw_jax.settings import Train, sizes

# The share of HBM that a plan may fill; the rest is for fragmentation.
FILL = 0.9
# What the samplers have; the round's frozen policy is the same where there is one.
PUBLISHED = "published parameters"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes on one chip, by what holds them.

    Attributes:
      fixed: whatever the shapes of batches: weights, sums, moments.
      scaled: in proportion to rows, or to slots.
    """

    fixed: dict[str, int | float]
    scaled: dict[str, int | float]

    @property
    def total(self) -> int | float:
        """Of all parts."""
        return sum(self.fixed.values()) + sum(self.scaled.values())

    def at(self, factor: int | float) -> int | float:
        """Total with the scaled parts `factor` times as large."""
        return sum(self.fixed.values()) + factor * sum(self.scaled.values())


def learner(train: Train, temporaries: int | float | None = None) -> Held:
    """Of the learner while it computes a micro-batch.

    Args:
      train: the run.
      temporaries: of the compiled gradient, or None before it is compiled.

    Returns:
      Bytes on one chip.
    """
    # Weights, sums and moments are whole on each device of the data axis.
    chips = train.mesh.fsdp * train.mesh.tensor
    parts = sizes.memory_bytes(train)
    names = (
        "learner parameters",
        "reference parameters",
        "round's parameters",
        "gradient sums (float32)",
        "optimizer moments (float32)",
    )
    fixed = {name: parts[name] / chips for name in names if name in parts}
    if "round's parameters" not in parts:
        fixed[PUBLISHED] = sizes.version_bytes(train.decoder) / chips
    decoder, rows = train.decoder, train.learner.rows
    spread = train.mesh.data * train.mesh.fsdp
    residual = rows * train.learner.row_tokens * decoder.model_dim * 2 / spread
    least = {
        "residual of every layer": residual * decoder.num_layers,
        "logits of a micro-batch": parts["logits of a micro-batch"]
        / train.mesh.learner_devices,
    }
    if temporaries is None:
        return Held(fixed=fixed, scaled=least)
    # A micro-batch's own gradients lie among the temporaries, and don't scale.
    own = min(parts["gradient sums (float32)"] / chips, temporaries)
    fixed["gradients of a micro-batch"] = own
    return Held(fixed=fixed, scaled={"temporaries": temporaries - own})


def sampler(train: Train, temporaries: int | float = 0) -> Held:
    """Of the sampler while it decodes; the next version's weights arrive meanwhile.

    Args:
      train: the run.
      temporaries: of the compiled decode loop.

    Returns:
      Bytes on one chip; the scaled ones go with slots x length.
    """
    mesh = train.mesh
    width = 2 if train.decoder.dtype == "bfloat16" else 4
    decoder, tensor = train.decoder, mesh.sampler_tensor
    adapters = sizes.num_adapter_params(decoder)
    weights = (sizes.num_params(decoder) + adapters) * width / tensor
    # With adapters the base stays, and only they arrive.
    arriving = sizes.num_trained(decoder) * width / tensor
    tokens = sizes.cache_bytes(train) / sizes.token_bytes(train) / mesh.sampler_data
    return Held(
        fixed={"weights": weights, "next version's weights": arriving},
        scaled={
            "KV cache": tokens * pages.token_bytes(train),
            "temporaries": temporaries,
        },
    )


def largest(fits: Callable[[int], bool], step: int, most: int = 2**24) -> int:
    """The largest multiple of `step` that fits, 0 where none does.

    Args:
      fits: true up to some size and false beyond.
      step: sizes are its multiples.
      most: a bound on the multiple.

    Returns:
      The size.
    """
    if not fits(step):
        return 0
    low, high = 1, 2
    while high < most and fits(high * step):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def refusal(side: str, held: Held, hbm_bytes: int, smallest: int | float) -> str | None:
    """Why nothing fits, or None where something may.

    Args:
      side: "sampler" or "learner".
      held: at the run's shapes.
      hbm_bytes: of one chip.
      smallest: factor from the run's shapes to the least possible ones.

    Returns:
      One line with the parts and the fix.
    """
    needed = held.at(smallest)
    if needed <= hbm_bytes:
        return None
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in held.fixed.items())
    fix = (
        "a larger --learner_topology with more Mesh.fsdp or Mesh.tensor"
        if side == "learner"
        else "a larger --sampler_topology with more Mesh.sampler_tensor"
    )
    return (
        f"{side} must fit in {hbm_bytes / 2**30:.2f} GiB a chip, got "
        f"{needed / 2**30:.2f} GiB at the smallest shapes ({parts}); take {fix}, "
        "or a smaller model"
    )
