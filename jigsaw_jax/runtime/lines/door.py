"""Where lines come in: who has the run's token may, and says a ticket.

    dial -> door: a number of the door's  -> ticket, own number, both under the token
         <-         <- the dialler's number under the token

Neither end shows the token, and what one end has said proves nothing another time.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable

from jigsaw_jax.runtime.lines.line import Line, LineClosedError

# In which a stranger must have shown the token.
GREETING_S = 10.0
# Longest frame before that.
_GREETING_BYTES_MAX = 1024
_NUMBER_BYTES = 32
_RETRY_S = 0.1

Address = tuple[str, int]


def make_token() -> str:
    """A new secret of 256 bits."""
    return secrets.token_hex(32)


class Door:
    """Listens, each greeting on a thread of its own.

    Args:
      host: address to listen on; others are not reached.
      token: that all ends of the run share.
      enter: takes the ticket and the line of each that comes in, on its thread.

    Attributes:
      address: host and port, for `dial`.
    """

    def __init__(
        self, host: str, token: str, enter: Callable[[str, Line], None]
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=256)
        self.address: Address = (host, self._server.getsockname()[1])
        self._token = token.encode()
        self._enter = enter
        threading.Thread(target=self._listen, name="door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            # Wakes the thread that accepts.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._server.accept()
                threading.Thread(
                    target=self._greet, args=(sock,), name="greeting", daemon=True
                ).start()

    def _greet(self, sock: socket.socket) -> None:
        line = Line(sock)
        try:
            line.wait_at_most(GREETING_S)
            number = secrets.token_bytes(_NUMBER_BYTES)
            line.send(number)
            ticket, body = line.receive(_GREETING_BYTES_MAX)
            said = bytes(body)
            theirs, proof = said[:_NUMBER_BYTES], said[_NUMBER_BYTES:]
            if not hmac.compare_digest(
                proof, _proof(self._token, b"dial", number, theirs, ticket)
            ):
                raise LineClosedError("the token is another")
            line.send(_proof(self._token, b"door", theirs, number, ticket))
            line.wait_at_most(None)
        except LineClosedError:
            # A stranger, or one of ours that was killed meanwhile.
            line.close()
            return
        self._enter(ticket.decode(), line)


def dial(address: Address, token: str, ticket: str, *, within_s: float) -> Line:
    """Come in at a door; where nobody answers, again until the time is over.

    Args:
      address: of the door.
      token: of the run.
      ticket: what to say there.
      within_s: how long to try.

    Returns:
      The line.

    Raises:
      LineClosedError: nobody answers, or who does has another token.
    """
    end_s = time.monotonic() + within_s
    while True:
        try:
            sock = socket.create_connection(address, timeout=GREETING_S)
            return _introduce(Line(sock), token.encode(), ticket.encode())
        except (OSError, LineClosedError) as error:
            if time.monotonic() > end_s:
                host, port = address
                raise LineClosedError(f"no line to {host}:{port}: {error}") from None
        threading.Event().wait(_RETRY_S)


def _introduce(line: Line, token: bytes, ticket: bytes) -> Line:
    try:
        line.wait_at_most(GREETING_S)
        number, _ = line.receive(_GREETING_BYTES_MAX)
        own = secrets.token_bytes(_NUMBER_BYTES)
        line.send(ticket, own + _proof(token, b"dial", number, own, ticket))
        proof, _ = line.receive(_GREETING_BYTES_MAX)
        if not hmac.compare_digest(proof, _proof(token, b"door", own, number, ticket)):
            raise LineClosedError("the token is another")
        line.wait_at_most(None)
    except LineClosedError:
        line.close()
        raise
    return line


def _proof(token: bytes, side: bytes, *parts: bytes) -> bytes:
    """That this side has the token; lengths of all parts but the last are fixed."""
    return hmac.digest(token, b"".join((side, *parts)), hashlib.sha256)
