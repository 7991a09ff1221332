"""The metrics log: one JSON record an update, and the same numbers in TensorBoard."""

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jigsaw_jax.store import files
from jigsaw_jax.store.board import Board
from jigsaw_jax.store.files import StoreError


class MetricsLog:
    """Appends one record an update to metrics.jsonl.

    Args:
      path: of metrics.jsonl; its directory must exist. Rewind it before.
      tensorboard: directory for TensorBoard files, or None for none.
      on_failed: called from the thread that writes those with what it failed of.

    Raises:
      StoreError: if the file cannot be opened or holds a damaged line.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tensorboard: str | os.PathLike[str] | None = None,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._path = pathlib.Path(path)
        self._board = None
        if tensorboard is not None:
            self._board = Board(tensorboard, on_failed=on_failed)
        try:
            files.cut(self._path, files.whole_lines_size(self._path))
            self.last_update = max(
                (record["update"] for record in files.read_lines(self._path)),
                default=-1,
            )
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write {self._path}: {reason}") from error

    def record(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Append the record of `update`; NaN and infinity are written as null.

        Args:
          update: greater than that of every record before.
          metrics: name to number (or None), other JSON values as they are.

        Raises:
          ValueError: if `update` does not grow.
          StoreError: if the disk refuses the line.
        """
        if update <= self.last_update:
            raise ValueError(
                f"update must be greater than {self.last_update}, the last one in "
                f"{self._path}, got {update!r}"
            )
        row = {"update": update}
        row |= {name: plain(value) for name, value in metrics.items()}
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write {self._path}: {reason}") from error
        self.last_update = update
        if self._board is not None:
            del row["update"]
            shown = {k: v for k, v in row.items() if isinstance(v, int | float)}
            self._board.write(update, shown)

    def flush(self) -> None:
        """Every line is on its way at once, so there is nothing to do."""

    def close(self) -> None:
        """Close the files.

        Raises:
          StoreError: if the disk refuses what is left.
        """
        try:
            self._file.close()
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write {self._path}: {reason}") from error
        if self._board is not None:
            self._board.close()


def plain(value: Any) -> Any:
    """A JSON value for a Python, NumPy or JAX scalar; not finite gives None."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
