"""What a run reads before anything is built: tokenizer and problems, checked."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator

from jigsaw_jax.data.rows import Row
from jigsaw_jax.data.source import PromptSource, open_source
from jigsaw_jax.data.tokenizer import Tokenizer, open_tokenizer
from jigsaw_jax.records import Prompt
from jigsaw_jax.reward.reference import check_reference
from jigsaw_jax.settings import Train
from jigsaw_jax.settings.paths import forget_gguf

# Prompts at a time, in some 1 ms.
READ_MAX = 64


class RefusedError(Exception):
    """The settings do not fit the files that they name; the message is one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read.

    tokenizer: text to tokens and back.
    source: training problems.
    held_out: problems for evaluation alone.
    """

    tokenizer: Tokenizer
    source: PromptSource
    held_out: PromptSource


def open_inputs(train: Train) -> Inputs:
    """Open and check the tokenizer and the problems.

    Args:
      train: the run.

    Returns:
      What a run reads.

    Raises:
      RefusedError: a file can't be read, or does not fit the run.
    """
    tokenizer = open_tokens(train)
    _check_gguf(train)
    with refusing("data", train.data.path or train.data.task):
        return Inputs(
            tokenizer=tokenizer,
            source=_open(train, tokenizer, "train"),
            held_out=_open(train, tokenizer, "held_out"),
        )


def open_tokens(train: Train) -> Tokenizer:
    """The tokenizer alone; raises as `open_inputs`."""
    with refusing("tokenizer", train.tokenizer.path or train.tokenizer.kind):
        tokenizer = open_tokenizer(train.tokenizer)
        if tokenizer.vocab_size > train.decoder.vocab_size:
            raise ValueError(
                "Decoder.vocab_size must be at least the tokenizer's "
                f"{tokenizer.vocab_size}, got {train.decoder.vocab_size!r}"
            )
    return tokenizer


def _check_gguf(train: Train) -> None:
    """Refuse a file of another model: its tensors show no rotary base and no window."""
    if train.weights.source != "gguf":
        return
    # Imported here: most runs name no such file.
    from jigsaw_jax.model.families import differing
    from jigsaw_jax.model.gguf import decoder_from_gguf

    path = train.weights.path or ""
    with refusing("weights", path):
        differences = differing(decoder_from_gguf(path), train.decoder)
        if differences:
            raise ValueError(
                "Decoder must be the model of the file: set " + ", ".join(differences)
            )
    forget_gguf()


def preview(train: Train) -> list[str]:
    """Open what opens in seconds, as a run would.

    Of generated problems that is one, which shows whether the task, its options and
    what is shown of a problem fit.

    Args:
      train: the run.

    Returns:
      Lines that say what is there.

    Raises:
      RefusedError: as `open_inputs`.
    """
    is_generated = train.data.source == "reasoning_gym"
    if is_generated:
        one = dataclasses.replace(train.data, size=1, held_out=0)
        train = dataclasses.replace(train, data=one)
    inputs = open_inputs(train)
    lines = [f"tokenizer: {inputs.tokenizer.vocab_size:,} tokens"]
    if not is_generated:
        lines.append(
            f"problems: {len(inputs.source):,} to train, {len(inputs.held_out):,} "
            "held out"
        )
    return [*lines, f"first prompt: {inputs.source.prompt(0).text!r}"]


def prompts_again(
    source: PromptSource, outstanding: Iterable[tuple[str, int]]
) -> list[Prompt]:
    """The prompts that a resumed run still needs.

    Args:
      source: of the run's training problems.
      outstanding: uid and position of each, as the pipeline has them.

    Returns:
      The prompts.

    Raises:
      RefusedError: another prompt is there now.
    """
    prompts = []
    for uid, position in outstanding:
        prompts.append(source.prompt(position))
        if prompts[-1].uid != uid:
            raise RefusedError(
                "the problems must be those that the run began with, got "
                f"{prompts[-1].uid!r} at position {position} instead of {uid!r}; "
                "restore the data file, or choose another --run_dir"
            )
    return prompts


def read_in_parts(source: PromptSource, first: int, num: int) -> Iterator[list[Prompt]]:
    """The prompts at `num` positions from `first` on, as many at a time as is quick."""
    for start in range(first, first + num, READ_MAX):
        end = min(start + READ_MAX, first + num)
        yield [source.prompt(position) for position in range(start, end)]


@contextlib.contextmanager
def refusing(part: str, name: str) -> Iterator[None]:
    """What a file gives rise to is the user's to mend, so it is one clear line."""
    try:
        yield
    except (ValueError, OSError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise RefusedError(f"{part} {name!r} can't be used: {first}") from error


def _open(train: Train, tokenizer: Tokenizer, split: str) -> PromptSource:
    source = open_source(
        train.data,
        pipeline=train.pipeline_name,
        tokenizer=tokenizer,
        split=split,
        seed=train.seed,
    )
    # Random prompts have one length, which the settings have checked, and no answer.
    if train.data.source != "random_bytes":
        source.check_lengths(train.sampler.prompt_buckets[-1])
        source.check_rows(lambda row: check_reference(_unseen(row), train.reward))
    return source


def _unseen(row: Row) -> Prompt:
    """A row as a reward sees it, without the tokens that only a sampler needs."""
    return Prompt(
        uid=row.row_id,
        tokens=(),
        text=row.question,
        answer=row.answer,
        task=row.task,
        metadata=row.metadata,
    )
