"""Small file operations that survive a kill: atomic JSON and append-only lines."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any


class StoreError(Exception):
    """A run's files cannot be written or read; the message is one clear line."""


def write_text(path: pathlib.Path, text: str) -> None:
    """The same as `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Replace a file whole or not at all.

    Args:
      path: of the file; its directory is made where it is missing.
      content: the new one.

    Raises:
      StoreError: if it cannot be written; the old file then stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(path: pathlib.Path, value: Any) -> None:
    """Replace a JSON file whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: pathlib.Path) -> Any:
    """Read a JSON file.

    Args:
      path: of the file.

    Returns:
      The value that it holds.

    Raises:
      StoreError: if it is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise StoreError(f"{path} must hold JSON, got {error}") from error


def read_lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Read a JSONL file; a half-written last line is left out.

    Args:
      path: of the file; one that does not exist has no records.

    Yields:
      The records in order.

    Raises:
      StoreError: if a line that has an end is not JSON.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise StoreError(
                    f"line {number} of {path} must hold JSON, got {error}; to go on, "
                    f"restore the file or drop the line: sed -i {number}d '{path}'"
                ) from error


def cut(path: pathlib.Path, size: int) -> int:
    """Move all bytes of a log behind `size` to its `.rewound` neighbour.

    The neighbour has them on disk before the log loses them, so a kill between the
    two steps doubles lines there and never loses one.

    Args:
      path: of the log.
      size: bytes that stay.

    Returns:
      How many bytes moved.
    """
    if not path.exists() or path.stat().st_size <= size:
        return 0
    rewound = path.with_name(f"{path.stem}.rewound{path.suffix}")
    with path.open("r+b") as file:
        file.seek(size)
        tail = file.read()
        with rewound.open("ab") as behind:
            behind.write(tail if tail.endswith(b"\n") else tail + b"\n")
            behind.flush()
            os.fsync(behind.fileno())
        file.truncate(size)
    return len(tail)


def whole_lines_size(path: pathlib.Path) -> int:
    """Bytes up to and with the last line end; 0 if the file does not exist."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
