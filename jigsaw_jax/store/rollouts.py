"""The rollout log: what was sampled for each update, one JSON line a completion."""

import concurrent.futures
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jigsaw_jax.records import Group
from jigsaw_jax.store import files
from jigsaw_jax.store.json_lines import encode_lines


@dataclasses.dataclass(frozen=True, slots=True)
class Logged:
    """A group that has ended.

    group: what was sampled and scored.
    advantages: by sample, as it trained; None where it did not.
    dropped: why it did not train, or None.
    """

    group: Group
    advantages: Sequence[float] | None = None
    dropped: str | None = None


def rollout_rows(
    logged: Logged,
    *,
    update: int,
    texts: Sequence[str],
    pieces: Sequence[Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """One JSON object for each completion of a group.

    Args:
      logged: the group and what became of it.
      update: that trained it, or the next one after it was dropped.
      texts: the completions' text, by sample.
      pieces: each completion's tokens as text, by sample, where known; the report
        shades them by logprob.

    Returns:
      Rows with the fields that docs/run_folder.md lists.
    """
    group, rows = logged.group, []
    for index, (sample, score) in enumerate(
        zip(group.samples, group.scores, strict=True)
    ):
        row = {
            "update": update,
            "uid": sample.id.uid,
            "draw": sample.id.draw,
            "sample": sample.id.sample,
            "attempt": sample.attempt,
            "order": group.order,
            "task": group.prompt.task,
            "prompt": group.prompt.text,
            "answer": group.prompt.answer,
            "text": texts[index],
            "segments": [_segment(segment) for segment in sample.segments],
            "reward": score.value,
            "parts": dict(score.parts),
            "failure": score.failure,
            "finish": sample.finish_reason.value,
        }
        if logged.advantages is not None:
            row["advantage"] = round(float(logged.advantages[index]), 6)
        if logged.dropped is not None:
            row["dropped"] = logged.dropped
        if pieces is not None:
            row["pieces"] = list(pieces[index])
        rows.append(row)
    return rows


class RolloutLog:
    """Writes rollouts/update-000012.jsonl, each file whole or not at all.

    What was dropped before an update that never came, or that a later process trains,
    is in update-000012.dropped.jsonl.

    Args:
      directory: of the files; made at the first write.
      on_failed: called from the writing thread when a write fails; the next call here
        raises the same error.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._directory = pathlib.Path(directory)
        self._on_failed = on_failed
        # One thread: encoding must not delay the pipeline, and order is kept.
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "rollout-log")
        self._writes: list[concurrent.futures.Future[None]] = []

    def write(
        self, update: int, rows: Iterable[dict[str, Any]], *, is_trained: bool = True
    ) -> None:
        """Write an update's rows in the background; a file that exists is replaced.

        Args:
          update: that trained the rows.
          rows: JSON objects, as `rollout_rows` makes them; a generator runs in the
            background too.
          is_trained: whether the update was made, or else what was dropped before it.

        Raises:
          StoreError: if an earlier write failed.
        """
        self._check(wait=False)
        name = f"update-{update:06d}{'' if is_trained else '.dropped'}.jsonl"
        write = self._pool.submit(self._write, name, rows)
        write.add_done_callback(self._tell)
        self._writes.append(write)

    def flush(self) -> None:
        """Wait until everything is written.

        Raises:
          StoreError: if a write failed.
        """
        self._check(wait=True)

    def close(self) -> None:
        """Flush and stop the background thread."""
        try:
            self.flush()
        finally:
            self._pool.shutdown()

    def _tell(self, write: concurrent.futures.Future[None]) -> None:
        error = write.exception()
        if error is not None and self._on_failed is not None:
            self._on_failed(error)

    def _check(self, *, wait: bool) -> None:
        waiting = []
        for write in self._writes:
            if wait or write.done():
                write.result()
            else:
                waiting.append(write)
        self._writes = waiting

    def _write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        # One by one: a row takes ten times the memory of its line.
        lines = b"".join(encode_lines((row,)) for row in rows)
        files.write_bytes(self._directory / name, lines)


def _segment(segment: Any) -> dict[str, Any]:
    return {
        "is_sampled": segment.is_sampled,
        "tokens": list(segment.tokens),
        "logprobs": _to_six_places(segment.logprobs),
        "versions": list(segment.versions),
    }


def _to_six_places(values: Sequence[float]) -> list[float]:
    """In a tenth of the time that `round` takes for each."""
    return (np.rint(np.asarray(values, np.float64) * 1e6) / 1e6).tolist()
