"""Deterministic simulation testing of the schedule: seeds, faults, minimal replays.

    python -m tests.simulation.vopr --seeds 200 --events 5000
    python -m tests.simulation.vopr --replay '{"seed": 7, "events": 5000}'

Every seed makes runs of its own settings and lets faults befall them; after every event
the invariants of `vopr_checks` are held against them. A seed that fails is run again
with fewer and fewer of its faults, and what is left is printed as a replay.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence

from jigsaw_jax.schedule.states import LedgerError
from tests.simulation import vopr_plan
from tests.simulation.vopr_checks import ViolationError
from tests.simulation.vopr_plan import Fault
from tests.simulation.vopr_world import World

# What a broken machine may raise before a check sees it.
BROKEN = (
    ViolationError,
    LedgerError,
    AssertionError,
    ValueError,
    LookupError,
    TypeError,
)
# Runs that shrinking may take.
SHRINK_MAX = 200


def run(seed: int, events: int, faults: Sequence[Fault]) -> tuple[int, str | None]:
    """The events that were applied, and what was violated, or None."""
    world = World(seed, faults)
    try:
        world.run(events)
    except BROKEN as error:
        name = "" if isinstance(error, ViolationError) else f"{type(error).__name__} "
        return world.num_events, f"{name}{error}".strip()
    return world.num_events, None


def shrink(
    faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]
) -> list[Fault]:
    """The fewest faults that still fail, by leaving out ever smaller parts.

    Args:
      faults: a list with which it fails.
      fails: whether it does with another.

    Returns:
      A list of which no single fault can be left out, unless the tries ran out.
    """
    left = list(faults)
    if fails([]):
        return []
    tries, size = SHRINK_MAX, max(len(left) // 2, 1)
    while left and tries:
        start, was = 0, len(left)
        while start < len(left) and tries:
            fewer = left[:start] + left[start + size :]
            tries -= 1
            if fails(fewer):
                left = fewer
            else:
                start += size
        if size == 1 and len(left) == was:
            break
        size = max(size // 2, 1)
    return left


def minimal(seed: int, events: int, faults: Sequence[Fault]) -> str:
    """The replay of a failing seed, as short as shrinking makes it."""
    # What comes after the violation is no part of it.
    reached, _ = run(seed, events, faults)
    events = min(reached + 1, events)
    ats = vopr_plan.AT_EVENT
    faults = [f for f in faults if f.at < events or f.kind not in ats]
    # It fails in the same way, or else in any: both show the same seed's bug or worse.
    left = shrink(faults, lambda fewer: run(seed, events, fewer)[1] is not None)
    return vopr_plan.to_text(seed, events, left)


def _seed(task: tuple[int, int]) -> tuple[int, int, str | None]:
    seed, events = task
    applied, violation = run(seed, events, vopr_plan.faults(seed, events))
    return seed, applied, violation


def main(argv: Sequence[str] | None = None) -> int:
    """0 where nothing was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--events", type=int, default=5_000, help="of each seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", help="what a failing seed printed")
    options = parser.parse_args(argv)
    if options.replay:
        applied, violation = run(*vopr_plan.from_text(options.replay))
        print(f"{applied} events, {violation or 'no violation'}")
        return int(violation is not None)
    start_s = time.monotonic()
    tasks = [(options.first + i, options.events) for i in range(options.seeds)]
    # A fork of a process that runs threads, as one with JAX in it does, can hang.
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes) as pool:
        results = list(pool.imap_unordered(_seed, tasks))
    broken = sorted((seed, text) for seed, _, text in results if text is not None)
    for seed, text in broken:
        print(f"seed {seed}: {text}")
    for seed, _ in broken[:2]:
        replay = minimal(seed, options.events, vopr_plan.faults(seed, options.events))
        print(f"python -m tests.simulation.vopr --replay '{replay}'")
    applied = sum(applied for _, applied, _ in results)
    wall_s = time.monotonic() - start_s
    print(
        f"{applied} events in {options.seeds} seeds, {len(broken)} violations, "
        f"{wall_s:.0f} s"
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
