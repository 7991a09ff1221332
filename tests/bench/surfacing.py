"""`python -m tests.bench.surfacing`: how soon an error in a background thread is heard.

Breaks one kind of thread after the other, of a run in one process and of one on
`local:2`, with a second host of the sampler too, and measures from the moment at which
it raises until the control loop ends by it, with its traceback. Prints a line a kind;
exits 1 where one takes over 2 s.
`--only WORD` takes the kinds that it is part of.
"""

import argparse
import dataclasses
import pathlib
import re
import sys
import tempfile
import time
import traceback
from typing import Any

from jigsaw_jax import settings
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.local import LocalRuntime
from jigsaw_jax.runtime.progress import Progress
from tests.runtime.test_local import make_train

SURFACE_S = 2.0
# Where each kind's method is, from the local team, from the record of the run, from
# the desk of a worker, and from the fleet of the controller.
LOCAL = {
    "sampler": ("team.loop", "step"),
    "learner": ("team.parts.learner", "accumulate"),
    "reward": ("team.pool", "_score_batch"),
    "checkpoint": ("record.vault._checkpoints", "_prune"),
    "rollout writer": ("record._rollouts", "_write"),
    "event log": ("record.journal", "_write"),
}
WORKERS = {
    "sampler": ("sampler-0", "_sampler._worker._loop", "step"),
    "reward": ("sampler-0", "_sampler._pool", "_score_batch"),
    "desk": ("sampler-0", "_sampler", "admit"),
    "outbox": ("sampler-0", "outbox", "facts"),
    "weights": ("sampler-0", "_sampler._rig", "fetch"),
    "learner": ("learner", "_learner._learner", "accumulate"),
    "carrier": ("learner", "_learner._sender", "publish"),
    "checkpoint": ("learner", "_learner._vault._checkpoints", "_prune"),
}
# Of the second host of a sampler, whose errors host 0 has to pass on.
SECOND = {
    "sampler": ("_sampler._replay", "follow"),
    "weights": ("_sampler._rig", "fetch"),
    "desk": ("_sampler", "load"),
}
CONTROLLER = {
    "ears": ("fleet", "on_batch"),
    "looks": ("fleet", "on_look"),
    "event log": ("record.journal", "_write"),
    "rollout writer": ("record._rollouts", "_write"),
}


def make_faulty(owner, path, name):
    """Have a method raise from now on, and say when it did."""
    import time

    for part in filter(None, path.split(".")):
        owner = getattr(owner, part)

    def fail(*_args, **_kwargs):
        raise ArithmeticError(f"fault at {time.monotonic()} s")

    setattr(owner, name, fail)


def break_in(hand, path, name):
    """The same in a worker's process."""
    hand.handle.__ray_call__.remote(lambda self: make_faulty(self._desk, path, name))


@dataclasses.dataclass
class Scene:
    """What a fault may be put into, by the first word of its path."""

    control: Any
    fleet: Any = None

    @property
    def team(self):
        return self.control._crew._team

    @property
    def record(self):
        return self.control._record


def measure(run, put, seen):
    """Seconds from the error to the end of the loop; None where it ended otherwise."""
    seen.clear()
    Progress.show = put
    try:
        run()
    # Whatever it is, the bench judges it.
    except Exception as error:  # noqa: BLE001
        text = "".join(traceback.format_exception(error))
        raised = re.search(r"fault at ([\d.]+) s", text)
        if raised and seen:
            return seen[0] - float(raised[1])
        print(text)
    return None


def train_of():
    return dataclasses.replace(
        make_train(updates=100_000),
        reward=settings.Reward(weights={"lowercase_share": 1.0}, processes=1),
        cluster=settings.Cluster(heartbeat_s=20.0),
    )


def once(show, fault):
    """A `Progress.show` that puts the fault in behind the second update."""

    def put(self, record):
        show(self, record)
        if record["update"] == 1:
            fault()

    return put


def cases(folder):
    """Every kind with what runs it and what breaks it."""
    from jigsaw_jax.runtime.cluster.shell import ClusterRuntime

    def local(path, name):
        runtime = LocalRuntime(train_of(), run_dir=folder(), resume=True, operative="")
        scene = Scene(runtime.control)
        return runtime.run, lambda: make_faulty(scene, path, name)

    def cluster(train):
        return ClusterRuntime(
            train, "local:2", run_dir=folder(), resume=True, operative=""
        )

    def worker(who, path, name):
        runtime = cluster(train_of())

        def fault():
            break_in(runtime.fleet.hands[who], path, name)

        return runtime.run, fault

    def second(path, name):
        train = train_of()
        runtime = cluster(
            dataclasses.replace(
                train,
                decoder=dataclasses.replace(train.decoder, num_kv_heads=2),
                mesh=settings.Mesh(sampler_tensor=2, shared=True),
                cluster=settings.Cluster(heartbeat_s=20.0, sampler_hosts=2),
            )
        )

        def fault():
            break_in(runtime.fleet.hands["sampler-0"].others[0], path, name)

        return runtime.run, fault

    def controller(path, name):
        runtime = cluster(train_of())

        def fault():
            make_faulty(Scene(runtime.control, runtime.fleet), path, name)

        return runtime.run, fault

    for kind, where in LOCAL.items():
        yield f"one process, {kind}", lambda where=where: local(*where)
    for kind, where in WORKERS.items():
        yield f"worker, {kind}", lambda where=where: worker(*where)
    for kind, where in SECOND.items():
        yield f"second host, {kind}", lambda where=where: second(*where)
    for kind, where in CONTROLLER.items():
        yield f"controller, {kind}", lambda where=where: controller(*where)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    show, take = Progress.show, Control._take
    seen: list[float] = []

    def take_and_note(self, items):
        try:
            take(self, items)
        except BaseException:
            seen.append(time.monotonic())
            raise

    Control._take = take_and_note
    is_good = True
    with tempfile.TemporaryDirectory() as base:
        folders = (pathlib.Path(base) / str(i) for i in range(1000))
        for kind, make in cases(lambda: next(folders)):
            if args.only not in kind:
                continue
            run, fault = make()
            took_s = measure(run, once(show, fault), seen)
            is_good &= took_s is not None and took_s < SURFACE_S
            told = "not heard" if took_s is None else f"{took_s:.2f} s"
            print(f"{kind}: {told}", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
