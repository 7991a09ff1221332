"""Reads slices of a safetensors file; only the pages of the tensor at hand are mapped.

The library's own reader maps the whole file, and pages that were read once count as the
process's memory until the file is closed.
"""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


class SafetensorsFile:
    """The header of one file, read and checked.

    Args:
      path: of the file.

    Attributes:
      shapes: tensor name to its shape.

    Raises:
      ValueError: it is not a whole safetensors file, or a tensor's type is not float.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= size - 8:
                raise ValueError(f"{path} must be a safetensors file, and is not")
            try:
                header: dict[str, Any] = json.loads(file.read(length))
            except ValueError:
                raise ValueError(f"{path} must have a JSON header") from None
        header.pop("__metadata__", None)
        self._start = 8 + length
        self._entries = header
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if size != self._start + end:
            raise ValueError(
                f"{path} must be whole, {self._start + end} bytes, got {size}; "
                "fetch it again"
            )
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                raise ValueError(
                    f"{path}: {name} must be one of {', '.join(_DTYPES)}, "
                    f"got {entry['dtype']!r}"
                )
        self.shapes = {name: tuple(e["shape"]) for name, e in header.items()}

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, read from the disk where and when it is indexed."""
        entry = self._entries[name]
        return np.memmap(
            self._path,
            dtype=_DTYPES[entry["dtype"]],
            mode="r",
            offset=self._start + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
        )
