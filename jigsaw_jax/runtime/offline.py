"""Evaluation of a run's last checkpoint, beside or long after the run itself."""

import pathlib

from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.runtime.base import base_of, check_base
from jigsaw_jax.runtime.build import build
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.evaluation import Evaluator, Result
from jigsaw_jax.runtime.publisher import Publisher
from jigsaw_jax.sample.loop import SampleLoop
from jigsaw_jax.settings import Train
from jigsaw_jax.store.checkpoint import Checkpoints
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir


def evaluate_checkpoint(train: Train, run_dir: pathlib.Path) -> tuple[int, Result]:
    """Evaluate the newest checkpoint of a run; nothing in its directory changes.

    Args:
      train: the run's settings; its `evaluation` says what is measured.
      run_dir: of the run.

    Returns:
      Updates that the checkpoint holds, and what was found.

    Raises:
      StoreError: there is no checkpoint that can be read, or it belongs to adapters
        over other weights.
    """
    checkpoints = Checkpoints(RunDir(run_dir).checkpoints, read_only=True)
    step = checkpoints.latest_step()
    if step is None:
        raise StoreError(f"{run_dir} must hold a checkpoint, got none yet")
    parts = build(train)
    abstract = {"learner": parts.learner.abstract_state()}
    saved = checkpoints.read_record(step)
    check_base(saved, base_of(parts.learner))
    if saved["has_published"]:
        abstract["published"] = parts.learner.abstract_params()
    arrays, record = checkpoints.restore(step, abstract)
    checkpoints.close()
    parts.learner.load_state(arrays["learner"])
    publisher = Publisher(
        parts.channel, parts.engine, Clock(), frozen=parts.learner.frozen
    )
    params = publisher.load(parts.learner.export_params())
    loop = SampleLoop(parts.engine, params, version=step)
    pool = RewardPool(train.reward)
    try:
        evaluator = Evaluator(train, parts.held_out, parts.tokenizer, pool.submit)
        return record["updates"], evaluator.run(loop)
    finally:
        pool.close()
