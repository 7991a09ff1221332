"""Builds the heavy objects of a run from its settings, in the order they need."""

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jigsaw_jax import mesh as meshes
from jigsaw_jax.data.source import PromptSource, open_source
from jigsaw_jax.data.tokenizer import Tokenizer, open_tokenizer
from jigsaw_jax.model import decoder as model
from jigsaw_jax.runtime.channel import WeightChannel
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.settings import Train
from jigsaw_jax.train.learner import Learner


class RefusedError(Exception):
    """The settings do not fit the files that they name; the message is one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of.

    tokenizer: text to tokens and back.
    source: training problems.
    held_out: problems for evaluation alone.
    engine: the sampler's device side.
    learner: the trainer's.
    channel: from one to the other.
    """

    tokenizer: Tokenizer
    source: PromptSource
    held_out: PromptSource
    engine: Engine
    learner: Learner
    channel: WeightChannel


def build(train: Train) -> Parts:
    """Everything but the threads; nothing is compiled yet.

    Args:
      train: the run.

    Returns:
      The parts.

    Raises:
      RefusedError: a tokenizer, data or weights file can't be read or does not fit.
    """
    with _refusing("tokenizer", train.tokenizer.path or train.tokenizer.kind):
        tokenizer = open_tokenizer(train.tokenizer)
        if tokenizer.vocab_size > train.decoder.vocab_size:
            raise ValueError(
                "Decoder.vocab_size must be at least the tokenizer's "
                f"{tokenizer.vocab_size}, got {train.decoder.vocab_size!r}"
            )
    with _refusing("data", train.data.path or train.data.task):
        source = _open(train, tokenizer, "train")
        held_out = _open(train, tokenizer, "held_out")
    learner_mesh, sampler_mesh = meshes.build_meshes(train.mesh, jax.devices())
    with _refusing("weights", train.weights.path or train.weights.source):
        params = first_params(train, learner_mesh)
    engine = Engine(
        train.decoder,
        train.sampler,
        sampler_mesh,
        stop_tokens=stop_tokens(train, tokenizer),
        pad_token=tokenizer.pad_id,
    )
    return Parts(
        tokenizer=tokenizer,
        source=source,
        held_out=held_out,
        engine=engine,
        learner=Learner(train, learner_mesh, params),
        channel=WeightChannel(engine.decoder, sampler_mesh),
    )


def stop_tokens(train: Train, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that end a completion; see Sampler.stop_tokens."""
    chosen = train.sampler.stop_tokens
    if not chosen:
        return tuple(tokenizer.stop_ids)
    return tuple(token for token in chosen if token >= 0)


def first_params(train: Train, mesh: jax.sharding.Mesh) -> Any:
    """The weights that the run starts from; a folder's come sharded over `mesh`."""
    return _base_params(train, mesh) | model.init_adapters(train.decoder, train.seed)


def _base_params(train: Train, mesh: jax.sharding.Mesh) -> Any:
    decoder = train.decoder.base
    # Imported here: most runs read no file, and the readers take a while to load.
    if train.weights.source == "hf":
        from jigsaw_jax.model.hf_folder import Folder
        from jigsaw_jax.model.hf_load import load_folder

        assert train.weights.path is not None
        shapes = jax.eval_shape(lambda: model.init_params(decoder, 0))
        axes = model.logical_axes(decoder)
        shardings = meshes.sharding_tree(mesh, axes, shapes)
        return load_folder(Folder(train.weights.path), decoder, shardings)
    if train.weights.source == "gguf":
        from jigsaw_jax.model import gguf

        assert train.weights.path is not None
        return gguf.load_gguf(train.weights.path, decoder)
    return model.init_params(decoder, train.seed)


def _open(train: Train, tokenizer: Tokenizer, split: str) -> PromptSource:
    source = open_source(
        train.data,
        pipeline=train.pipeline_name,
        tokenizer=tokenizer,
        split=split,
        seed=train.seed,
    )
    # Random prompts have one length, which the settings have checked.
    if train.data.source != "random_bytes":
        source.check_lengths(train.sampler.prompt_buckets[-1])
    return source


@contextlib.contextmanager
def _refusing(part: str, name: str) -> Iterator[None]:
    """What a file gives rise to is the user's to mend, so it is one clear line."""
    try:
        yield
    except (ValueError, OSError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise RefusedError(f"{part} {name!r} can't be used: {first}") from error


def side_by_side(*jobs: Callable[[], Any]) -> None:
    """Run jobs at once and raise the first error; compiling leaves Python free."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
        for job in [threads.submit(job) for job in jobs]:
            job.result()
