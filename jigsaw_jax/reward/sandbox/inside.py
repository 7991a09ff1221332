"""The text that Python runs inside the cage: reads a program and runs it.

Descriptor 3 holds the lengths of the three parts on a line of its own, and then the
parts: the program, statements to run behind it, and an expression. Without an
expression the program is a script. With one its value goes to stdout, as JSON that
keeps Python's types, and what the program prints goes nowhere.

The program owns this process and can make it write anything; nothing of what it should
write is in here.
"""

import builtins
import os
import sys
import types


def encode(value: object) -> object:
    """A value of the builtin types as JSON; others are an error, and so a failure."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return [kind.__name__, kind(value)]
    if isinstance(value, dict):
        return ["dict", [[encode(k), encode(v)] for k, v in value.items()]]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [encode(item) for item in value]]
    raise TypeError(f"must be a builtin value, got {type(value)!r}")


def main() -> None:
    """Read, run, and with an expression answer."""
    with open(3, "rb") as file:
        lengths = file.readline().split()
        parts = [file.read(int(length)).decode() for length in lengths]
    program, statements, expression = parts
    name = "program" if expression else "__main__"
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = ["program.py"]
    # Site packages would have brought these, and programs use them.
    builtins.exit = builtins.quit = sys.exit
    if not expression:
        exec(compile(program, "program.py", "exec"), module.__dict__)
        return
    import json

    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    for text in (program, statements):
        exec(compile(text, "program.py", "exec"), module.__dict__)
    value = eval(compile(expression, "test.py", "eval"), module.__dict__)
    with open(answers, "w", encoding="ascii") as file:
        json.dump(encode(value), file)
        file.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
