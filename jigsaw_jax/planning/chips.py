"""What one chip of each TPU generation can do, and what its slices are called."""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Limits of one chip.

    Source: the cloud.google.com pages of each generation; links and latency as in
    "How to Scale Your Model", part 2. `clock_hz` is peak_flops over the multiply-adds
    that the matrix units start in a cycle.

    Attributes:
      peak_flops: bfloat16 operations a second.
      hbm_bytes: what the compiler lets one program use.
      hbm_bytes_s: memory bandwidth.
      link_bytes_s: one interconnect link, one direction.
      clock_hz: of the compiler's cycles.
    """

    peak_flops: float
    hbm_bytes: int
    hbm_bytes_s: float
    link_bytes_s: float
    clock_hz: float


CHIPS = {
    "v4": Chip(
        peak_flops=275e12,
        hbm_bytes=int(30.75 * 2**30),
        hbm_bytes_s=1.228e12,
        link_bytes_s=4.5e10,
        clock_hz=1.05e9,
    ),
    "v5e": Chip(
        peak_flops=197e12,
        hbm_bytes=int(15.75 * 2**30),
        hbm_bytes_s=8.19e11,
        link_bytes_s=4.5e10,
        clock_hz=1.5e9,
    ),
    "v5p": Chip(
        peak_flops=459e12,
        hbm_bytes=int(95.74 * 2**30),
        hbm_bytes_s=2.765e12,
        link_bytes_s=9e10,
        clock_hz=1.75e9,
    ),
    "v6e": Chip(
        peak_flops=918e12,
        hbm_bytes=int(31.25 * 2**30),
        hbm_bytes_s=1.64e12,
        link_bytes_s=9e10,
        clock_hz=1.75e9,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice as its name says.

    Attributes:
      name: as the compiler takes it, "v5e:2x4".
      chip: of its generation.
      num_chips: product of the shape.
    """

    name: str
    chip: Chip
    num_chips: int


def parse_slice(option: str, name: str | None) -> Slice:
    """The slice of a name.

    Args:
      option: who names it, for the error.
      name: like "v5e:2x4" or "v5p:2x2x1".

    Returns:
      The slice.

    Raises:
      ValueError: the name is none, or of an unknown generation.
    """
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+){1,2})", name or "")
    if match is None or match[1] not in CHIPS:
        raise ValueError(
            f"{option} must be a generation of {', '.join(CHIPS)} and a shape, "
            f"for example 'v5e:2x4', got {name!r}"
        )
    shape = [int(size) for size in match[2].split("x")]
    return Slice(name=match[0], chip=CHIPS[match[1]], num_chips=math.prod(shape))
