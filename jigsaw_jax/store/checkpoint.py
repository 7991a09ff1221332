"""Checkpoints: arrays and the JSON record of one moment, in one atomic commit.

    save: Orbax copies the arrays to the host, then the caller goes on
      saving-00000012/arrays/        Orbax writes in the background
      saving-00000012/record.json    ledger, data position, versions, keys, offsets
      saving-00000012/manifest.json  size and CRC-32 of every file, shape and dtype of
                                   every array; written last
      rename to step-00000012/       the commit: it is there whole or not at all
      prune, then on_durable(12)

A kill leaves at most a `saving-` directory, removed at the next start. A step whose
files do not match its manifest is renamed to `damaged-` and the one before is used.
Orbax takes seconds to import on a busy machine, so that happens at first use.
"""

import json
import logging
import os
import pathlib
import re
import shutil
import threading
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.orbax_import import checkpointer, orbax

_log = logging.getLogger(__name__)
# What Orbax and TensorStore raise for a disk that is full, gone or unwritable.
_DISK_ERRORS = (OSError, ValueError, RuntimeError)


def prepare() -> threading.Thread:
    """Import Orbax in a background thread, so that the first save need not."""
    thread = threading.Thread(target=orbax, name="import-orbax", daemon=True)
    thread.start()
    return thread


