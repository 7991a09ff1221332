"""Both ends of a line in one process."""

import queue
import socket

from jigsaw_jax.runtime.lines.door import Door, dial
from jigsaw_jax.runtime.lines.line import Line

HOST = "127.0.0.1"


def line_pair() -> tuple[Line, Line]:
    """Two ends, connected."""
    with socket.create_server((HOST, 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return Line(near), Line(far)


def door(token: str) -> tuple[Door, "queue.SimpleQueue[tuple[str, Line]]"]:
    """A door, and who has come in."""
    entered: queue.SimpleQueue[tuple[str, Line]] = queue.SimpleQueue()
    return Door(HOST, token, lambda *who: entered.put(who)), entered


def call(one: Door, token: str, ticket: str) -> Line:
    """Dial it once."""
    return dial(one.address, token, ticket, within_s=0.0)
