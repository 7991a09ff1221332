"""Which split of chips, and which U, F, slots and micro-batch, give the quickest round.

    enumerate > settings' own rules > memory > bound > simulate, one seed
      > the best few with every seed > how sure

No candidate is quicker than its bound (`simulation.bound`), so they are simulated in
the order of their bounds, and the search ends where a bound is above what was found.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from jigsaw_jax.planning import memory
from jigsaw_jax.records import SampleId
from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import analytic, outcome, overrides
from jigsaw_jax.simulation.bound import bound_of
from jigsaw_jax.simulation.prices import prices
from jigsaw_jax.simulation.workload import Workload, uid

# A slice has one of these numbers of chips.
SLICES = (1, 4, 8, 16, 32, 64, 128, 256)
# Candidates that are simulated with every seed.
FINALISTS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration.

    Attributes:
      values: what it sets, by name.
      train: the run with it.
      hbm: share of a chip's HBM, by side.
      is_planned: whether a plan has as many chips as each side; else it is carried.
      bound_s: least possible round.
    """

    values: Mapping[str, Any]
    train: Train
    hbm: Mapping[str, float]
    is_planned: bool
    bound_s: float

    @property
    def split(self) -> tuple[int, int, int]:
        """(learner's chips, sampler workers, chips of each)."""
        train = self.train
        workers = train.simulation.fleet.workers
        return train.mesh.learner_devices, workers, train.mesh.sampler_tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A finalist.

    Attributes:
      candidate: it.
      rounds_s: by seed.
      off_s: mean round with decode and training each off by the costs' error.
    """

    candidate: Candidate
    rounds_s: tuple[float, ...]
    off_s: tuple[float, ...]

    @property
    def round_s(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.rounds_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What was found.

    Attributes:
      ranked: finalists, best first.
      considered: candidates that the settings allow.
      fitting: those that fit in memory.
      simulated: those that were simulated.
    """

    ranked: tuple[Ranked, ...]
    considered: int
    fitting: int
    simulated: int

    @property
    def runner_up(self) -> Ranked | None:
        """The best with another split of chips, or else the next best."""
        best, *others = self.ranked
        split = best.candidate.split
        apart = [one for one in others if one.candidate.split != split]
        return next(iter(apart or others), None)


def recommend(train: Train) -> Recommendation:
    """Search `Simulation.search` and every split of `Simulation.chips`.

    Args:
      train: the run; what is not searched stays as it is.

    Returns:
      The finalists.

    Raises:
      CostError: costs can't be had.
      ValueError: the settings can't be searched, or nothing fits.
    """
    source = train.simulation.costs.source
    if source not in ("analytic", "plan"):
        raise ValueError(
            "Costs.source must be 'analytic' or 'plan' for --recommend (others don't "
            f"know what another split costs), got {source!r}"
        )
    allowed = list(_allowed(train))
    candidates = sorted(
        (found for one in allowed if (found := _fitting(*one)) is not None),
        key=lambda candidate: candidate.bound_s,
    )
    if not candidates:
        raise ValueError(
            f"Simulation.chips must be enough for the run, got {train.simulation.chips}"
            f": of {len(allowed)} configurations none fits in {memory.FILL:.0%} of HBM"
        )
    times: list[tuple[float, Candidate]] = []
    for candidate in candidates:
        # One of each split at least, so that there is another to compare with.
        known = [s for s, other in times if other.split != candidate.split]
        if len(known) >= FINALISTS and candidate.bound_s > sorted(known)[FINALISTS - 1]:
            continue
        times.append(
            (outcome.simulate(candidate.train, train.seed)[0].round_s, candidate)
        )
    times.sort(key=lambda pair: pair[0])
    ranked = [_rank(candidate) for candidate in _finalists(times)]
    return Recommendation(
        ranked=tuple(sorted(ranked, key=lambda one: one.round_s)),
        considered=len(allowed),
        fitting=len(candidates),
        simulated=len(times),
    )


def _allowed(train: Train) -> Iterator[tuple[dict[str, Any], Train]]:
    """Every split and every choice of the search that the settings accept."""
    simulation = train.simulation
    choices = overrides.combinations(
        {name: tuple(values) for name, values in simulation.search.items()}
    )
    for learner, tensor in itertools.product(SLICES, SLICES):
        workers = (simulation.chips - learner) // tensor
        if learner >= simulation.chips or workers < 1:
            continue
        split = {
            "Mesh.data": 1,
            "Mesh.fsdp": learner,
            "Mesh.tensor": 1,
            "Mesh.sampler_tensor": tensor,
            "Fleet.workers": workers,
        }
        for choice in choices:
            values = {**split, **choice}
            try:
                yield values, overrides.apply(train, values)
            except ValueError as error:
                # A misspelt name is refused everywhere; a rule only here.
                if "must be a setting" in str(error):
                    raise


