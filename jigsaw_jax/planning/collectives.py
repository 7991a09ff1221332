"""Our model of what a collective costs: the compiler has no cycles for them."""

import dataclasses
import math
import re

from jigsaw_jax.planning.chips import Chip
from jigsaw_jax.planning.hlo import Instruction

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# A message's way over one link, whatever its size.
HOP_S = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One run of a collective.

    Attributes:
      kind: one of `KINDS`.
      num_bytes: of the array as each device sees it whole: what is gathered, or what
        goes into a reduction; of an exchange or a permutation, a device's own part.
      group: devices that take part together.
      is_async: kernels run beside it.
    """

    kind: str
    num_bytes: int
    group: int
    is_async: bool

    def seconds(self, chip: Chip) -> float:
        """On a ring of the group's devices with both directions of a link in use.

        A gather or a scatter moves (n - 1) / n of the array over two links in n / 2
        hops, a reduction to all does both, an exchange moves a quarter of the whole,
        and a permutation goes one hop over one link. Slices of this size have no
        wrap-around links, but their chips hold a ring that uses each link once.

        Source: "How to Scale Your Model", part 3.
        """
        n, pair = self.group, 2 * chip.link_bytes_s
        if n < 2:
            return 0.0
        if self.kind == "collective-permute":
            return HOP_S + self.num_bytes / chip.link_bytes_s
        if self.kind == "all-to-all":
            return HOP_S * n / 2 + self.num_bytes * n / 4 / pair
        once = HOP_S * n / 2 + self.num_bytes * (n - 1) / n / pair
        return 2 * once if self.kind == "all-reduce" else once


def kind_of(item: Instruction) -> str | None:
    """The kind of a collective that starts here; None for all else, "-done" too."""
    opcode = item.opcode.removesuffix("-start")
    return opcode if opcode in KINDS else None


def read(item: Instruction, operand_bytes: int, num_devices: int) -> Collective:
    """The collective that an instruction is.

    Args:
      item: of a kind.
      operand_bytes: of its operands together.
      num_devices: of the program, the group where the text names none.

    Returns:
      Its size, group and kind.
    """
    kind = kind_of(item)
    assert kind is not None
    is_start = item.opcode.endswith("-start")
    # A start's result also holds its operands.
    result = item.num_bytes - operand_bytes if is_start else item.num_bytes
    size = result if kind == "all-gather" else operand_bytes
    return Collective(
        kind=kind,
        num_bytes=size,
        group=_group(item.attributes, num_devices),
        is_async=is_start,
    )


def _group(attributes: str, num_devices: int) -> int:
    """Devices of one replica group, in each of the three ways that XLA writes them."""
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return len(match[1].split(","))
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes):
        return int(match[2])
    if match := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", match[2]))
    return num_devices
