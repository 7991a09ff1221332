"""Values as lines of JSON, encoded in C."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec


def encode_lines(values: Iterable[Any]) -> bytes:
    """A line for each value; NaN and infinity become null.

    Args:
      values: JSON values or records of msgspec. NumPy scalars are numbers, and whatever
        else JSON has no word for is written as its text.

    Returns:
      UTF-8, with a line end behind each.
    """
    values = list(values)
    try:
        return _encoder.encode_lines(values)
    except UnicodeEncodeError:
        return b"".join(_spelled(value) + b"\n" for value in values)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def _spelled(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        # Half of a surrogate pair, in the name of a row say: JSON alone can spell it.
        return json.dumps(msgspec.to_builtins(value, enc_hook=_plain)).encode()
