"""What crosses a process border: MessagePack, checked on arrival.

    record -> plain values by field order -> MessagePack      (commands, messages)
    rows   -> MessagePack -> named tuples, all checked        (what is said of samples)

Nothing is unpickled and nothing is called by a name that came over the wire: who reads
says which type it expects, and a value of another type, length or range is a WireError.
"""

import contextlib
import dataclasses
import enum
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

_SCALARS = frozenset((str, int, float, bool, types.NoneType))
_TEXT = frozenset((str,))


class WireError(ValueError):
    """Bytes that are not what was expected of them."""


# Records and settings.


def plain(value: Any) -> Any:
    """A record as plain values, its fields in order.

    Args:
      value: dataclasses, named tuples, enums, tuples, dicts and scalars in each other.

    Returns:
      What `read` takes with the record's type.
    """
    return _plainer(type(value))(value)


@functools.cache
def _plainer(cls: type) -> Callable[[Any], Any]:
    """How values of a type become plain; a call a record, not one a scalar."""
    if issubclass(cls, (str, int, float, types.NoneType)):
        return lambda value: value
    if issubclass(cls, (tuple, list)):
        return _plain_items
    if issubclass(cls, enum.Enum):
        return operator.attrgetter("value")
    if issubclass(cls, Mapping):
        return lambda value: {key: plain(item) for key, item in value.items()}
    names = _names(cls)
    if len(names) < 2:
        return lambda value: [plain(getattr(value, name)) for name in names]
    fields = operator.attrgetter(*names)
    return lambda value: _plain_items(fields(value))


def _plain_items(values: Iterable[Any]) -> list[Any]:
    return [x if type(x) in _SCALARS else _plainer(type(x))(x) for x in values]


def read(hint: Any, value: Any) -> Any:
    """A value of this type from what `plain` made.

    Args:
      hint: a type, as annotated.
      value: plain values.

    Returns:
      The value.

    Raises:
      WireError: it is of another type.
    """
    return reader(hint)(value)


# Code of an extension: JSON within MessagePack.
JSON = 1
_FORMLESS = (UnicodeEncodeError, OverflowError)
_EXACT = {str: str.__str__, int: int.__int__, float: float.__float__}


def _exact(value: Any) -> Any:
    """A scalar of NumPy, or of a class made from a plain one, as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    for kind, exact in _EXACT.items():
        if isinstance(value, kind):
            return exact(value)
    raise TypeError(f"a value must be plain, got {type(value).__name__}")


def _extension(code: int, data: memoryview) -> Any:
    if code != JSON:
        raise WireError(f"message must be plain, got extension {code}")
    return _from_json(bytes(data))


_encode = msgspec.msgpack.Encoder(enc_hook=_exact).encode
_write = json.JSONEncoder(separators=(",", ":"), default=_exact).encode
_decode = msgspec.msgpack.Decoder(ext_hook=_extension).decode


def to_bytes(value: Any) -> bytes:
    """MessagePack of plain values; named tuples count as lists.

    Two things have no form there, and go as JSON where they stand: a surrogate alone,
    as in a file's name that is no UTF-8, and a whole number of over 64 bits.
    """
    try:
        return _encode(value)
    except _FORMLESS:
        return _encode(_spelled(value))


def _spelled(value: Any) -> Any:
    """The same, with what has no form as JSON; bytes, which JSON has not, may stay."""
    try:
        _encode(value)
    except _FORMLESS:
        if isinstance(value, (list, tuple)):
            return [_spelled(item) for item in value]
        if isinstance(value, Mapping) and _spelled(keys := list(value)) is keys:
            return {key: _spelled(item) for key, item in value.items()}
        return msgspec.msgpack.Ext(JSON, _write(value).encode())
    return value


def from_bytes(data: bytes | memoryview) -> Any:
    """Plain values of MessagePack; a WireError where it is none."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"message must be MessagePack: {error}") from None


def _from_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"text must be JSON: {error}") from None


@functools.cache
def _names(cls: type) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"a value must be a record or plain, got {cls.__name__}")
    return tuple(field.name for field in dataclasses.fields(cls))


def _wrong(hint: Any, value: Any) -> WireError:
    return WireError(f"value must be {hint}, got {str(value)[:80]!r}")


