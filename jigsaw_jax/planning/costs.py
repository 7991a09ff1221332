"""Walks a compiled program and adds up what one run of it costs.

A computation's own time is that of its kernels (the compiler's cycles, and our model
of kernels that have none), with asynchronous collectives running beside them, and
synchronous ones before or behind:

    time = max(kernels + inner loops x trips, asynchronous) + synchronous
"""

import collections
import dataclasses
from typing import NamedTuple

from jigsaw_jax.planning import collectives as wire
from jigsaw_jax.planning import traffic, trips
from jigsaw_jax.planning.chips import Chip
from jigsaw_jax.planning.hlo import Computation, Instruction, Module

# Custom calls that are notes to the compiler or bundle what lies there already.
FREE_TARGETS = frozenset(
    {
        "AllocateBuffer",
        "AssumeGatherIndicesInBound",
        "AsyncCollectiveDone",
        "AsyncCollectiveStart",
        "ConcatBitcast",
        "Sharding",
    }
)
# Scalars and the like run on the scalar core beside everything else.
SMALL_BYTES = 4096


class Kernel(NamedTuple):
    """What the text doesn't say of a Pallas kernel: it reads parts of its operands.

    name: stands in the kernel's source.
    hbm_bytes: that one run moves.
    bandwidth: share of HBM's bandwidth that it reaches; it computes meanwhile.
    """

    name: str
    hbm_bytes: float
    bandwidth: float


@dataclasses.dataclass(kw_only=True)
class Cost:
    """Of one run.

    Attributes:
      time_s: as the module's docstring has it.
      cycles: the compiler's.
      kernels_s: our model's time of kernels without cycles.
      hbm_bytes: read and written.
      collective_s: of all collectives, as if nothing ran beside them.
      collectives: (kind, bytes, group) to runs.
      unestimated: kernels without cycles to runs.
      uncounted: loops of unknown trip count, taken to run `open_trips` times.
    """

    time_s: float = 0.0
    cycles: float = 0.0
    kernels_s: float = 0.0
    hbm_bytes: float = 0.0
    collective_s: float = 0.0
    collectives: collections.Counter = dataclasses.field(
        default_factory=collections.Counter
    )
    unestimated: collections.Counter = dataclasses.field(
        default_factory=collections.Counter
    )
    uncounted: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Cost", times: int) -> None:
        """Add `times` runs of another, but for its time."""
        self.cycles += times * other.cycles
        self.kernels_s += times * other.kernels_s
        self.hbm_bytes += times * other.hbm_bytes
        self.collective_s += times * other.collective_s
        for name in ("collectives", "unestimated"):
            for key, runs in getattr(other, name).items():
                getattr(self, name)[key] += times * runs
        self.uncounted += [x for x in other.uncounted if x not in self.uncounted]


