"""The evaluation log: one JSON line an evaluation, with update and version."""

import json
import os
import pathlib
from collections.abc import Mapping

from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError


class EvaluationLog:
    """Appends to evaluations.jsonl.

    A line is kept apart from metrics.jsonl since an evaluation can end updates after
    the one that it was begun behind.

    Args:
      path: of evaluations.jsonl; its directory must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        files.cut(self._path, files.whole_lines_size(self._path))

    def record(self, updates: int, metrics: Mapping[str, float]) -> None:
        """Append what an evaluation found.

        Args:
          updates: that were done when it was begun.
          metrics: name to number.

        Raises:
          StoreError: if the disk refuses the line.
        """
        line = json.dumps({"updates": updates, **metrics}) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write {self._path}: {reason}") from error