@functools.cache
def reader(hint: Any) -> Callable[[Any], Any]:
    """What `read` calls for a type, for those who read many of it."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return lambda value: value
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return _union(hint)
    if origin is tuple:
        return _tuple(hint, typing.get_args(hint)[0])
    if hint is dict or origin is dict:
        return _dict(hint)
    return _reader_of_class(hint)


def _reader_of_class(hint: Any) -> Callable[[Any], Any]:
    if issubclass(hint, enum.Enum):
        return _enum(hint)
    if hasattr(hint, "_fields") or dataclasses.is_dataclass(hint):
        return _record(hint)
    return _scalar(hint)


def _scalar(hint: Any) -> Callable[[Any], Any]:
    def scalar(value: Any) -> Any:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            with contextlib.suppress(OverflowError):
                return float(value)
        raise _wrong(hint, value)

    return scalar


def _union(hint: Any) -> Callable[[Any], Any]:
    arms = typing.get_args(hint)
    readers = [reader(arm) for arm in arms]

    def union(value: Any) -> Any:
        # An exact arm goes before one that converts: 3 stays an int in `float | int`.
        if type(value) in arms:
            return value
        for take in readers:
            try:
                return take(value)
            except WireError:
                continue
        raise _wrong(hint, value)

    return union


def _tuple(hint: Any, arm: Any) -> Callable[[Any], Any]:
    take = reader(arm)

    def items(value: Any) -> Any:
        if type(value) is not list:
            raise _wrong(hint, value)
        if set(map(type, value)) <= {arm}:
            return tuple(value)
        return tuple(take(item) for item in value)

    return items


def _dict(hint: Any) -> Callable[[Any], Any]:
    arms = typing.get_args(hint)
    take = reader(arms[1]) if arms else reader(Any)
    kept = _kept(arms[1]) if arms else frozenset()

    def mapping(value: Any) -> Any:
        # MessagePack, unlike JSON, has keys of every type.
        if type(value) is not dict or not _TEXT.issuperset(map(type, value)):
            raise _wrong(hint, value)
        if kept.issuperset(map(type, value.values())):
            return value.copy()
        return {key: take(item) for key, item in value.items()}

    return mapping


def _enum(hint: Any) -> Callable[[Any], Any]:
    def member(value: Any) -> Any:
        try:
            return hint(value)
        except ValueError:
            raise _wrong(hint, value) from None

    return member


def _record(hint: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(hint)
    names = getattr(hint, "_fields", None) or _names(hint)
    kept = [_kept(hints[name]) for name in names]
    readers = [reader(hints[name]) for name in names]
    make = _maker(hint, names)
    # Which fields are to be read and which are kept, by the types of a message.
    plans: dict[tuple[type, ...], list[tuple[int, Callable[[Any], Any]]]] = {}

    def record(value: Any) -> Any:
        if type(value) is not list or len(value) != len(names):
            raise _wrong(hint, value)
        found = tuple(map(type, value))
        plan = plans.get(found)
        items = value.copy()
        if plan is not None:
            for place, take in plan:
                items[place] = take(items[place])
            return make(items)
        items = [take(item) for take, item in zip(readers, value, strict=True)]
        plans[found] = [
            (place, readers[place])
            for place, one in enumerate(found)
            if one not in kept[place]
        ]
        return make(items)

    return record


def row_maker(row: Any) -> Callable[[Sequence[Any]], Any]:
    """What makes a named tuple, in a third of what a call of its class takes.

    Args:
      row: the class.

    Returns:
      Takes the fields in order, at which nobody looks.
    """
    return functools.partial(tuple.__new__, row)


@functools.cache
def rows_reader(row: Any) -> Callable[[Any], list[Any]]:
    """What reads rows of one kind.

    Args:
      row: a named tuple, its fields' types annotated.

    Returns:
      Takes plain lists and returns named tuples; a WireError as `read` raises.
    """
    return _converter(list[row], row.__name__)


def tables_reader(kinds: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What reads rows of several kinds.

    Args:
      kinds: named tuples as in `rows_reader`, by name.

    Returns:
      Takes the bytes of plain lists by name and returns what has those lists, of named
      tuples, as attributes, empty where a name is not told; a WireError as `read`
      raises.
    """
    fields = [
        (name, list[row], msgspec.field(default_factory=list))
        for name, row in kinds.items()
    ]
    tables = msgspec.defstruct("Tables", fields, forbid_unknown_fields=True)
    decode = msgspec.msgpack.Decoder(tables).decode
    convert = _converter(tables, "by kind")

    def rows(data: Any) -> Any:
        if type(data) is not bytes:
            raise WireError(f"tables must be bytes, got {str(data)[:80]!r}")
        try:
            return decode(data)
        except (msgspec.DecodeError, RecursionError):
            # Some go as JSON; of others this says what is wrong.
            return convert(from_bytes(data))

    return rows


def _converter(hint: Any, name: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise WireError(f"rows must be {name}: {error}") from None

    return convert


def _kept(hint: Any) -> frozenset[type]:
    """Types of which a value is read as it is."""
    arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return _SCALARS.intersection(arms)


def _maker(hint: Any, names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """What makes a record of all its fields, in order."""
    if issubclass(hint, tuple):
        return row_maker(hint)
    if hasattr(hint, "__post_init__") or not hasattr(hint, "__slots__"):
        return lambda items: hint(**dict(zip(names, items, strict=True)))
    # Of a record that checks nothing. Its own constructor takes twice as long.
    setters = [getattr(hint, name).__set__ for name in names]

    def make(items: Sequence[Any]) -> Any:
        record = object.__new__(hint)
        for put, item in zip(setters, items, strict=True):
            put(record, item)
        return record

    return make


def read_list(value: Any, length: int | None = None) -> list[Any]:
    """A list, of this length where one is given; a WireError where it is none."""
    if type(value) is not list or (length is not None and len(value) != length):
        raise WireError(f"value must be a list of {length}, got {str(value)[:80]!r}")
    return value
