"""A simulated run in a few numbers, averaged over rounds and seeds."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import recorded
from jigsaw_jax.simulation.bound import bound
from jigsaw_jax.simulation.prices import Prices, prices
from jigsaw_jax.simulation.shell import Shell
from jigsaw_jax.simulation.trace import Trace, Window
from jigsaw_jax.simulation.workload import Workload
from jigsaw_jax.store import summary


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to; seconds are means a round.

    Attributes:
      round_s: from a round's first admission to the next one's.
      train_end_s: from the first admission to the last gradient or step.
      first_dispatch_s: to the first gradient.
      wait_s: of the learner, inside that time.
      compute_s: of the learner.
      wait_ratio: wait / (wait + compute).
      sampler_idle: share of slot time without a sequence.
      goodput: trained tokens a second, prompts left out.
      staleness: mean age in versions of the oldest token of a group.
      staleness_max: largest.
      bound_s: least possible train_end_s.
      efficiency: bound_s / train_end_s.
    """

    round_s: float
    train_end_s: float
    first_dispatch_s: float
    wait_s: float
    compute_s: float
    wait_ratio: float
    sampler_idle: float
    goodput: float
    staleness: float
    staleness_max: float
    bound_s: float
    efficiency: float


NUMBERS = tuple(field.name for field in dataclasses.fields(Outcome))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Outcomes of several seeds.

    Attributes:
      mean: of each number.
      std: standard deviation of each number over the seeds; 0 of a single one.
      runs: by seed.
    """

    mean: Outcome
    std: Outcome
    runs: tuple[Outcome, ...]


def spread(train: Train) -> Spread:
    """Simulate a run with several seeds.

    Args:
      train: the run; its seed is the first of `Simulation.seeds`.

    Returns:
      The outcomes.

    Raises:
      CostError: costs or lengths can't be read.
      StuckError: a run can't go on.
    """
    num = train.simulation.seeds
    runs = tuple(simulate(train, train.seed + index)[0] for index in range(num))
    return Spread(
        mean=_over(runs, statistics.fmean),
        std=_over(runs, lambda x: statistics.stdev(x) if len(x) > 1 else 0.0),
        runs=runs,
    )


def simulate(
    train: Train,
    seed: int,
    *,
    keeps_events: bool = False,
    factors: tuple[float, float] = (1.0, 1.0),
) -> tuple[Outcome, Trace]:
    """Simulate a run once.

    Args:
      train: the run.
      seed: of lengths, rewards, stragglers and failures.
      keeps_events: whether the trace has every interval.
      factors: of sampling times and of training times.

    Returns:
      The numbers and what happened.

    Raises:
      CostError: costs or lengths can't be read.
      StuckError: the run can't go on.
    """
    record = train.simulation.workload.record
    lengths = () if record is None else recorded.lengths(recorded.read(record))
    found = prices(train, seed).scaled(*factors)
    work = Workload(train, seed, lengths)
    shell = Shell(train, found, work, seed=seed, keeps_events=keeps_events)
    trace = shell.run()
    return outcome(train, found, trace), trace


def outcome(train: Train, found: Prices, trace: Trace) -> Outcome:
    """The numbers of a simulated run.

    Args:
      train: the run.
      found: its costs.
      trace: what happened.

    Returns:
      Means over its rounds; an asynchronous run is one long window, whose times are
      shared out over its rounds.
    """
    simulation, is_async = train.simulation, train.pipeline.mode == "async"
    windows = trace.windows[:1] if is_async else trace.windows[: simulation.rounds]
    share = simulation.rounds if is_async else 1
    trained = [window for window in windows if window.spans]
    ends_s = [summary.rollout_to_train_end_s(w.start_s, w.spans) for w in trained]
    computes_s = [summary.union_s(window.spans) for window in trained]
    bounds_s = [bound(train, found, window).seconds for window in trained]
    total_s = sum(window.end_s - window.start_s for window in windows)
    total_s = max(total_s, sum(ends_s) if is_async else 0.0)
    end_s, compute_s = math.fsum(ends_s), math.fsum(computes_s)
    bound_s = math.fsum(bounds_s)
    rounds = len(windows) * share
    firsts_s = [summary.first_dispatch_s(w.start_s, w.spans) for w in trained]
    return Outcome(
        round_s=total_s / rounds,
        train_end_s=end_s / max(len(trained) * share, 1),
        first_dispatch_s=statistics.fmean(firsts_s) if firsts_s else 0.0,
        wait_s=(end_s - compute_s) / max(len(trained) * share, 1),
        compute_s=compute_s / max(len(trained) * share, 1),
        wait_ratio=1 - compute_s / end_s if end_s else 0.0,
        sampler_idle=1 - trace.busy_s / trace.offered_s,
        goodput=sum(map(_tokens, trained)) / total_s,
        staleness=statistics.fmean([age for age, _ in trace.ages] or [0.0]),
        staleness_max=float(max((age for _, age in trace.ages), default=0)),
        bound_s=bound_s / max(len(trained) * share, 1),
        efficiency=bound_s / end_s if end_s else 0.0,
    )


def _tokens(window: Window) -> int:
    return sum(sum(window.sampled.get(group, ())) for group in window.trained)


def _over(runs: Sequence[Outcome], combine: Callable[[list[float]], float]) -> Outcome:
    return Outcome(
        **{name: combine([getattr(run, name) for run in runs]) for name in NUMBERS}
    )
