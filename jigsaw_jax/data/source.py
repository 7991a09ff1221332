"""Prompts by position: shuffled anew every epoch, stateless, split without overlap.

A data position is one integer: position p of the training split is row p mod N of the
shuffle of epoch p // N. Nothing else has to be saved to go on exactly where a run was.
"""

import hashlib
import re
from collections.abc import Callable

from grain.experimental import index_shuffle

from jigsaw_jax import settings
from jigsaw_jax.data.reasoning_gym import ReasoningGymRows
from jigsaw_jax.data.rows import (
    JsonlRows,
    RandomRows,
    Row,
    Rows,
    shuffled_order,
    split,
)
from jigsaw_jax.data.solution import solution_text
from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.records import Prompt

SPLITS = ("train", "held_out")
# Of Grain's own shuffle.
ROUNDS = 4


class PromptSource:
    """Random access to the prompts of one split."""

    def __init__(
        self,
        rows: Rows,
        *,
        indices: list[int],
        data: settings.Data,
        pipeline: str,
        tokenizer: Tokenizer,
        shuffle_seed: int | None,
    ) -> None:
        self._rows = rows
        self._data = data
        self._pipeline = pipeline
        self._tokenizer = tokenizer
        self._row_indices = indices
        self._length = len(indices)
        self._shuffle_seed = shuffle_seed

    def __len__(self) -> int:
        """Prompts of one epoch."""
        return self._length

    def epoch(self, position: int) -> int:
        """Which pass through the split `position` belongs to, from 0."""
        return position // self._length

    def prompt(self, position: int) -> Prompt:
        """The prompt at a position; positions go on for ever.

        Data.question must match the problem, or `shown` raises.

        Args:
          position: from 0.

        Returns:
          The prompt, with the uid "pipeline/row/epoch".

        Raises:
          IndexError: the split is empty, or the position negative.
        """
        if position < 0 or not self._length:
            raise IndexError(
                f"position must be in a split of {self._length} prompts, "
                f"got {position!r}"
            )
        row = self._rows[self._index(position)]
        tokens, text = self._tokenizer.encode_prompt(self._text(row))
        return Prompt(
            uid=f"{self._pipeline}/{row.row_id}/{self.epoch(position)}",
            tokens=tokens,
            text=text,
            answer=row.answer,
            task=row.task,
            metadata=row.metadata,
        )

    def check_lengths(self, tokens_max: int) -> None:
        """Refuse a split with a prompt that has no token or too many.

        Such a prompt would end the run when its turn comes, and again after every
        resume. Texts too short for that by their bytes are not tokenised.

        Args:
          tokens_max: tokens of the longest prompt that can be sampled from.

        Raises:
          ValueError: with the first such row and how many there are.
        """
        around = len(self._tokenizer.encode_prompt("x")[0]) - 1
        wrong = []
        for index in self._row_indices:
            row = self._rows[index]
            text = self._text(row)
            # Of white space alone some tokenizers make no token.
            if text.strip() and len(text.encode()) + around <= tokens_max:
                continue
            num = len(self._tokenizer.encode_prompt(text)[0])
            if not 1 <= num <= tokens_max:
                wrong.append((row.row_id, num))
        if wrong:
            row_id, num = wrong[0]
            raise ValueError(
                f"a prompt must have 1 to {tokens_max} tokens, got {num} in row "
                f"{row_id!r} ({len(wrong)} such rows); raise the last of "
                "Sampler.prompt_buckets, or take the rows out"
            )

    def check_rows(self, check: Callable[[Row], None]) -> None:
        """Refuse a split with a row for which `check` raises ValueError.

        Args:
          check: says what is wrong with a row.

        Raises:
          ValueError: what `check` said of the first such row, where it stands, and
            how many there are.
        """
        refused = []
        for index in self._row_indices:
            row = self._rows[index]
            try:
                check(row)
            except ValueError as error:
                refused.append(f"{row.where}: {error}")
        if refused:
            more = f" ({len(refused)} rows are refused)" if len(refused) > 1 else ""
            raise ValueError(refused[0] + more)

    def pair(
        self, position: int, solution: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt tokens and solution tokens with EOS, for a supervised warm-up.

        Args:
          position: as in `prompt`.
          solution: see `solution_text`.

        Returns:
          The prompt's tokens and the solution's.
        """
        prompt = self.prompt(position)
        text = solution_text(solution, prompt)
        return prompt.tokens, (*self._tokenizer.encode(text), self._tokenizer.eos_id)

    def _index(self, position: int) -> int:
        """The row at a position, as Grain's shuffled and repeated data set has it.

        A look-up in that takes five times as long, as it measures itself.
        """
        epoch, place = divmod(position, self._length)
        if self._shuffle_seed is not None:
            seed = (self._shuffle_seed + epoch) % 2**32
            # By position: names of arguments take a tenth of the call.
            place = index_shuffle(place, self._length - 1, seed, ROUNDS)
        return self._row_indices[place]

    def _text(self, row: Row) -> str:
        """What stands inside the chat template, where there is one."""
        return self._data.template.replace("{prompt}", shown(row, self._data.question))


def open_source(
    data: settings.Data, *, pipeline: str, tokenizer: Tokenizer, split: str, seed: int
) -> PromptSource:
    """The prompts of one split of the data.

    Data.seed alone chooses the problems and which of them are held out, so runs with
    other seeds are measured on the same ones. The held-out split is not shuffled: the
    first n are always the same n.

    Args:
      data: what to open.
      pipeline: names the run in uids.
      tokenizer: for the prompts.
      split: "train" or "held_out".
      seed: of the run; with Data.seed it sets the order of the training split.

    Returns:
      The source.

    Raises:
      ValueError: there is no such split. What opens the data raises ValueError too
        where its rows or their split are not possible.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    rows, order = _open_rows(data, tokenizer)
    held_out, train = _split(rows, order, data)
    return PromptSource(
        rows,
        indices=train if split == "train" else held_out,
        data=data,
        pipeline=pipeline,
        tokenizer=tokenizer,
        shuffle_seed=_hash(data.seed, seed) if split == "train" else None,
    )


def shown(row: Row, question: str | None) -> str:
    """What is shown of a row's question: the first group of `question`, or all."""
    if question is None:
        return row.question
    match = re.search(question, row.question)
    if match is None or match[1] is None:
        raise ValueError(
            f"Data.question must match every problem, got {question!r} "
            f"for row {row.row_id!r}: {row.question[:80]!r}"
        )
    return match[1]


def _open_rows(
    data: settings.Data, tokenizer: Tokenizer
) -> tuple[Rows, list[int] | range]:
    """The rows, and all their indices in the order in which they are held out."""
    if data.source == "jsonl":
        assert data.path is not None
        rows = JsonlRows(data.path, task=data.task)
        # Files are often sorted, so the first rows would be no fair sample.
        return rows, shuffled_order(rows, data.seed)
    size = data.held_out + data.size
    if data.source == "random_bytes":
        if tokenizer.vocab_size != 258 or tokenizer.bos_id is None:
            raise ValueError(
                "Tokenizer.kind must be 'bytes' where Data.source is 'random_bytes', "
                f"got a vocabulary of {tokenizer.vocab_size!r}"
            )
        letters = data.prompt_tokens - 1
        return RandomRows(size=size, letters=letters, seed=data.seed), range(size)
    # Row i of seed s is row i - 1 of seed s + 1 in reasoning-gym; hashed seeds of
    # neighbouring runs have no problems in common but by chance.
    rows = ReasoningGymRows(
        data.task, options=data.options, seed=_hash(data.seed), size=size
    )
    return rows, range(size)


def _split(
    rows: Rows, order: list[int] | range, data: settings.Data
) -> tuple[list[int], list[int]]:
    if data.source == "random_bytes" or not data.held_out:
        return list(order[: data.held_out]), sorted(order[data.held_out :])
    texts = [shown(rows[i], data.question) for i in range(len(rows))]
    return split(texts, order, data.held_out)


def _hash(*seeds: int) -> int:
    """A seed below 2**31; Grain adds the epoch to it, so neighbours must not touch."""
    text = "/".join(map(str, seeds)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1
