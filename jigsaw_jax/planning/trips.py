"""How often the loops of a compiled program run, from their conditions."""

import re

from jigsaw_jax.planning.hlo import Computation, Instruction, Module

_INTEGERS = ("s32", "u32", "s64", "u64")


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Runs of a `while` whose counter is compared with a constant.

    XLA writes what it knows into the loop's configuration. Elsewhere the condition
    must be "counter < constant", with the counter's start and step constants of the
    caller and of the body; a start or step that isn't is taken as 0 and 1, as in
    every loop that JAX or the partitioner makes.

    Args:
      module: the program.
      caller: the computation that holds the loop.
      loop: the `while`.

    Returns:
      The count, or None where the condition is another one.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if known:
        return int(known[1])
    condition = module.computations[loop.called("condition")]
    compared = _comparison(module, condition)
    if compared is None:
        return None
    index, bound = compared
    start = _constant(caller, _element(caller, loop.operands[0], index)) or 0
    body = module.computations[loop.called("body")]
    step = _step(module, body, _element(body, body.root, index))
    return max(-(-(bound - start) // step), 0)


def _comparison(module: Module, condition: Computation) -> tuple[int, int] | None:
    """(element of the carry, bound) where the condition is `element < bound`."""
    root = condition.instructions[condition.root]
    operands = list(root.operands)
    if root.opcode == "fusion":
        # The comparison's operands are the fusion's, or constants inside it.
        inner = module.computations[root.called("calls")]
        root = inner.instructions[inner.root]
        numbers = {p.name: place for place, p in enumerate(inner.parameters)}
        values = [_constant(inner, name) for name in root.operands]
        names = [
            operands[numbers[name]] if name in numbers else "" for name in root.operands
        ]
    else:
        values, names = [None] * len(operands), operands
    if root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    counter = condition.instructions.get(names[0])
    bound = values[1] if values[1] is not None else _constant(condition, names[1])
    if counter is None or counter.opcode != "get-tuple-element" or bound is None:
        return None
    return counter.index, bound


def _element(computation: Computation, name: str, index: int) -> str:
    """Name of an element of a tuple that the computation makes, else ""."""
    made = computation.instructions.get(name)
    if made is None or made.opcode != "tuple":
        return ""
    return made.operands[index]


def _constant(computation: Computation, name: str) -> int | None:
    """The integer that an instruction is, copies looked through."""
    found = computation.instructions.get(name)
    while found is not None and found.opcode in ("copy", "bitcast", "convert"):
        found = computation.instructions.get(found.operands[0])
    if found is None or found.opcode != "constant" or not found.shapes:
        return None
    if found.shapes[0].dims or found.shapes[0].dtype not in _INTEGERS:
        return None
    return int(found.attributes.split(")")[0])


def _step(module: Module, body: Computation, name: str) -> int:
    """What the body adds to its counter."""
    added = body.instructions.get(name)
    inside = body
    if added is not None and added.opcode == "fusion":
        inside = module.computations[added.called("calls")]
        added = inside.instructions[inside.root]
    if added is None or added.opcode != "add":
        return 1
    steps = [_constant(inside, operand) for operand in added.operands]
    return next((step for step in steps if step), 1)