class Walk:
    """One program on one kind of chip.

    Args:
      module: the program.
      chip: it was compiled for.
      num_devices: that run it together.
      open_trips: runs of a loop whose count the text doesn't say.
      kernels: Pallas kernels that are known.
    """

    def __init__(
        self,
        module: Module,
        chip: Chip,
        num_devices: int,
        *,
        open_trips: int = 1,
        kernels: tuple[Kernel, ...] = (),
    ) -> None:
        self._module, self._chip, self._num_devices = module, chip, num_devices
        self._open_trips, self._kernels = open_trips, kernels
        self._done: dict[str, Cost] = {}

    def cost(self, name: str | None = None) -> Cost:
        """Of a computation; of the whole program without a name."""
        name = self._module.entry if name is None else name
        if name not in self._done:
            self._done[name] = self._of(self._module.computations[name])
        return self._done[name]

    def _of(self, computation: Computation) -> Cost:
        cost = Cost()
        kernels_s = inner_s = beside_s = alone_s = 0.0
        for item in computation.instructions.values():
            size = traffic.hbm_bytes(self._module, computation, item)
            known = self._known(item)
            bandwidth = 1.0
            if known is not None:
                size, bandwidth = known.hbm_bytes, known.bandwidth
            cost.hbm_bytes += size
            if item.opcode in ("while", "conditional", "call"):
                inner_s += self._nested(cost, computation, item)
                continue
            found = self._collective(computation, item)
            if found is not None:
                seconds = found.seconds(self._chip)
                cost.collective_s += seconds
                cost.collectives[found.kind, found.num_bytes, found.group] += 1
                beside_s += seconds * found.is_async
                alone_s += seconds * (not found.is_async)
            if item.cycles is not None:
                cost.cycles += item.cycles
                kernels_s += item.cycles / self._chip.clock_hz
            elif found is None and self._is_kernel(item):
                seconds = size / self._chip.hbm_bytes_s / bandwidth
                cost.kernels_s += seconds
                kernels_s += seconds
                cost.unestimated[item.target or f"{item.opcode} {item.source}"] += 1
        cost.time_s = max(kernels_s + inner_s, beside_s) + alone_s
        return cost

    def _known(self, item: Instruction) -> Kernel | None:
        """What is known of a Pallas kernel."""
        if item.opcode != "custom-call":
            return None
        return next((k for k in self._kernels if k.name in item.source), None)

    def _nested(self, cost: Cost, caller: Computation, item: Instruction) -> float:
        """Adds what an instruction calls; returns its time."""
        name, times, is_known = self._call(caller, item)
        if not is_known:
            cost.uncounted.append(item.source or item.name)
        inner = self.cost(name)
        cost.add(inner, times)
        return times * inner.time_s

    def _call(self, caller: Computation, item: Instruction) -> tuple[str, int, bool]:
        """(computation, runs, whether the runs are known)."""
        if item.opcode == "while":
            count = trips.trip_count(self._module, caller, item)
            is_known = count is not None
            return (
                item.called("body"),
                count if is_known else self._open_trips,
                is_known,
            )
        if item.opcode == "conditional":
            # The dear branch of our only one sorts the vocabulary for top-k and top-p,
            # which training never asks for.
            return min(item.branches, key=lambda x: self.cost(x).time_s), 1, True
        return item.called("to_apply") or item.called("calls"), 1, True

    def _collective(
        self, computation: Computation, item: Instruction
    ) -> wire.Collective | None:
        """What starts at an instruction, or inside a fusion that wraps it."""
        if wire.kind_of(item):
            return self._read(computation, item)
        inner = self._module.computations.get(item.called("calls"))
        if inner is None or item.opcode not in ("fusion", "async-start"):
            return None
        held = [x for x in inner.instructions.values() if wire.kind_of(x)]
        if not held:
            return None
        found = self._read(inner, held[0])
        targets = {x.target for x in inner.instructions.values()}
        if "chain_id" in held[0].attributes:
            # Each fusion that the collective runs beside repeats it; the first counts.
            is_first = "AsyncCollectiveStart" in targets
            return dataclasses.replace(found, is_async=True) if is_first else None
        is_scatter = found.kind == "all-reduce" and "scatter" in inner.name
        kind = "reduce-scatter" if is_scatter else found.kind
        is_async = item.opcode == "async-start"
        return dataclasses.replace(found, kind=kind, is_async=is_async)

    def _read(self, computation: Computation, item: Instruction) -> wire.Collective:
        operands = [computation.instructions[name] for name in item.operands]
        size = sum(operand.num_bytes for operand in operands)
        return wire.read(item, size, self._num_devices)

    def _is_kernel(self, item: Instruction) -> bool:
        """Whether an instruction without cycles does work worth a line."""
        if item.opcode in traffic.NO_TRAFFIC or item.target in FREE_TARGETS:
            return False
        if item.opcode.endswith(("-start", "-done")):
            return False
        inner = self._module.computations.get(item.called("calls"))
        if inner is not None and item.opcode == "fusion":
            targets = {x.target for x in inner.instructions.values()}
            if targets & FREE_TARGETS:
                return False
        return item.opcode == "custom-call" or item.num_bytes > SMALL_BYTES