class Checkpoints:
    """The last few checkpoints of a run.

    Args:
      directory: where they are.
      kept: how many of the newest stay.
      read_only: for readers of another process's run: nothing is made, renamed or
        removed.
      on_failed: called from the saving thread when a save in the background fails;
        the next call here raises the same error.

    Raises:
      StoreError: if the directory cannot be made.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        kept: int = 2,
        *,
        read_only: bool = False,
        on_failed: Callable[[StoreError], None] | None = None,
    ) -> None:
        if kept < 1:
            raise ValueError(f"kept must be at least 1, got {kept!r}")
        self._directory = pathlib.Path(directory).absolute()
        self._kept = kept
        self._read_only = read_only
        self._on_failed = on_failed
        self._checkpointer: Any = None
        self._thread: threading.Thread | None = None
        self._error: StoreError | None = None
        self._verified: set[int] = set()
        if not read_only:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                for left in self._directory.glob("saving-*"):
                    shutil.rmtree(left)
            except OSError as error:
                reason = error.strerror or error
                raise StoreError(
                    f"cannot write checkpoints to {self._directory}: {reason}"
                ) from error

    def save(
        self,
        step: int,
        arrays: Any,
        record: dict[str, Any],
        *,
        wait: bool = False,
        on_durable: Callable[[int], None] | None = None,
    ) -> None:
        """Save in the background; waits first for a save that is still under way.

        The arrays may be donated as soon as this returns: JAX then copies what is
        still being read.

        Args:
          step: names the checkpoint; one that exists is replaced.
          arrays: pytree of JAX or NumPy arrays.
          record: JSON values.
          wait: return only when it is whole on disk.
          on_durable: called with `step` from the saving thread once it is.

        Raises:
          StoreError: if this save (or, with the same text, the one before it, which
            runs in the background) fails. Older checkpoints stay.
        """
        assert not self._read_only, "these checkpoints are open for reading only"
        self.wait()
        text = json.dumps(record, allow_nan=False)
        shapes = _shapes(arrays)
        saving = self._directory / f"saving-{step:08d}"
        try:
            shutil.rmtree(saving, ignore_errors=True)
            saving.mkdir()
            self._open().save(saving / "arrays", args=orbax().args.StandardSave(arrays))
        except _DISK_ERRORS as error:
            self._discard(saving)
            raise self._failed(step, error) from error
        self._thread = threading.Thread(
            target=self._commit,
            args=(step, saving, text, shapes, on_durable),
            name=f"checkpoint-{step}",
        )
        self._thread.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way.

        Raises:
          StoreError: if it failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait for the save under way and release Orbax's threads."""
        try:
            self.wait()
        finally:
            if self._checkpointer is not None:
                self._checkpointer.close()
                self._checkpointer = None

    def steps(self) -> list[int]:
        """Committed steps, ascending, whether damaged or not."""
        names = (path.name for path in self._directory.glob("step-*"))
        return sorted(int(name.removeprefix("step-")) for name in names)

    def latest_step(self) -> int | None:
        """Find the newest step whose files are whole.

        Returns:
          The step, or None where nothing was saved.

        Raises:
          StoreError: if there are checkpoints and none of them is usable.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            reason = self._damage(step)
            if reason is None:
                self._fall_back(damaged)
                return step
            damaged[step] = reason
        if damaged:
            # All stay where they are: without them, the next process would begin anew.
            step, reason = next(iter(damaged.items()))
            raise StoreError(
                f"no usable checkpoint in {self._directory}: all of steps "
                f"{sorted(damaged)} are damaged (of {step}, {reason}); start again "
                "with --resume never and a new --run_dir"
            )
        return None

    def read_record(self, step: int) -> dict[str, Any]:
        """The JSON record of a step, without its arrays."""
        return files.read_json(self._path(step) / "record.json")

    def restore(self, step: int, abstract_arrays: Any) -> tuple[Any, dict[str, Any]]:
        """Read a checkpoint onto the devices that `abstract_arrays` names.

        Args:
          step: a committed step, as `latest_step` gives it.
          abstract_arrays: pytree of the saved structure whose leaves have shape,
            dtype and sharding (arrays or jax.ShapeDtypeStruct). Without a sharding a
            leaf goes to the first device; a NumPy array stays on the host.

        Returns:
          The arrays and the record.

        Raises:
          StoreError: if the step is missing, damaged or of another structure.
        """
        reason = self._damage(step)
        if reason is not None:
            raise StoreError(f"checkpoint {self._path(step)} is damaged: {reason}")
        saved = files.read_json(self._path(step) / "manifest.json")["arrays"]
        unlike = _difference(saved, _shapes(abstract_arrays))
        if unlike is not None:
            raise StoreError(
                f"checkpoint {self._path(step)} does not fit this run: {unlike}"
            )
        target = jax.tree.map(_abstract, abstract_arrays)
        try:
            arrays = self._open().restore(
                self._path(step) / "arrays",
                args=orbax().args.StandardRestore(target),
            )
        except _DISK_ERRORS as error:
            first = str(error).strip().split("\n")[0]
            raise StoreError(
                f"cannot read checkpoint {self._path(step)}: {first}"
            ) from error
        return arrays, self.read_record(step)

    def _path(self, step: int) -> pathlib.Path:
        return self._directory / f"step-{step:08d}"

    def _open(self) -> Any:
        if self._checkpointer is None:
            self._checkpointer = checkpointer()
        return self._checkpointer

    def _commit(
        self,
        step: int,
        saving: pathlib.Path,
        text: str,
        shapes: dict[str, list[Any]],
        on_durable: Callable[[int], None] | None,
    ) -> None:
        try:
            self._open().wait_until_finished()
            files.write_text(saving / "record.json", text)
            manifest = {"arrays": shapes, "files": _sums(saving)}
            files.write_json(saving / "manifest.json", manifest)
            if self._path(step).exists():
                self._set_aside(step)
            saving.rename(self._path(step))
            _sync_directory(self._directory)
            self._verified.add(step)
            self._prune()
            if on_durable is not None:
                on_durable(step)
        except BaseException as error:
            self._discard(saving)
            self._error = self._failed(step, error)
            if self._on_failed is not None:
                self._on_failed(self._error)
            if not isinstance(error, (*_DISK_ERRORS, StoreError)):
                # A fault of ours, whose traceback is wanted.
                raise

    def _prune(self) -> None:
        for step in self.steps()[: -self._kept]:
            # Renamed first: a kill in the middle must not leave half a checkpoint
            # under a name that means a whole one.
            gone = self._directory / f"saving-{step:08d}"
            self._path(step).rename(gone)
            shutil.rmtree(gone)
            self._verified.discard(step)

    def _fall_back(self, damaged: dict[int, str]) -> None:
        for step, reason in damaged.items():
            _log.warning(
                "checkpoint %s is damaged (%s); falling back to the one before",
                self._path(step),
                reason,
            )
            if not self._read_only:
                self._set_aside(step)

    def _set_aside(self, step: int) -> None:
        aside = self._directory / f"damaged-{step:08d}"
        shutil.rmtree(aside, ignore_errors=True)
        self._path(step).rename(aside)
        self._verified.discard(step)

    def _discard(self, saving: pathlib.Path) -> None:
        # Orbax may still hold the failure of its own thread, raised once at the next
        # call; a fresh checkpointer has none.
        self._checkpointer = None
        shutil.rmtree(saving, ignore_errors=True)

    def _failed(self, step: int, error: BaseException) -> StoreError:
        kept = (
            f"checkpoints {self.steps()} are kept" if self.steps() else "none is kept"
        )
        return StoreError(
            f"cannot save checkpoint {step} to {self._directory}: {_reason(error)}; "
            f"{kept}"
        )

    def _damage(self, step: int) -> str | None:
        """Why a step is unusable, or None; each step is checked once."""
        if step in self._verified:
            return None
        path = self._path(step)
        try:
            manifest = files.read_json(path / "manifest.json")
            found = _sums(path)
        except (StoreError, OSError) as error:
            return str(error)
        for name, sums in manifest["files"].items():
            if found.get(name) != sums:
                return f"{name} has changed or is missing"
        self._verified.add(step)
        return None


def _reason(error: BaseException) -> str:
    """What the operating system said, without the places that it went through."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    return getattr(error, "strerror", None) or str(error).strip().split("\n")[0]


def _shapes(arrays: Any) -> dict[str, list[Any]]:
    """Shape and dtype of every leaf by its path in the tree."""
    return {
        jax.tree_util.keystr(path): [list(leaf.shape), str(leaf.dtype)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
    }


def _difference(
    saved: dict[str, list[Any]], wanted: dict[str, list[Any]]
) -> str | None:
    """The first leaf in which two trees differ, in words, or None."""
    for path in sorted(saved.keys() | wanted.keys()):
        if saved.get(path) != wanted.get(path):
            return (
                f"array {path} is {saved.get(path, 'missing')} in the checkpoint and "
                f"{wanted.get(path, 'missing')} in the run"
            )
    return None


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _sums(directory: pathlib.Path) -> dict[str, list[int]]:
    """Size and CRC-32 of every file but the manifest, by relative path."""
    sums = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            size, crc = 0, 0
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    size, crc = size + len(block), zlib.crc32(block, crc)
            sums[str(path.relative_to(directory))] = [size, crc]
    return sums


def _sync_directory(directory: pathlib.Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
