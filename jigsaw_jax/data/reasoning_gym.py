"""Problems of a reasoning-gym task, generated once and kept as text.

Importing reasoning-gym takes seconds and a hundred megabytes, and some of its tasks
take a minute for a thousand problems. So a process of its own writes them, and a cache
(in $XDG_CACHE_HOME or ~/.cache, jigsaw_jax/problems) saves the next start the wait.

    python -m jigsaw_jax.data.reasoning_gym TASK OPTIONS_JSON SEED SIZE

writes one JSON object a line.
"""

import contextlib
import difflib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jigsaw_jax
from jigsaw_jax.data.rows import Row, decoded


class ReasoningGymRows:
    """`size` problems of one task; the same arguments always give the same rows."""

    def __init__(
        self, task: str, *, options: dict[str, Any], seed: int, size: int
    ) -> None:
        for name in ("size", "seed"):
            if name in options:
                raise ValueError(
                    f"Data.options must not hold {name!r} (use Data.{name}), "
                    f"got {options!r}"
                )
        self._task = task
        arguments = [task, json.dumps(options, sort_keys=True), str(seed), str(size)]
        self._lines = _load(arguments, size)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        entry = decoded(self._lines[index])
        return Row(
            row_id=str(index),
            question=entry["question"],
            answer=entry["answer"],
            task=self._task,
            metadata=entry["metadata"],
            where=f"problem {index} of {self._task}",
        )


def cache_folder() -> pathlib.Path:
    """Where generated problems are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "jigsaw_jax" / "problems"


def _load(arguments: list[str], size: int) -> list[bytes]:
    version = importlib.metadata.version("reasoning-gym")
    key = "\x00".join([version, *arguments]).encode()
    digest = hashlib.blake2b(key, digest_size=12).hexdigest()
    path = cache_folder() / f"{arguments[0]}-{digest}.jsonl"
    with contextlib.suppress(OSError):
        lines = path.read_bytes().splitlines()
        if len(lines) == size:
            return lines
    text = _generate(arguments)
    # A cache that cannot be written costs only the next start's time.
    with contextlib.suppress(OSError):
        _write(path, text)
    return text.splitlines()


def _generate(arguments: list[str]) -> bytes:
    root = str(pathlib.Path(jigsaw_jax.__file__).parents[1])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    # Some tasks walk through sets of strings, whose order depends on the hash seed.
    environment = os.environ | {
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "jigsaw_jax.data.reasoning_gym", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(
            "Data.task and Data.options must be a reasoning-gym task and its options, "
            f"got {arguments[0]!r} and {arguments[1]}: {''.join(reason)}"
        )
    return done.stdout


def _write(path: pathlib.Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _main(task: str, options: str, seed: str, size: str) -> None:
    # Whatever a task prints must not end up among the problems.
    with contextlib.redirect_stdout(sys.stderr):
        from reasoning_gym import factory

        if task not in factory.DATASETS:
            near = difflib.get_close_matches(task, factory.DATASETS, n=3)
            sys.exit(f"there is no task {task!r}; near it: {', '.join(near) or 'none'}")
        rows = factory.create_dataset(
            task, seed=int(seed), size=int(size), **json.loads(options)
        )
        lines = [
            json.dumps(
                {
                    "question": row["question"],
                    "answer": "" if row["answer"] is None else str(row["answer"]),
                    "metadata": row["metadata"],
                }
            )
            for row in (rows[index] for index in range(int(size)))
        ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
