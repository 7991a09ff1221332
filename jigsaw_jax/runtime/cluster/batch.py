"""A worker's messages, as they came in one frame."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Batch(NamedTuple):
    """What `Outbox.take` made.

    items: kind and values of each message.
    forms: of its intervals: name, and keys of the fields.
    body: completions of guests.
    named: gets the objects of Ray's that messages name.
    """

    items: list[Any]
    forms: list[Any]
    body: bytes
    named: Callable[[], list[Any]]
