"""Problems as rows of JSON text, from a JSONL file or from nothing but a seed."""

import dataclasses
import hashlib
import json
import pathlib
import random
import string
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem of a data set.

    row_id: its name in the data set, unique.
    question: the problem's text.
    answer: the reference answer, as text; empty where there is none.
    task: selects the reward.
    metadata: for the task's own verifier; JSON values only.
    where: the place that a message names, for example "problems.jsonl:17".
    """

    row_id: str
    question: str
    answer: str
    task: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    where: str = ""


@runtime_checkable
class Rows(Protocol):
    """Random access to the rows of a data set."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def __getitem__(self, index: int) -> Row:
        """The row at `index`, from 0."""
        ...


class JsonlRows:
    """The {"prompt", "answer"} objects of a file, with optional id, task and metadata.

    An answer that is a list or an object (tests of a program, say) is kept as its JSON.
    Only the text is held; a row is parsed when it is asked for. Every line is checked
    at the start. A row without an id is named by its line number.
    """

    def __init__(self, path: str, *, task: str) -> None:
        self._task = task
        self._path = path
        self._lines = list(_lines(path))
        first_line: dict[str, int] = {}
        for index, (number, _) in enumerate(self._lines):
            row_id = self[index].row_id
            if row_id in first_line:
                raise ValueError(
                    f"{path}:{number}: id must be unique, got {row_id!r} "
                    f"of line {first_line[row_id]} again"
                )
            first_line[row_id] = number
        if not self._lines:
            raise ValueError(f"Data.path must hold a problem, got {path!r}")

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        number, line = self._lines[index]
        where = f"{self._path}:{number}"
        try:
            row = _parse(line, number=number, task=self._task)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return dataclasses.replace(row, where=where)


class RandomRows:
    """Prompts of random lower-case letters, for benches; the answer is empty."""

    def __init__(self, *, size: int, letters: int, seed: int) -> None:
        self._size = size
        self._letters = letters
        self._seed = seed

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        chance = random.Random(f"{self._seed}/{index}")
        letters = chance.choices(string.ascii_lowercase, k=self._letters)
        return Row(
            row_id=str(index), question="".join(letters), answer="", task="random_bytes"
        )


def shuffled_order(rows: Rows, seed: int) -> list[int]:
    """Row indices in an order that depends on each row's id and the seed alone.

    So rows added to the end of a file change nothing in the order of the others.
    """
    keys = (f"{seed}\x00{rows[i].row_id}".encode() for i in range(len(rows)))
    digests = [hashlib.blake2b(key, digest_size=16).digest() for key in keys]
    return sorted(range(len(rows)), key=digests.__getitem__)


def split(
    texts: Sequence[str], order: Sequence[int], held_out: int
) -> tuple[list[int], list[int]]:
    """Held-out rows and training rows, which share no text.

    Rows are held out in `order`, each text once. A row with the text of a held-out
    row is in neither split. Training rows keep their own order and their duplicates.

    Args:
      texts: what is shown of each row.
      order: all indices of `texts`, those to hold out first.
      held_out: how many rows to hold out.

    Returns:
      Indices of the held-out rows, and of the training rows.

    Raises:
      ValueError: there are too few distinct texts to hold out, or none is left.
    """
    held: dict[str, int] = {}
    for index in order:
        if len(held) == held_out:
            break
        held.setdefault(texts[index], index)
    train = [index for index, text in enumerate(texts) if text not in held]
    if len(held) < held_out or not train:
        raise ValueError(
            "Data.held_out must leave problems to train on: the data has "
            f"{len(set(texts))} distinct problems, got {held_out!r}"
        )
    return list(held.values()), train


def decoded(line: str | bytes) -> Any:
    """The value of a line of JSON.

    Args:
      line: of JSON, or what Python takes for it (NaN, half of a surrogate pair).

    Returns:
      The value that `json.loads` has; in a quarter of the time where it is JSON.

    Raises:
      ValueError: it is neither.
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return json.loads(line)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"Data.path must be a file, got {path!r}")
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _parse(line: str, *, number: int, task: str) -> Row:
    entry = decoded(line)
    if not isinstance(entry, dict):
        raise ValueError(f"a line must be a JSON object, got {line.strip()[:80]!r}")
    unknown = sorted(entry.keys() - {"prompt", "answer", "id", "task", "metadata"})
    if unknown:
        raise ValueError(
            f"fields must be prompt, answer, id, task and metadata, got {unknown!r}; "
            "put what a verifier needs in metadata"
        )
    metadata = entry.get("metadata", {})
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata must be a JSON object, got {metadata!r}")
    return Row(
        row_id=_text(entry, "id", str(number)),
        question=_text(entry, "prompt"),
        answer=_answer(entry),
        task=_text(entry, "task", task),
        metadata=metadata,
    )


def _answer(entry: dict[str, Any]) -> str:
    answer = entry.get("answer")
    return (
        json.dumps(answer)
        if isinstance(answer, (list, dict))
        else _text(entry, "answer")
    )


def _text(entry: dict[str, Any], name: str, default: str | None = None) -> str:
    value = entry.get(name, default)
    # A whole number is a usual answer or id; any other number has several spellings.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text or a whole number, got {value!r}")
    return value
