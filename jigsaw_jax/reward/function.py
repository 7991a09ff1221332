"""A reward of your own: found by its name, called, and its result checked.

    python -m jigsaw_jax.reward.function my_reward.py:score

says in one line why a function can't be used, and nothing where it can.
"""

import functools
import importlib
import importlib.util
import inspect
import numbers
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from jigsaw_jax.records import Prompt

CHECK_TIMEOUT_S = 120.0


class FunctionError(ValueError):
    """The function can't be used; the message is one line."""


@functools.cache
def load_function(spec: str) -> Callable[[str, Prompt], Any]:
    """Import a function.

    Args:
      spec: "package.module:name" or "folder/file.py:name".

    Returns:
      The function.

    Raises:
      FunctionError: it is not there, or can't be called with a text and a prompt.
    """
    place, _, name = spec.rpartition(":")
    try:
        module = _of_file(place) if place.endswith(".py") else _of_package(place)
    # A module of the user's may raise anything while it is imported.
    except Exception as error:
        raise FunctionError(
            f"Reward.function must be importable, got {spec!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise FunctionError(
            f"Reward.function must name a function of {place}, got {name!r}"
        )
    try:
        inspect.signature(function).bind("text", "prompt")
    except TypeError as error:
        raise FunctionError(
            f"Reward.function must take (text, prompt), got {spec!r}: {error}"
        ) from None
    return function


def score_function(spec: str, prompt: Prompt, text: str) -> float:
    """What the function says of a completion.

    Args:
      spec: of the function.
      prompt: the problem.
      text: the completion, without its stop token.

    Returns:
      Its value; whether it is finite is for the caller to check.

    Raises:
      TypeError: it returned no number.
    """
    value = load_function(spec)(text, prompt)
    if not isinstance(value, numbers.Real):
        raise TypeError(f"a reward must be a number, got {value!r}")
    return float(value)


def why_unusable(spec: str) -> str | None:
    """Try the import in a process of its own, so that it can neither hang nor harm us.

    Args:
      spec: of the function.

    Returns:
      One line, or None where the function can be used.
    """
    command = [sys.executable, "-m", "jigsaw_jax.reward.function", spec]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (
            f"Reward.function must be imported within {CHECK_TIMEOUT_S:g} s, "
            f"got {spec!r}"
        )
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"Reward.function must be importable, got {spec!r}"


def _of_package(place: str) -> Any:
    return importlib.import_module(place)


def _of_file(place: str) -> Any:
    path = pathlib.Path(place).resolve()
    spec = importlib.util.spec_from_file_location(f"reward_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    try:
        load_function(sys.argv[1])
    except FunctionError as error:
        sys.exit(str(error).replace("\n", " "))
