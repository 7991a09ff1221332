"""The numbers of an update for TensorBoard, written by a thread of their own."""

import concurrent.futures
import os
from collections.abc import Callable, Mapping
from typing import Any

from jigsaw_jax.store.files import StoreError


class Board:
    """Writes a directory of TensorBoard files.

    Args:
      directory: of the files; made at the first write.
      on_failed: called from the writing thread with what it failed of; `close` raises
        the same error.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._directory = str(directory)
        self._on_failed = on_failed
        # One thread, so that order is kept.
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "tensorboard")
        self._last: concurrent.futures.Future[None] | None = None
        self._writer: Any = None

    def write(self, update: int, values: Mapping[str, float]) -> None:
        """Write an update's numbers by name, in the background."""
        if not values:
            return
        self._last = self._pool.submit(self._write, update, values)
        self._last.add_done_callback(self._tell)

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
          StoreError: if the disk refused it.
        """
        self._pool.shutdown()
        if self._last is not None:
            self._last.result()
        if self._writer is not None:
            self._writer.close()

    def _tell(self, write: concurrent.futures.Future[None]) -> None:
        error = write.exception()
        if error is not None and self._on_failed is not None:
            self._on_failed(error)

    def _write(self, update: int, values: Mapping[str, float]) -> None:
        # Imported at the first record: it costs start-up time and is optional.
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import scalar

        try:
            if self._writer is None:
                self._writer = SummaryWriter(
                    self._directory, purge_step=update, flush_secs=10
                )
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot write {self._directory}: {reason}") from error
        # In one event: each goes through a pipe to yet another thread.
        whole, *others = [scalar(name, value) for name, value in values.items()]
        for other in others:
            whole.MergeFrom(other)
        self._writer.file_writer.add_summary(whole, update)
