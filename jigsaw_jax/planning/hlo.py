"""Reads the text of a compiled program: computations, instructions, shapes."""

import dataclasses
import functools
import math
import re

_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](\{[^}]*\})?")
_BITS = re.compile(r"\d+")
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """One array of an instruction's result.

    Attributes:
      dtype: as HLO spells it, "bf16".
      dims: sizes.
      is_in_hbm: it lies in HBM: no scalar, nor in the chip's own memory.
    """

    dtype: str
    dims: tuple[int, ...]
    is_in_hbm: bool

    @property
    def num_bytes(self) -> int:
        """Without padding; pred takes a byte."""
        bits = _BITS.search(self.dtype)
        return math.prod(self.dims) * (int(bits[0]) if bits else 8) // 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: unique in the module.
      opcode: "fusion", "while", "all-gather", ...
      shapes: of the result; several for a tuple.
      operands: names of instructions of the same computation.
      attributes: the rest of the line.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def num_bytes(self) -> int:
        """Of the whole result."""
        return sum(shape.num_bytes for shape in self.shapes)

    @property
    def cycles(self) -> int | None:
        """The compiler's own estimate, or None where it has none."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match else None

    @property
    def source(self) -> str:
        """Where it comes from in the traced program."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def target(self) -> str:
        """Of a custom call."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def index(self) -> int:
        """Of a get-tuple-element, a parameter or an integer constant."""
        match = re.search(r"index=(\d+)", self.attributes)
        return int(match[1]) if match else -1

    def called(self, role: str) -> str:
        """Name of the computation in a role: "calls", "body", "condition"; or ""."""
        match = re.search(rf"\b{role}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""

    @property
    def branches(self) -> tuple[str, ...]:
        """Computations of a conditional."""
        match = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if match:
            return tuple(_NAME.findall(match[1]))
        pair = (self.called("true_computation"), self.called("false_computation"))
        return tuple(name for name in pair if name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Instructions by name, in the order that they are scheduled in.

    Attributes:
      name: of the computation.
      instructions: all of them.
      root: name of the result.
    """

    name: str
    instructions: dict[str, Instruction]
    root: str

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who reads each instruction."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in instruction.operands:
                users.setdefault(operand, []).append(instruction)
        return users

    @property
    def parameters(self) -> list[Instruction]:
        """By number."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(found, key=lambda i: int(i.attributes.split(")")[0]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
    """A compiled program.

    Attributes:
      computations: by name.
      entry: name of the one that runs.
    """

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """The module that `jax.stages.Compiled.as_text` printed."""
    computations, entry = {}, ""
    name, root = "", ""
    instructions: dict[str, Instruction] = {}
    for raw in text.splitlines():
        line = _COMMENT.sub("", raw)
        if match := _HEADER.match(line):
            name, root, instructions = match[2], "", {}
            entry = name if match[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(
                name=name, instructions=instructions, root=root
            )
        elif match := _INSTRUCTION.match(line):
            instruction = _instruction(match[2], match[3])
            instructions[instruction.name] = instruction
            root = instruction.name if match[1] else root
    return Module(computations=computations, entry=entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opcode, _, rest = text[end:].strip().partition("(")
    end_of_operands = _closing(f"({rest}", 0) - 1
    operands = rest[:end_of_operands]
    # A constant's value and a parameter's number stand where operands do.
    literal = operands if opcode in ("constant", "parameter") else ""
    return Instruction(
        name=name,
        opcode=opcode,
        shapes=_shapes(text[:end]),
        operands=() if literal else tuple(_NAME.findall(operands)),
        attributes=f"{literal}){rest[end_of_operands + 1 :]}",
    )


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(
            dtype=dtype,
            dims=tuple(int(size) for size in dims.split(",") if size),
            is_in_hbm=bool(dims) and "S(" not in layout,
        )
        for dtype, dims, layout in _SHAPE.findall(text)
    )


def _closing(text: str, start: int) -> int:
    """Place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError(f"parentheses must be closed, got {text[:80]!r}")
