"""From settings and a run directory to a team that can work: built, warm, resumed."""

import collections
import dataclasses
from collections.abc import Callable

from jigsaw_jax.data.source import PromptSource
from jigsaw_jax.records import Sample
from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.reward.sandbox.client import check_isolation
from jigsaw_jax.runtime.build import Parts, build, side_by_side
from jigsaw_jax.runtime.evaluation import Evaluator
from jigsaw_jax.runtime.learner import LearnerWorker
from jigsaw_jax.runtime.publisher import Publisher
from jigsaw_jax.runtime.sampler import SamplerWorker, Span, log_slot
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.runtime.threads import ThreadFailed, Turns
from jigsaw_jax.sample.loop import SampleLoop
from jigsaw_jax.sample.warm_up import warm_up
from jigsaw_jax.schedule.pipeline import Pipeline
from jigsaw_jax.settings import Train
from jigsaw_jax.train.learner import Learner

# Steps of the supervised warm-up whose mean loss may end it.
LOSSES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """Everything that works in a run, each part owned by the thread that it names.

    parts: the heavy objects.
    pool: reward processes.
    pipeline: the state machine, of the control loop.
    loop: the sampler's, of its thread.
    sampler: its worker.
    learner: its worker.
    publisher: weights between them.
    evaluator: held-out accuracy.
    is_resumed: whether a checkpoint was loaded.
    """

    parts: Parts
    pool: RewardPool
    pipeline: Pipeline
    loop: SampleLoop
    sampler: SamplerWorker
    learner: LearnerWorker
    publisher: Publisher
    evaluator: Evaluator
    is_resumed: bool


def start(seat: Seat) -> Team:
    """Build, load or warm up, and compile; no thread of the run works yet.

    Args:
      seat: of the crew that it is for.

    Returns:
      The team, with no thread started.
    """
    reward = seat.train.reward
    if "code" in reward.weights:
        seat.progress.say(check_isolation(reward))
    # First, since its processes take as long to load as all that follows.
    pool = RewardPool(
        reward, on_failed=lambda error: seat.post(ThreadFailed("reward", error))
    )
    try:
        return _team(seat, pool)
    except BaseException:
        pool.close()
        raise


def _team(seat: Seat, pool: RewardPool) -> Team:
    train, clock = seat.train, seat.clock
    parts = build(train)
    pipeline = Pipeline(
        train.pipeline,
        updates=train.updates,
        checkpoint_every=train.store.checkpoint_every,
    )
    saved = seat.record.vault.restore(parts.learner)
    frozen = parts.learner.frozen
    publisher = Publisher(parts.channel, parts.engine, clock, frozen=frozen)
    if saved is None:
        warm_up_policy(train, parts.source, parts.learner, say=seat.progress.say)
        first = None
    else:
        pipeline.restore(saved.pipeline)
        first = saved.published
    round_params = parts.learner.export_params() if first is None else first
    loop = SampleLoop(parts.engine, publisher.load(round_params), pipeline.version)
    parts.learner.begin_round(pipeline.version, round_params=first)
    side_by_side(
        parts.learner.compile,
        lambda: warm_up_engine(parts, loop, pauses=train.pipeline.early_stop),
    )
    # Behind the engine's, with which it may share devices.
    parts.learner.run_shapes()
    turns = Turns(is_shared=train.mesh.shared)
    journal = seat.record.journal

    def keep(sample: Sample, span: Span) -> None:
        log_slot(journal, sample, span)
        seat.payloads.add_sample(sample)

    shared = {"turns": turns, "journal": journal, "clock": clock, "post": seat.post}
    return Team(
        parts=parts,
        pool=pool,
        pipeline=pipeline,
        loop=loop,
        sampler=SamplerWorker(train, loop, keep=keep, **shared),
        learner=LearnerWorker(parts.learner, is_published=first is None, **shared),
        publisher=publisher,
        evaluator=Evaluator(train, parts.held_out, parts.tokenizer, pool.submit),
        is_resumed=saved is not None,
    )


def warm_up_engine(parts: Parts, loop: SampleLoop, *, pauses: bool) -> None:
    """Compile what single-turn sampling calls; `extract` only where samples pause."""
    warm_up(parts.engine, loop.params, multi_turn=pauses)


def warm_up_policy(
    train: Train,
    source: PromptSource,
    learner: Learner,
    *,
    say: Callable[[str], None],
) -> None:
    """Supervised steps on (prompt, solution) pairs; then the reference is frozen."""
    warm_up = train.warm_up
    losses: collections.deque[float] = collections.deque(maxlen=LOSSES)
    for update in range(warm_up.updates):
        first = update * warm_up.batch
        pairs = [
            source.pair(position, warm_up.solution)
            for position in range(first, first + warm_up.batch)
        ]
        losses.append(learner.warm_up_step(pairs))
        mean = sum(losses) / len(losses)
        is_last = len(losses) == LOSSES and mean <= warm_up.stop_loss
        if is_last or (update + 1) % max(warm_up.updates // 5, 1) == 0:
            say(f"warm-up {update + 1}/{warm_up.updates}  loss {mean:.3f}")
        if is_last:
            break
    if warm_up.updates:
        learner.end_warm_up()
    learner.freeze_reference()