def _fitting(values: dict[str, Any], train: Train) -> Candidate | None:
    """The candidate, or None where it doesn't fit in memory."""
    model = analytic.model_of(train)
    hbm = {
        side: size / model.chip.hbm_bytes for side, size in model.memory_bytes().items()
    }
    if max(hbm.values()) > memory.FILL:
        return None
    pipeline = train.pipeline
    work = Workload(train, train.seed)
    groups = [
        [work.tokens(SampleId(uid(p), 0, i)) for i in range(pipeline.samples_per_group)]
        for p in range(pipeline.groups_per_round)
    ]
    found = prices(train)
    least = bound_of(
        train,
        found,
        groups,
        trained=groups,
        rewards_s=[0.0] * len(groups),
        updates=pipeline.groups_per_round // pipeline.groups_per_update,
    )
    bound_s = least.seconds + found.training.publish_s
    return Candidate(
        values=values,
        train=train,
        hbm=hbm,
        is_planned=all(model.planned().values()),
        bound_s=bound_s,
    )


def _finalists(times: list[tuple[float, Candidate]]) -> list[Candidate]:
    """The quickest, each time once, and the quickest of another split."""
    kept: list[Candidate] = []
    seen: set[float] = set()
    for seconds, candidate in times:
        if len(kept) < FINALISTS and round(seconds, 6) not in seen:
            seen.add(round(seconds, 6))
            kept.append(candidate)
    splits = {candidate.split for candidate in kept}
    if len(splits) == 1:
        kept += [other for _, other in times if other.split not in splits][:1]
    return kept


def _rank(candidate: Candidate) -> Ranked:
    train, simulation = candidate.train, candidate.train.simulation
    error = simulation.costs.error
    ends = (1 - error, 1 + error) if error else ()
    return Ranked(
        candidate=candidate,
        rounds_s=tuple(
            outcome.simulate(train, train.seed + index)[0].round_s
            for index in range(simulation.seeds)
        ),
        off_s=tuple(
            outcome.simulate(train, train.seed, factors=(decode, training))[0].round_s
            for decode in ends
            for training in ends
        ),
    )


def show(found: Recommendation, console: Console) -> None:
    """Print the finalists, the choice, the runner-up, and how sure it is.

    Args:
      found: of `recommend`.
      console: to print to.
    """
    best = found.ranked[0]
    names = [name for name in best.candidate.values if not name.startswith("Mesh.")]
    names.remove("Fleet.workers")
    table = Table("learner", "sampler", *names, "HBM learner", "HBM sampler", "round s")
    for one in found.ranked:
        learner, workers, tensor = one.candidate.split
        hbm = one.candidate.hbm
        table.add_row(
            f"{learner} chips",
            f"{workers} x {tensor} chips",
            *(str(one.candidate.values[name]) for name in names),
            f"{hbm['learner']:.0%}",
            f"{hbm['sampler']:.0%}",
            f"{one.round_s:,.2f} ± {_deviation(one.rounds_s):.2f}",
        )
    console.print(table)
    console.print(
        f"{found.considered} configurations, {found.fitting} fit in "
        f"{memory.FILL:.0%} of HBM, {found.simulated} simulated, the others' bounds "
        "are above what was found"
    )
    console.print(f"take: {_text(best)}", soft_wrap=True)
    runner_up = found.runner_up
    if runner_up is None:
        return
    console.print(f"runner-up: {_text(runner_up)}", soft_wrap=True)
    _show_sureness(best, runner_up, found, console)


def _show_sureness(
    best: Ranked, other: Ranked, found: Recommendation, console: Console
) -> None:
    gains = [b - a for a, b in zip(best.rounds_s, other.rounds_s, strict=True)]
    wins = sum(gain > 0 for gain in gains)
    console.print(
        f"over {len(gains)} seeds it is {statistics.fmean(gains):.2f} ± "
        f"{_deviation(gains):.2f} s a round quicker, in {wins} of them"
    )
    if best.off_s:
        error = best.candidate.train.simulation.costs.error
        held = sum(
            off <= min(one.off_s[i] for one in found.ranked) + 1e-9
            for i, off in enumerate(best.off_s)
        )
        worst = max(
            off / min(one.off_s[i] for one in found.ranked) - 1
            for i, off in enumerate(best.off_s)
        )
        console.print(
            f"with decode and training times each off by {error:.0%} it stays the "
            f"best of these in {held} of {len(best.off_s)} cases, and loses "
            f"{worst:.1%} at worst; its round is then {min(best.off_s):,.1f} to "
            f"{max(best.off_s):,.1f} s"
        )
    if best.candidate.split[1] > 1:
        console.print(
            "its sampler has several workers, which a run in one process can't have; "
            "--set 'Simulation.chips = ...' and Fleet.workers = (1,) in "
            "Simulation.search ask for one"
        )


def _text(one: Ranked) -> str:
    learner, workers, tensor = one.candidate.split
    shown = {n: v for n, v in one.candidate.values.items() if n not in _SPLIT}
    settings = ", ".join(f"{name} = {value!r}" for name, value in shown.items())
    carried = "" if one.candidate.is_planned else " (no plan has these slices)"
    return (
        f"{learner} chips for the learner, {workers} x {tensor} for the sampler, "
        f"{settings}: {one.round_s:,.2f} s a round{carried}"
    )


_SPLIT = frozenset(
    {"Mesh.data", "Mesh.fsdp", "Mesh.tensor", "Mesh.sampler_tensor", "Fleet.workers"}
)


def _deviation(values: Any) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
