"""Rules of a configuration that gin does not enforce: names, types, use, choices."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from jigsaw_jax import settings
from jigsaw_jax.config.statements import (
    Binding,
    ConfigError,
    Macro,
    Reference,
    suggest,
)
from jigsaw_jax.settings import fields

Values = dict[tuple[str, str], tuple[Any, str]]
"""(class, field) -> (value, where it was bound)."""

_CLASSES: Mapping[str, type] = {
    name: getattr(settings, name) for name in settings.__all__
}
_HINTS: Mapping[str, Mapping[str, Any]] = {
    "run": {"train": settings.Train},
    **{name: fields.hints(cls) for name, cls in _CLASSES.items()},
}
_NAMES = [f"{name}.{field}" for name, hints in _HINTS.items() for field in hints]
_PREFIXES = ("", "settings", "config", "jigsaw_jax.settings", "jigsaw_jax.config")
_REQUIRED = Macro("gin.REQUIRED")


def check(bindings: Iterable[Binding]) -> Values:
    """The last value of every name, macros replaced and types fitted.

    Args:
      bindings: in order, of all files and options.

    Returns:
      Values that gin can evaluate without surprise.

    Raises:
      ConfigError: a binding is unknown, unused, of the wrong type or left to choose.
    """
    last: dict[tuple[str, str], Binding] = {}
    macros: dict[str, Binding] = {}
    for binding in bindings:
        if binding.field:
            last[_key(binding)] = binding
        else:
            macros[binding.target] = binding
    used: set[str] = set()
    values = {
        key: (_expand(b.value, b, macros=macros, used=used), b.where)
        for key, b in last.items()
    }
    for name in macros.keys() - used:
        nearest = _nearest("", name) or suggest(name, used)
        raise ConfigError(f"{macros[name].where}: {name} is never used{nearest}")
    fitted = {key: (_fit(key, *value), value[1]) for key, value in values.items()}
    return _complete(fitted)


def _key(binding: Binding) -> tuple[str, str]:
    """(class, field) of a binding whose names exist."""
    prefix, _, name = binding.target.rpartition(".")
    if prefix not in _PREFIXES or name not in _HINTS:
        full = f"{name}.{binding.field}"
        raise ConfigError(
            f"{binding.where}: {binding.target} must be a settings class"
            f"{suggest(full, _NAMES) or suggest(name, _CLASSES)}"
        )
    if binding.field not in _HINTS[name]:
        raise ConfigError(
            f"{binding.where}: {name}.{binding.field} must be a setting of {name}"
            f"{_nearest(name, binding.field)}"
        )
    return name, binding.field


def _nearest(name: str, field: str) -> str:
    """Suggest the field under its own class, then a close one, then one elsewhere."""
    own = [known for known in _NAMES if known.startswith(f"{name}.")]
    elsewhere = [known for known in _NAMES if known.endswith(f".{field}")]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    full = f"{name}.{field}"
    return suggest(full, own) or suggest(full, _NAMES)


def _expand(
    value: Any, binding: Binding, *, macros: Mapping[str, Binding], used: set[str]
) -> Any:
    """`value` with every macro replaced by what it stands for."""

    def inner(item: Any) -> Any:
        return _expand(item, binding, macros=macros, used=used)

    if isinstance(value, dict):
        return {inner(key): inner(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(inner(item) for item in value)
    if not isinstance(value, Macro) or value == _REQUIRED:
        return value
    if value.name not in macros:
        raise ConfigError(
            f"{binding.where}: %{value.name} must be defined"
            f"{suggest(value.name, macros)}"
        )
    used.add(value.name)
    definition = macros[value.name]
    # Without its own definition, a macro that leads back to itself is undefined.
    others = {name: macro for name, macro in macros.items() if name != value.name}
    return _expand(definition.value, definition, macros=others, used=used)


def _complete(values: Values) -> Values:
    """`values` and the defaults of all that is not bound.

    Every settings class stands at one place of `Train`, so an unbound reference can
    only mean that class.
    """
    complete = dict(values)
    for name, hints in _HINTS.items():
        for field, hint in hints.items():
            if (name, field) not in values:
                complete[name, field] = (_default(name, field, hint), "default")
            value, where = complete[name, field]
            if value == _REQUIRED:
                place = "" if where == "default" else f"{where}: "
                raise ConfigError(
                    f"{place}{name}.{field} must be chosen by the run, got nothing; "
                    f"add --set '{name}.{field} = ...' ({fields.describe(hint)}), or "
                    "bind it in a file"
                )
    return complete


def _default(name: str, field: str, hint: Any) -> Any:
    if _is_settings(hint):
        return Reference(hint.__name__, is_called=True)
    defaults = fields.defaults(_CLASSES[name])
    return defaults.get(field, _REQUIRED)


def _is_settings(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _fit(key: tuple[str, str], value: Any, where: str) -> Any:
    name, field = key
    hint = _HINTS[name][field]
    if value == _REQUIRED:
        return value
    if _is_settings(hint):
        return _fit_reference(key, value, where)
    if not _is_plain(value):
        raise ConfigError(f"{where}: {name}.{field} must be plain, got {_shown(value)}")
    try:
        return fields.fit(value, hint)
    except TypeError as error:
        raise ConfigError(f"{where}: {name}.{field} {error}") from None


def _is_plain(value: Any) -> bool:
    """Whether `value` holds no reference and nothing still to choose."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return not isinstance(value, (Reference, Macro))


def _fit_reference(key: tuple[str, str], value: Any, where: str) -> Reference:
    """The reference without the module it was written with."""
    wanted = _HINTS[key[0]][key[1]].__name__
    if isinstance(value, Reference) and value.is_called:
        prefix, _, target = value.name.rpartition(".")
        if prefix in _PREFIXES and target == wanted:
            return Reference(target, is_called=True)
    raise ConfigError(
        f"{where}: {'.'.join(key)} must be @settings.{wanted}(), got {_shown(value)}"
    )


def _shown(value: Any) -> str:
    if isinstance(value, Reference):
        return f"@{value.name}" + "()" * value.is_called
    return repr(value)
