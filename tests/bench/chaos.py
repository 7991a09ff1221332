"""`python -m tests.bench.chaos --faults 20`: kill, stop and preempt workers of a run.

Trains configs/bench/chaos.gin on `local:4` and, again and again, does harm to a random
process: SIGKILL, SIGSTOP or SIGTERM to a sampler or the learner, SIGKILL to a reward
process or to the controller, whose command is then given again. The next fault comes
when an update was made behind the one before. In the end Ctrl-C ends the run.

Prints the faults survived, whether the ledger is exact, and the time lost; exits 1
where a fault is not survived, the ledger is not exact, or more is lost than the work to
be done again and a bound a fault. What shows it stays in the folder that it names:
faults.jsonl, and the run directory, which `--check FOLDER` reads again.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.store.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).parents[2]
KINDS = (
    ("sampler", signal.SIGKILL),
    ("sampler", signal.SIGKILL),
    ("sampler", signal.SIGSTOP),
    ("sampler", signal.SIGTERM),
    ("learner", signal.SIGKILL),
    ("learner", signal.SIGSTOP),
    ("reward", signal.SIGKILL),
    ("controller", signal.SIGKILL),
)
# Behind a fault an update must be made in this time, or it is not survived.
SURVIVE_S = 300.0


class Run:
    """A controller process, started again where it was killed."""

    def __init__(self, args: argparse.Namespace, folder: pathlib.Path) -> None:
        self.dir = folder / "run"
        sets = [part for binding in args.set for part in ("--set", binding)]
        flags = ["--run_dir", str(self.dir), "--cluster", args.cluster, *sets]
        self._argv = [
            sys.executable,
            "-m",
            "jigsaw_jax.main",
            "--gin",
            args.gin,
            *flags,
        ]
        self._path = folder / "log"
        self._log = self._path.open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._argv, cwd=ROOT, stdout=self._log, stderr=self._log
        )

    def updates(self) -> int:
        """Updates shown so far, those that were made again among them.

        The output only grows; lines of the logs move aside when a run goes back.
        """
        return self._path.read_bytes().count(b"\nupdate ")

    def wait_for(self, is_so: Callable[[], bool], within_s: float = SURVIVE_S) -> bool:
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            if is_so():
                return True
            if self.process.poll() is not None:
                return False
            pause(0.1)
        return False

    def pids(self, role: str) -> list[int]:
        if role == "controller":
            return [self.process.pid]
        if role == "reward":
            # Of this run's workers alone: others may run on this machine too.
            owners = {*self.pids("sampler"), self.process.pid}
            return [pid for pid, owner in reward_workers() if owner in owners]
        found: dict[str, int] = {}
        for event in marks(self.dir):
            if event["track"].startswith(f"worker/{role}") and event["pid"]:
                found[event["track"]] = event["pid"]
        return [pid for pid in found.values() if pathlib.Path(f"/proc/{pid}").exists()]


def reward_workers() -> Iterator[tuple[int, int]]:
    """Every process that scores, with its parent."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"jigsaw_jax.reward.worker" in (path / "cmdline").read_bytes():
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                yield int(path.name), int(stat[1])


def marks(run_dir: pathlib.Path) -> Iterator[dict]:
    """What the log says of workers, in order."""
    for name in ("events.rewound.jsonl", "events.jsonl"):
        path = run_dir / name
        if path.exists():
            for line in path.read_text().splitlines():
                if '"track":"worker/' in line and line.endswith("}"):
                    yield json.loads(line)


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def harm(run: Run, chance: random.Random) -> dict | None:
    """One fault, and how long until the next update; None where nobody was there."""
    role, number = chance.choice(KINDS)
    pids = run.pids(role)
    if not pids:
        return None
    pid = chance.choice(pids)
    before, at_s = run.updates(), time.monotonic()
    os.kill(pid, number)
    if role == "controller":
        run.process.wait()
        # Its workers end by themselves, and hold no device or port that is needed.
        run.start()
    is_survived = run.wait_for(lambda: run.updates() > before + 1)
    fault = {
        "role": role,
        "signal": signal.Signals(number).name,
        "pid": pid,
        "recovered_s": round(time.monotonic() - at_s, 2),
        "survived": is_survived,
    }
    if role == "sampler" and number == signal.SIGSTOP and is_survived:
        # The others go on, so only its end says that it was found out.
        gone = run.wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), 60.0)
        fault["survived"] = gone
    return fault


