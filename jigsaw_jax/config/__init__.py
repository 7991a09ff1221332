"""Gin files and command-line bindings become one checked `settings.Train`.

The only package that knows gin. Gin accepts what is unused or of the wrong type, and
answers mistakes with a stack of notes. So the statements, as gin's own parser reads
them, are checked first, and gin evaluates what is left, which is known to be sound:

    files, bindings -> statements -> last value of each name -> checks -> gin -> Train
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import gin

from jigsaw_jax import settings
from jigsaw_jax.config.checks import Values, check
from jigsaw_jax.config.statements import ConfigError, Reference, read_file, read_text

__all__ = ["ConfigError", "Loaded", "load", "run"]

_HEADER = """\
from __gin__ import dynamic_registration
from jigsaw_jax import config
from jigsaw_jax import settings
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checked configuration.

    Attributes:
      train: the run.
      operative: every value in force, as gin text that `load` reads again.
    """

    train: settings.Train
    operative: str


@gin.configurable
def run(
    train: settings.Train = gin.REQUIRED,  # pyright: ignore[reportArgumentType]
) -> settings.Train:
    """The one configurable; `config.run.train = @settings.Train()` in base.gin."""
    return train


def load(files: Sequence[str], bindings: Sequence[str] = ()) -> Loaded:
    """Read gin files, then bindings; later ones win.

    Args:
      files: paths from the working directory or the checkout.
      bindings: like "Train.updates = 3"; `settings.` may be left out.

    Returns:
      The run and its operative text.

    Raises:
      ConfigError: anything is missing, unknown, unused, of the wrong type or refused
        by a settings class; one line with the place, the rule and the fix.
    """
    statements = [statement for file in files for statement in read_file(file)]
    for binding in bindings:
        statements.extend(read_text(binding))
    values = check(statements)
    text = _HEADER + "".join(f"{line}\n" for line in _lines(values))
    # Gin's tables are global: they hold this configuration only inside this call.
    gin.clear_config()
    try:
        gin.parse_config(text)
        return Loaded(train=run(), operative=gin.operative_config_str())
    except ValueError as error:
        raise _refusal(str(error), values) from None
    finally:
        gin.clear_config()


def _lines(values: Values) -> Iterable[str]:
    for (name, field), (value, _) in values.items():
        module = "config" if name == "run" else "settings"
        yield f"{module}.{name}.{field} = {_literal(value)}"


def _literal(value: Any) -> str:
    if isinstance(value, Reference):
        return f"@settings.{value.name}()"
    return repr(value)


def _refusal(message: str, values: Values) -> ConfigError:
    """A settings class's own rule, with the place of a binding that it names."""
    # Gin appends lines of its own to the message.
    rule = message.split("\n")[0]
    named = re.findall(r"(\w+)\.(\w+)", rule)
    places = [values[key][1] for key in named if key in values]
    places = [place for place in places if place != "default"]
    # A rule may name two bindings; what was typed last is the likelier culprit.
    places.sort(key=lambda place: not place.startswith("--set"))
    return ConfigError(f"{places[0]}: {rule}" if places else rule)
