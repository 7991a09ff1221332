"""What a seed chooses: the settings of its runs, and the faults that befall them."""

import dataclasses
import json
import random
from collections.abc import Sequence
from typing import Any

from jigsaw_jax.settings import Pipeline as Settings
from jigsaw_jax.settings.work import ADMISSIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """One run.

    settings: of the pipeline.
    updates: of the run.
    checkpoint_every: updates.
    prompts: in the data.
    flat: share of groups whose rewards are all equal.
    failing: share of rewards that fail.
    slots: of each worker at its start.
    """

    settings: Settings
    updates: int
    checkpoint_every: int
    prompts: int
    flat: float
    failing: float
    slots: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    kind: of `AT_EVENT` or `AT_MESSAGE`.
    at: how many events were applied, or messages sent, before it.
    arg: by kind; a random number in [0, 1) that the world reads as it needs.
    """

    kind: str
    at: int
    arg: float


AT_EVENT = (
    "kill",
    "kill",
    "kill_unnoticed",
    "fail",
    "fail",
    "flat",
    "broken",
    "resize",
    "crash",
    "crash_to_checkpoint",
    "stop",
)
AT_MESSAGE = ("lose", "double", "delay", "hang")


def episode(seed: int, number: int) -> Episode:
    """The run that a seed makes as its `number`-th."""
    rng = random.Random(f"{seed}/{number}/episode")
    choose = rng.choice
    mode = choose(["sync", "stream", "stream", "async", "async"])
    is_async = mode == "async"
    per_update = choose([1, 2, 2, 3])
    staleness_max = choose([0, 1, 1, 2, 3]) if is_async else 0
    ahead_max = staleness_max * per_update
    settings = Settings(
        mode=mode,
        groups_per_update=per_update,
        groups_per_round=per_update * choose([1, 2, 3, 4]),
        samples_per_group=choose([2, 3, 4]),
        staleness_max=staleness_max,
        admission=choose(ADMISSIONS if mode != "sync" else ADMISSIONS[:3]),
        frontier_groups=choose([1, 2, 3]),
        request_order=choose(["arrival", "longest_first"]),
        over_issue_groups=rng.randrange(ahead_max + 1),
        early_stop=staleness_max > 0 and choose([False, True]),
        filter=choose(["drop", "keep"]),
        redraws_max=choose([0, 0, 1, 2]),
        refill_groups_max=0 if is_async else choose([0, 0, 2, 20]),
        empty_rounds_max=choose([2, 4]),
        attempts_max=choose([1, 3, 10]),
        lost_after_s=choose([0.0, 20.0, 60.0]),
        reduction=choose(["arrival", "arrival", "ordered"]),
        token_budget=choose([0, 0, 40, 120]),
        prefetch_groups=choose([0, 1, 2]),
    )
    # Drawn apart, so that a seed still makes the run that it made before.
    queue = random.Random(f"{seed}/{number}/queue")
    settings = dataclasses.replace(
        settings,
        queue_groups_max=queue.choice([0, 0, 1, 2]),
        queue_tokens_max=queue.choice([0, 0, 30]),
    )
    return Episode(
        settings=settings,
        updates=choose([1, 5, 20, 60]),
        checkpoint_every=choose([1, 2, 5]),
        prompts=choose([0, 1, 7, 50, 10**6, 10**6, 10**6, 10**6]),
        flat=choose([0.0, 0.0, 0.2, 0.2, 0.5, 1.0]),
        failing=choose([0.0, 0.1]),
        slots=tuple(rng.randrange(1, 7) for _ in range(choose([1, 2, 3]))),
    )


def faults(seed: int, events: int) -> tuple[Fault, ...]:
    """What goes wrong in `events` events of a seed."""
    rng = random.Random(f"{seed}/faults")
    found = []
    for kinds, shares in (
        (AT_EVENT, (0.0, 0.001, 0.005, 0.02)),
        (AT_MESSAGE, (0.0, 0.005, 0.03, 0.15)),
    ):
        for _ in range(int(events * rng.choice(shares))):
            fault = Fault(rng.choice(kinds), rng.randrange(events), rng.random())
            found.append(fault)
    return tuple(sorted(found, key=lambda fault: fault.at))


def to_text(seed: int, events: int, left: Sequence[Fault]) -> str:
    """A replay as one line of JSON."""
    rows = [[fault.kind, fault.at, fault.arg] for fault in left]
    return json.dumps({"seed": seed, "events": events, "faults": rows})


def from_text(text: str) -> tuple[int, int, tuple[Fault, ...]]:
    """(seed, events, faults) of a replay; all faults of the seed where it has none."""
    replay: dict[str, Any] = json.loads(text)
    seed, events = replay["seed"], replay["events"]
    if "faults" not in replay:
        return seed, events, faults(seed, events)
    return seed, events, tuple(Fault(*row) for row in replay["faults"])