def check(folder: pathlib.Path) -> int:
    """Judge a run by what it left behind."""
    lines = (folder / "faults.jsonl").read_text().splitlines()
    faults = [json.loads(line) for line in lines]
    survived = sum(fault["survived"] for fault in faults)
    is_exact, told = ledger(folder / "run")
    lost_s, bound_s = lost(folder / "run", faults)
    print(f"faults survived: {survived}/{len(faults)}")
    print(f"ledger {'exact' if is_exact else 'NOT exact'}: {told}")
    print(f"time lost: {lost_s:.1f} s, at most {bound_s:.1f} s")
    print(f"left in {folder}")
    is_good = survived == len(faults) and is_exact and lost_s <= bound_s
    return 0 if is_good else 1


def ledger(run_dir: pathlib.Path) -> tuple[bool, str]:
    """Whether the last commit holds each draw once, and all that were to train."""
    checkpoints = Checkpoints(run_dir / "checkpoints", read_only=True)
    step = checkpoints.latest_step()
    if step is None:
        return False, "no checkpoint"
    snapshot = checkpoints.read_record(step)["pipeline"]
    found = Ledger(snapshot["ledger"]["samples_per_group"])
    found.restore(snapshot["ledger"], updates=snapshot["updates_done"])
    ended = [(group, how) for group, how in found.ended()]
    groups = [group for group, _ in ended]
    committed = sum(how == "committed" for _, how in ended)
    summary = json.loads((run_dir / "summary.json").read_text())
    trained = [
        json.loads(x) for x in (run_dir / "metrics.jsonl").read_text().split("\n") if x
    ]
    updates = [row["update"] for row in trained]
    is_exact = (
        len(groups) == len(set(groups))
        and updates == list(range(step))
        and summary["groups_committed"] == committed
        and committed % step == 0
        and committed == len(groups)
    )
    return is_exact, f"{committed} groups in {step} updates, each trained once"


def lost(run_dir: pathlib.Path, faults: list[dict]) -> tuple[float, float]:
    """Seconds beyond what undisturbed updates take; the bound of it.

    The bound is the work that was made again, and 10 s a fault, but what a start-up
    takes on this machine where that is more.
    """
    rows = [
        json.loads(line)
        for line in (run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    update_s = statistics.median(row["time/update_s"] for row in rows)
    rewound = run_dir / "metrics.rewound.jsonl"
    again = rewound.read_bytes().count(b"\n") if rewound.exists() else 0
    lost_s = sum(max(fault["recovered_s"] - 2 * update_s, 0.0) for fault in faults)
    start_s = statistics.median(start_ups(run_dir) or [10.0])
    return lost_s, again * update_s + len(faults) * max(10.0, start_s)


def start_ups(run_dir: pathlib.Path) -> list[float]:
    """Seconds from hiring a sampler to its joining, for each time."""
    hired: dict[tuple[str, int], float] = {}
    found = []
    for event in marks(run_dir):
        key = event["track"], event["incarnation"]
        if event["name"] == "hired":
            hired[key] = event["at_s"]
        elif event["name"] == "joined" and key in hired:
            found.append(event["at_s"] - hired.pop(key))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", default="local:4")
    parser.add_argument("--gin", default="configs/bench/chaos.gin")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--folder", help="where it leaves everything")
    parser.add_argument("--check", metavar="FOLDER", help="judge an earlier one again")
    args = parser.parse_args()
    if args.check:
        return check(pathlib.Path(args.check))
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(args.seed)
    run = Run(args, folder)
    try:
        made = run.wait_for(lambda: run.updates() >= 3, 600.0)
        with (folder / "faults.jsonl").open("w") as log:
            num = 0
            while made and num < args.faults:
                pause(chance.uniform(0.0, 1.0))
                fault = harm(run, chance)
                if fault is None:
                    continue
                num += 1
                print(num, json.dumps(fault), flush=True)
                log.write(json.dumps(fault) + "\n")
                log.flush()
                made = fault["survived"]
        run.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(SURVIVE_S)
    finally:
        run.process.kill()
        run.process.wait()
    if run.process.returncode:
        print(f"exit {run.process.returncode}:\n{(folder / 'log').read_text()[-3000:]}")
        return 1
    return check(folder)


if __name__ == "__main__":
    sys.exit(main())
