"""Reads gin files and bindings into plain statements that know where they stand."""

import dataclasses
import difflib
import pathlib
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any

from gin import config_parser

# A checkout's root: its files can be named from any working directory.
ROOT = pathlib.Path(__file__).parents[2]


class ConfigError(ValueError):
    """A configuration that can't run; the message is one line with the fix."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """`@name`, or `@name()` where it is called."""

    name: str
    is_called: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Macro:
    """`%name`; `%gin.REQUIRED` is what another file must bind."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """`target.field = value`; a macro's definition has no field.

    Attributes:
      target: what is configured, as it was written.
      field: its parameter, or "" where `target` is a macro.
      value: literals, with `Reference` and `Macro` among them.
      where: "file:line", or the command-line option.
    """

    target: str
    field: str
    value: Any
    where: str


class _Delegate:
    """Gin's `ParserDelegate`; its abstract class says that these return None."""

    def configurable_reference(
        self, scoped_configurable_name: str, evaluate: bool
    ) -> Reference:
        return Reference(scoped_configurable_name, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def suggest(name: str, choices: Iterable[str]) -> str:
    """The end of a message: "; did you mean ...?", or "" where nothing is near."""
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def read_file(name: str, including: tuple[str, ...] = ()) -> Iterator[Binding]:
    """Yield the bindings of a file and of the files it includes, in order.

    Args:
      name: path from the working directory, the including file or the checkout.
      including: the files that led here, outermost first.

    Yields:
      Bindings; a later one of the same name wins.

    Raises:
      ConfigError: the file is missing, is no gin, or includes itself.
    """
    path = _find(name, including)
    if str(path) in including:
        raise ConfigError(f"{including[-1]}: must not include itself, got {name!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} must be a readable text file: {error}") from None
    for statement, where in _parse(text, str(path)):
        if isinstance(statement, config_parser.IncludeStatement):
            yield from read_file(statement.filename, (*including, str(path)))
        elif isinstance(statement, config_parser.ImportStatement):
            _check_import(statement, where)
        elif isinstance(statement, config_parser.BindingStatement):
            yield _binding(statement, where)


def read_text(text: str) -> Iterator[Binding]:
    """Yield the one binding of a `--set` option.

    Args:
      text: "NAME = VALUE".

    Yields:
      The binding.

    Raises:
      ConfigError: it is something else.
    """
    where = f"--set {text!r}"
    statements = [statement for statement, _ in _parse(text, where)]
    is_binding = [isinstance(s, config_parser.BindingStatement) for s in statements]
    if is_binding != [True]:
        raise ConfigError(f"{where}: must be one binding like 'Train.updates = 3'")
    yield _binding(statements[0], where)


def _find(name: str, including: tuple[str, ...]) -> pathlib.Path:
    folders = [pathlib.Path(), *(pathlib.Path(p).parent for p in including[-1:]), ROOT]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    where = f"{including[-1]}: included file " if including else ""
    near = sorted(ROOT.glob("configs/**/*.gin"))
    names = [str(path.relative_to(ROOT)) for path in near]
    raise ConfigError(f"{where}{name} must be an existing file{suggest(name, names)}")


def _parse(text: str, name: str) -> Iterator[tuple[Any, str]]:
    """Yield (statement, where); gin's syntax errors come out as one line."""
    line_num = 1
    try:
        for statement in config_parser.ConfigParser(text, _Delegate()):
            line_num = statement.location.line_num
            yield statement, _where(name, line_num)
    except SyntaxError as error:
        where = _where(name, error.lineno or line_num)
        reason = str(error.msg).splitlines()[-1].strip().rstrip(".")
        raise ConfigError(
            f"{where}: must be gin syntax: {reason}; text needs quotes, and a "
            "binding is NAME = VALUE on one line"
        ) from None
    except (tokenize.TokenError, StopIteration, RuntimeError):
        where = _where(name, line_num)
        raise ConfigError(
            f"{where}: must be gin syntax: a bracket or quote behind this line is "
            "not closed"
        ) from None


def _where(name: str, line_num: int) -> str:
    return name if name.startswith("--set") else f"{name}:{line_num}"


def _check_import(statement: Any, where: str) -> None:
    allowed = (
        "__gin__.dynamic_registration",
        "jigsaw_jax.config",
        "jigsaw_jax.settings",
    )
    if statement.module not in allowed or statement.alias:
        raise ConfigError(
            f"{where}: only jigsaw_jax's config and settings can be imported, "
            f"got {statement.format()!r}"
        )


def _binding(statement: Any, where: str) -> Binding:
    if statement.scope:
        raise ConfigError(
            f"{where}: scopes are not used here, got {statement.scope!r}; remove it"
        )
    return Binding(statement.selector, statement.arg_name, statement.value, where)
