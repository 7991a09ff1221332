"""Bytes that one instruction of a compiled program moves to and from HBM."""

from jigsaw_jax.planning.hlo import Computation, Instruction, Module

# What only names or bundles arrays, and what runs other computations.
NO_TRAFFIC = frozenset(
    {
        "after-all",
        "bitcast",
        "call",
        "conditional",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
        "while",
    }
)
_PARTIAL = ("dynamic-slice", "gather", "slice")
# What writes a part of its first operand in place, and which operand the part is.
_UPDATE = {"dynamic-update-slice": 1, "scatter": 2}


def hbm_bytes(module: Module, computation: Computation, item: Instruction) -> int:
    """Read and written by one run of an instruction.

    Arrays in the chip's own memory are free. Of an operand that is only sliced, the
    slices count, and of a result that is an update in place, the update.

    Args:
      module: the program.
      computation: the one that holds the instruction.
      item: the instruction.

    Returns:
      Bytes.
    """
    if item.opcode in NO_TRAFFIC or item.opcode.endswith("-done"):
        return 0
    if item.opcode in ("copy-start", "slice-start"):
        sides = item.shapes[:2]
        moved = min(shape.num_bytes for shape in sides)
        return moved * sum(shape.is_in_hbm for shape in sides)
    inner = module.computations.get(item.called("calls"))
    operands = [computation.instructions.get(name) for name in item.operands]
    if item.opcode == "fusion" and inner is not None:
        return _read(module, inner, operands) + _written(inner, item)
    if item.opcode in _PARTIAL:
        return 2 * _in_hbm(item)
    if item.opcode in _UPDATE:
        update = operands[_UPDATE[item.opcode]]
        return 2 * _in_hbm(update) if update else 0
    return _in_hbm(item) + sum(_in_hbm(x) for x in operands if x)


def _read(
    module: Module, inner: Computation, operands: list[Instruction | None]
) -> int:
    return sum(
        _needed(module, inner, parameter.name, _in_hbm(operand) if operand else 0)
        for parameter, operand in zip(inner.parameters, operands, strict=False)
    )


def _needed(module: Module, inner: Computation, name: str, size: int) -> int:
    """Bytes that a fusion reads of an array of `size` bytes."""
    if _is_returned(inner, name):
        # A nested fusion that only names the array anew: whoever calls it reads it.
        return size
    parts = [_part(module, user, known, size) for user, known in _uses(inner, name)]
    return min(size, sum(parts))


def _is_returned(inner: Computation, name: str) -> bool:
    """Whether an array is its computation's result, bitcasts looked through."""
    if name == inner.root:
        return True
    bitcasts = (user for user in inner.users[name] if user.opcode == "bitcast")
    return any(_is_returned(inner, user.name) for user in bitcasts)


def _uses(inner: Computation, name: str) -> list[tuple[Instruction, str]]:
    """(who reads an array, under which name), bitcasts looked through."""
    uses = []
    for user in inner.users[name]:
        if user.opcode == "bitcast":
            uses += _uses(inner, user.name)
        else:
            uses.append((user, name))
    return uses


def _part(module: Module, user: Instruction, name: str, size: int) -> int:
    """Bytes that one reader needs of an array that may be sliced or written only."""
    if user.opcode in _PARTIAL:
        return user.num_bytes
    if user.opcode in _UPDATE and user.operands[0] == name:
        return 0
    nested = module.computations.get(user.called("calls"))
    if user.opcode == "fusion" and nested is not None:
        pairs = zip(nested.parameters, user.operands, strict=False)
        return sum(
            _needed(module, nested, parameter.name, size)
            for parameter, operand in pairs
            if operand == name
        )
    return size


def _written(inner: Computation, fusion: Instruction) -> int:
    root = inner.instructions[inner.root]
    parts = (
        [inner.instructions.get(name) for name in root.operands]
        if root.opcode == "tuple"
        else [root]
    )
    if len(parts) != len(fusion.shapes):
        return _in_hbm(fusion)
    total = 0
    for part, shape in zip(parts, fusion.shapes, strict=True):
        size = shape.num_bytes if shape.is_in_hbm else 0
        while part is not None and part.opcode == "bitcast":
            part = inner.instructions.get(part.operands[0])
        if part is not None and part.opcode in _UPDATE:
            update = inner.instructions.get(part.operands[_UPDATE[part.opcode]])
            size = min(size, update.num_bytes if update else size)
        total += size
    return total


def _in_hbm(item: Instruction) -> int:
    return sum(shape.num_bytes for shape in item.shapes if shape.is_in_hbm)
