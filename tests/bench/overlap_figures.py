"""The figures of tests/bench/overlap.py, from the event logs of its runs alone.

Each round's window begins when its first completion enters a slot. Inside, the learner
computes (gradients and steps) or waits; rollout-to-train-end is from that start to its
last step, and the trainer waiting ratio wait / (wait + compute), as in the paper.
"""

import json
import pathlib
import statistics
from typing import Any

from jigsaw_jax import config
from jigsaw_jax.simulation import recorded
from jigsaw_jax.store import summary, timeline

SYNC, BEST = "sync", "CGP+FGD"
ARMS = {
    SYNC: ("sync", "fifo"),
    "CGP": ("stream", "fifo"),
    BEST: ("stream", "frontier_priority"),
}
# What the best arm must save of sync's.
BOUNDS = {"train_end_s": 0.40, "wait_ratio": 0.76}
ROWS = {
    "train_end_s": "rollout to train end, s",
    "first_gradient_s": "first dispatch, s",
    "wait_ratio": "trainer waiting ratio",
    "compute_s": "trainer compute, s",
    "last_token_s": "rollout, s",
    "publish_s": "publish, s",
}


def sets(arm: str) -> list[str]:
    """Bindings of an arm."""
    mode, admission = ARMS[arm]
    return [f'Pipeline.mode = "{mode}"', f'Pipeline.admission = "{admission}"']


def groups_per_round(run_dir: pathlib.Path) -> int:
    return config.load([str(run_dir / "config.gin")]).train.pipeline.groups_per_round


def rounds(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    """The paper's numbers of each round of a run."""
    events = recorded.read(run_dir)
    published = {e["version"]: e for e in events if e["track"] == "publish"}
    found = []
    for one in timeline.rounds_of(events)[0]:
        facts: dict[str, Any] = dict(one.facts())
        if facts["train_end_s"] is None:
            continue
        spans = [(event["start_s"], event["end_s"]) for event in one.learner]
        publish = published.get(one.version + 1)
        facts["compute_s"] = summary.union_s(spans)
        facts["publish_s"] = publish and publish["end_s"] - publish["start_s"]
        found.append(facts)
    return found


def balance(run_dir: pathlib.Path) -> float:
    """The learner's time over the sampler's, in a run's rounds."""
    found = rounds(run_dir)
    return statistics.median(one["compute_s"] / one["last_token_s"] for one in found)


def of_arm(folder: pathlib.Path, arm: str) -> dict[str, list[float]]:
    """Every number of an arm, in all rounds of all its runs."""
    found = [one for path in runs(folder, arm) for one in rounds(path)]
    return {
        name: [one[name] for one in found if one[name] is not None] for name in ROWS
    }


def runs(folder: pathlib.Path, arm: str) -> list[pathlib.Path]:
    paths = [path for path in folder.glob(f"*-{arm}") if path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name.partition("-")[0]))


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Medians, and smallest and largest, a row a number."""
    lines = [f"{'':26}" + "".join(f"{arm:>24}" for arm in found)]
    for name, label in ROWS.items():
        if not any(numbers[name] for numbers in found.values()):
            # A run of one round publishes nothing.
            continue
        cells = []
        for numbers in found.values():
            values = numbers[name]
            median = statistics.median(values) if values else float("nan")
            ends = f"({min(values):.3f} {max(values):.3f})" if values else ""
            cells.append(f"{median:.3f} {ends}".rjust(24))
        lines.append(f"{label:26}" + "".join(cells))
    counts = {arm: len(numbers["train_end_s"]) for arm, numbers in found.items()}
    lines.append(f"{'rounds':26}" + "".join(f"{n:>24}" for n in counts.values()))
    return "\n".join(lines)


def saved(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Print what each arm saves of sync's; the bounds that the best one misses."""
    misses = []
    for name, bound in BOUNDS.items():
        base = statistics.median(found[SYNC][name])
        for arm in list(found)[1:]:
            share = 1 - statistics.median(found[arm][name]) / base
            is_best = arm == BEST
            told = f", at least {bound:.0%} asked" if is_best else ""
            print(f"{ROWS[name]}: {arm} {share:.1%} below sync{told}")
            if is_best and share < bound:
                misses.append(ROWS[name])
    return misses


def lengths(run_dir: pathlib.Path) -> dict[int, dict[tuple[str, int, int], int]]:
    """Version to completion to its tokens."""
    return {
        one.version: {
            (event["uid"], event["draw"], event["sample"]): event["num_tokens"]
            for event in one.slots
        }
        for one in timeline.rounds_of(recorded.read(run_dir))[0]
    }


def tokens(run_dir: pathlib.Path, update: int) -> dict[tuple[str, int, int], Any]:
    """Completion to its tokens and their versions, by an update's rollouts."""
    path = run_dir / "rollouts" / f"update-{update:06d}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        (row["uid"], row["draw"], row["sample"]): [
            (segment["tokens"], segment["versions"]) for segment in row["segments"]
        ]
        for row in rows
    }


def apart(folder: pathlib.Path) -> list[str]:
    """Print whether in every run each worker's threads had one core, its own."""
    paths = [path for arm in ARMS for path in runs(folder, arm)]
    found = [json.loads((path / "cores.json").read_text()) for path in paths]
    cores = [[core for own in one.values() for core in own] for one in found]
    good = [
        len(one) == len(set(one)) == 2 and all(map(str.isdigit, one)) for one in cores
    ]
    print(f"a core each, of every thread: in {sum(good)} of {len(paths)} runs")
    return [] if all(good) else ["a core each"]


def equal_samples(folder: pathlib.Path) -> list[str]:
    """Print whether all arms sampled the same; what is missed.

    The first round's weights are the same, so its completions must be, token for token.
    Later weights differ by how sums are rounded, and a completion may, rarely, with
    them: those of another length are counted.
    """
    paths = [path for arm in ARMS for path in runs(folder, arm)]
    first, length = tokens(paths[0], 0), lengths(paths[0])
    same = [tokens(path, 0) == first for path in paths]
    print(
        f"same samples: {len(first)} completions of the first round, token for token, "
        f"in {sum(same)} of {len(paths)} runs"
    )
    later = [
        (found.get(sample) == num)
        for path in paths[1:]
        for version, found in lengths(path).items()
        for sample, num in length[version].items()
        if version
    ]
    if later:
        print(f"  in later rounds {sum(later)} of {len(later)} have the same length")
    return [] if all(same) else ["same samples"]
