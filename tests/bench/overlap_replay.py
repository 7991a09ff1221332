"""Are the updates of tests/bench/overlap.py's arms equal? `... FOLDER` says so.

With U = R every arm's first update has the same groups, added up as they came: the
weights behind it are compared. With U < R the groups of an update depend on the order
in which they came, so the run is replayed: its groups are sampled again and trained one
by one in the recorded order, in this process alone.
"""

import dataclasses
import json
import os
import pathlib
import sys
from typing import Any

TOLERANCE = 1e-6


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    # Before JAX counts them; as many as a worker had.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from tests.bench import overlap_figures as figures

    misses = 0
    paths = [path for arm in figures.ARMS for path in figures.runs(folder, arm)]
    replay = Replay(paths[0])
    before, first = replay.first(), replay.weights(paths[0], 1)
    moved = largest(before, first)
    worst = max(largest(first, replay.weights(path, 1)) for path in paths[1:])
    print(
        f"equal updates: U = R, {len(paths)} runs, weights differ by {worst:.1e} at "
        f"most behind an update that moved them by {moved:.1e}"
    )
    misses += not worst <= TOLERANCE < moved
    replay = Replay(folder / "split")
    worst, updates, is_same = replay.run()
    print(
        f"equal updates: U < R, {updates} updates, weights differ from the serial "
        f"replay by {worst:.1e} at most, samples {'the same' if is_same else 'DIFFER'}"
    )
    misses += not (worst <= TOLERANCE and is_same)
    return 1 if misses else 0


class Replay:
    """A run's parts in this process; settings that it did not write down are given."""

    def __init__(self, run_dir: pathlib.Path, train: Any = None) -> None:
        from jigsaw_jax import config
        from jigsaw_jax.runtime.build import build
        from jigsaw_jax.runtime.devices import prepare_devices

        train = train or config.load([str(run_dir / "config.gin")]).train
        mesh = dataclasses.replace(train.mesh, shared=True)
        self.dir, self.train = run_dir, dataclasses.replace(train, mesh=mesh)
        prepare_devices(mesh)
        self.parts = build(self.train)

    def first(self):
        """The weights of now: before `run`, those that the run began with."""
        return self.parts.learner.export_params()

    def weights(self, run_dir: pathlib.Path, step: int):
        """The weights behind so many updates of a run of the same settings."""
        from jigsaw_jax.store.checkpoint import Checkpoints

        checkpoints = Checkpoints(run_dir / "checkpoints", read_only=True)
        abstract = {"learner": self.parts.learner.abstract_state()}
        if checkpoints.read_record(step)["has_published"]:
            abstract["published"] = self.parts.learner.abstract_params()
        arrays, _ = checkpoints.restore(step, abstract)
        checkpoints.close()
        return arrays["learner"]["params"]

    def run(self) -> tuple[float, int, bool]:
        """Difference of the last weights, updates, and whether samples are equal."""
        from tests.bench import overlap_figures as figures

        learner = self.parts.learner
        paths = sorted((self.dir / "rollouts").glob("update-??????.jsonl"))
        orders = {}
        for update, path in enumerate(paths):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            orders[update] = list(dict.fromkeys(row["order"] for row in rows))
        pipeline = self.train.pipeline
        per_round = pipeline.groups_per_round // pipeline.groups_per_update
        is_same = True
        for version in range(-(-len(orders) // per_round)):
            first = version * per_round
            updates = [u for u in range(first, first + per_round) if u in orders]
            groups = self.sample([o for u in updates for o in orders[u]], version)
            recorded = {}
            for update in updates:
                recorded |= figures.tokens(self.dir, update)
            is_same &= recorded == {
                tuple(sample.id): [
                    (list(s.tokens), list(s.versions)) for s in sample.segments
                ]
                for group in groups.values()
                for sample in group.samples
            }
            learner.begin_round(version)
            for update in updates:
                for position in orders[update]:
                    learner.accumulate([groups[position]], update)
                learner.step(update)
        last = self.weights(self.dir, len(orders))
        return largest(learner.export_params(), last), len(orders), is_same

    def sample(self, positions: list[int], version: int) -> dict:
        """Groups of the weights of now by position, alone in the engine."""
        from jigsaw_jax.records import Group, GroupId, SampleId
        from jigsaw_jax.reward.score import score
        from jigsaw_jax.runtime.evaluation import completion_text
        from jigsaw_jax.runtime.sampler import request_for
        from jigsaw_jax.sample.loop import SampleLoop

        train, parts = self.train, self.parts
        params = parts.engine.load_params(parts.channel.send(self.first()))
        loop = SampleLoop(parts.engine, params, version)
        prompts = {position: parts.source.prompt(position) for position in positions}
        size = range(train.pipeline.samples_per_group)
        for prompt in prompts.values():
            for index in size:
                sample_id = SampleId(prompt.uid, 0, index)
                loop.submit(request_for(train, prompt, sample_id, train.sampler))
        found = {}
        while not loop.is_idle:
            found |= {sample.id: sample for sample in loop.step().finished}
        groups = {}
        for position, prompt in prompts.items():
            samples = tuple(found[SampleId(prompt.uid, 0, i)] for i in size)
            texts = [completion_text(parts.tokenizer, sample) for sample in samples]
            groups[position] = Group(
                id=GroupId(prompt.uid, 0),
                order=position,
                prompt=prompt,
                samples=samples,
                scores=tuple(score(prompt, text, train.reward) for text in texts),
            )
        return groups


def largest(left, right) -> float:
    """The largest difference of two trees of weights."""
    import jax
    import numpy as np

    def difference(a, b):
        return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))

    return max(jax.tree.leaves(jax.tree.map(difference, left, right)))


if __name__ == "__main__":
    sys.exit(main())
