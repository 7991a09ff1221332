"""Builds the heavy objects of a run from its settings, in the order they need."""

import concurrent.futures
import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jigsaw_jax import mesh as meshes
from jigsaw_jax.data.source import PromptSource
from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.model import decoder as model
from jigsaw_jax.runtime.channel import WeightChannel
from jigsaw_jax.runtime.inputs import open_inputs, refusing
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.settings import Train
from jigsaw_jax.train.learner import Learner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of.

    tokenizer: text to tokens and back.
    source: training inputs.
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
    inputs = open_inputs(train)
    learner_mesh, sampler_mesh = meshes.build_meshes(train.mesh, jax.devices())
    learner = build_learner(train, learner_mesh)
    engine, channel = build_engine(train, inputs.tokenizer, sampler_mesh)
    return Parts(
        tokenizer=inputs.tokenizer,
        source=inputs.source,
        held_out=inputs.held_out,
        engine=engine,
        learner=learner,
        channel=channel,
    )


def build_engine(
    train: Train, tokenizer: Tokenizer, mesh: jax.sharding.Mesh
) -> tuple[Engine, WeightChannel]:
    """The sampler's device side, and the way of weights onto its mesh."""
    engine = Engine(
        train.decoder,
        train.sampler,
        mesh,
        stop_tokens=stop_tokens(train, tokenizer),
        pad_token=tokenizer.pad_id,
    )
    return engine, WeightChannel(train.decoder, mesh)


def build_learner(train: Train, mesh: jax.sharding.Mesh) -> Learner:
    """The trainer with the run's first weights; raises as `build` does."""
    with refusing("weights", train.weights.path or train.weights.source):
        params = first_params(train, mesh)
    return Learner(train, mesh, params)


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


def side_by_side(*jobs: Callable[[], Any]) -> None:
    """Run jobs at once and raise the first error; compiling leaves Python free."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
        for job in [threads.submit(job) for job in jobs]:
            job.result()
