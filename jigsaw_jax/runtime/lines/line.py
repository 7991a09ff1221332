"""A connection between two processes: frames of a head and a body, with their lengths.

    send, receive           wait          (a worker: a thread for each direction)
    post, push, arrived     never wait    (the controller: one thread before them all)

TCP delivers bytes once and in order, or the line ends: a frame comes whole or not at
all.
"""

import collections
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

_SIZES = struct.Struct("<II")
# Memory of more than 128 KiB is mapped afresh for every chunk.
_CHUNK = 1 << 16
# No peer makes this process take more than so much memory for one frame.
FRAME_BYTES_MAX = 1 << 30
# At 10 Gbit/s a body comes in thousands of parts a second, and to be woken for each
# takes half as much of a core again.
_LOW_BYTES = 1 << 20
# Of a head whose body goes into memory that was there before.
HEAD_BYTES_MAX = 1 << 20


class LineClosedError(Exception):
    """The other end is gone, or speaks something else."""


class Line:
    """One end; any thread may send, and one at a time may receive.

    Args:
      sock: connected, and from now on the line's.

    Attributes:
      filled: called by `post` where the system has not taken all.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.filled: Callable[[], Any] = lambda: None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._sending = threading.Lock()
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._received = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    def wait_at_most(self, seconds: float | None) -> None:
        """Bound every later wait of `send` and `receive`.

        Args:
          seconds: None waits for ever.

        Raises:
          LineClosedError: this end has been closed.
        """
        try:
            self._sock.settimeout(seconds)
        except OSError as error:
            raise LineClosedError(str(error)) from None

    def close(self) -> None:
        """End it; who waits at either end is told."""
        # The other end may have been first.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    # Waiting.

    def send(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send a frame; returns once the system has all of it.

        Args:
          head: usually MessagePack.
          body: bytes.

        Raises:
          LineClosedError: the other end is gone.
        """
        try:
            with self._sending:
                start = _SIZES.pack(len(head), len(body)) + head
                if len(body) <= _CHUNK:
                    # Once sent, once woken: cheaper than not to copy it.
                    self._sock.sendall(start + body)
                else:
                    self._sock.sendall(start)
                    self._sock.sendall(body)
        except OSError as error:
            raise LineClosedError(str(error)) from None

    def receive(self, bytes_max: int = FRAME_BYTES_MAX) -> tuple[bytes, bytearray]:
        """Wait for a frame.

        Args:
          bytes_max: that it may have.

        Returns:
          Head and body.

        Raises:
          LineClosedError: the other end is gone, or the frame is too long.
        """
        head, body = _SIZES.unpack(self._read(_SIZES.size))
        _check(head, body, bytes_max)
        return bytes(self._read(head)), self._read(body)

    def receive_into(self, body: memoryview) -> tuple[bytes, int]:
        """Wait for a frame whose body goes into memory that is there already.

        Args:
          body: writable bytes, as many as there may be.

        Returns:
          Head, and how many bytes the body has.

        Raises:
          LineClosedError: the other end is gone, or the frame is too long.
        """
        head, num = _SIZES.unpack(self._read(_SIZES.size))
        _check(head, 0, HEAD_BYTES_MAX)
        _check(0, num, len(body))
        found = bytes(self._read(head))
        self._fill(body[:num], _LOW_BYTES)
        self._wake_at(1)
        return found, num

    def _read(self, num: int) -> bytearray:
        data = bytearray(num)
        self._fill(memoryview(data))
        return data

    def _wake_at(self, num: int) -> None:
        """Have later waits end when so many bytes are here."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num)

    def _fill(self, view: memoryview, low: int = 1) -> None:
        at = 0
        try:
            while at < len(view):
                if low > 1:
                    # Never more than is still to come.
                    self._wake_at(min(low, len(view) - at))
                got = self._sock.recv_into(view[at:])
                if not got:
                    raise LineClosedError("the other end has closed it")
                at += got
        except OSError as error:
            raise LineClosedError(str(error)) from None

    # Not waiting.

    def post(self, head: bytes, body: bytes = b"") -> None:
        """Send a frame as far as the system takes it; `push` sends the rest.

        Where the other end is gone nothing happens: `arrived` says so.
        """
        frame = _SIZES.pack(len(head), len(body)) + head + body
        with self._sending:
            self._unsent.append(memoryview(frame))
            self._push()
        if self._unsent:
            self.filled()

    def push(self) -> None:
        """Go on with what `post` has left."""
        with self._sending:
            self._push()

    @property
    def has_unsent(self) -> bool:
        """Whether there is something to push."""
        return bool(self._unsent)

    def _push(self) -> None:
        try:
            while self._unsent:
                frame = self._unsent[0]
                sent = self._sock.send(frame, socket.MSG_DONTWAIT)
                if sent < len(frame):
                    self._unsent[0] = frame[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def arrived(self) -> list[tuple[bytes, bytes]]:
        """Frames that are here.

        Returns:
          Head and body of each, in order.

        Raises:
          LineClosedError: there is none, and there will be none.
        """
        is_open = True
        try:
            while is_open:
                chunk = self._sock.recv(_CHUNK, socket.MSG_DONTWAIT)
                if not self._received and (frame := _whole(chunk)):
                    # As nearly always: nothing else will be here, and if so it is
                    # found the next time.
                    return [frame]
                self._received += chunk
                is_open = bool(chunk)
                if len(chunk) < _CHUNK:
                    break
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
        frames = self._split()
        if not is_open and not frames:
            raise LineClosedError("the other end has closed it")
        return frames

    def _split(self) -> list[tuple[bytes, bytes]]:
        frames, at, received = [], 0, self._received
        # Without a view each part would be copied twice.
        with memoryview(received) as view:
            while len(received) - at >= _SIZES.size:
                head, body = _SIZES.unpack_from(received, at)
                _check(head, body, FRAME_BYTES_MAX)
                first = at + _SIZES.size
                end = first + head + body
                if end > len(received):
                    break
                middle = first + head
                frames.append((bytes(view[first:middle]), bytes(view[middle:end])))
                at = end
        del received[:at]
        return frames


def _whole(chunk: bytes) -> tuple[bytes, bytes] | None:
    """The frame that these bytes are, where they are one and nothing else."""
    if len(chunk) < _SIZES.size:
        return None
    head, body = _SIZES.unpack_from(chunk)
    middle = _SIZES.size + head
    if middle + body != len(chunk):
        return None
    return chunk[_SIZES.size : middle], chunk[middle:]


def _check(head: int, body: int, bytes_max: int) -> None:
    if head + body > bytes_max:
        raise LineClosedError(
            f"frame must have at most {bytes_max} bytes, got {head + body}"
        )
