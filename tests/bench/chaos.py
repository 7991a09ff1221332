"""`python -m tests.bench.chaos --faults 20`: kill, stop and preempt workers of a run.

Trains configs/bench/chaos.gin on `local:4` and, again and again, does harm to a random
process: SIGKILL, SIGSTOP or SIGTERM to a sampler or the learner, a sampler made slow,
SIGKILL to a reward process, to the controller or to Ray's head. Where the command ends
by that it is given again. The next fault comes when two updates were made behind the
one before. In the end Ctrl-C ends the run. With `--cuts` the workers are on hosts in
namespaces of their own (tests/bench/hosts.py), and hosts are cut off the network too.

Prints the faults survived, whether the ledger is exact, whether every update is that of
a run in one process without faults, bit for bit, and the time lost: what the faults
took in all, but for the updates made meanwhile at the pace of the ten before the first
fault. Exits 1 where a fault is not survived, the ledger or an update is not exact, or
more is lost than the work to be done again and 10 s a fault. A start takes longer on a
machine that does other things, so that bound means what it says on a quiet one alone.
What shows it all stays in the folder that it names: faults.jsonl, phases.json, and the
run directories, which `--check FOLDER` reads again.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.store.checkpoint import Checkpoints
from tests.bench import hosts

ROOT = pathlib.Path(__file__).parents[2]
KINDS = (
    ("sampler", "SIGKILL"),
    ("sampler", "SIGKILL"),
    ("sampler", "SIGSTOP"),
    ("sampler", "SIGTERM"),
    ("sampler", "slow"),
    ("learner", "SIGKILL"),
    ("learner", "SIGSTOP"),
    ("learner", "SIGTERM"),
    ("reward", "SIGKILL"),
    ("reward", "SIGKILL"),
    ("controller", "SIGKILL"),
    ("head", "SIGKILL"),
)
# On hosts of their own: shorter and longer than a heartbeat may fail to come.
CUTS = (
    ("network", "2"),
    ("network", "2"),
    ("network", "15"),
    ("network", "15"),
    ("sampler", "SIGKILL"),
    ("sampler", "SIGSTOP"),
    ("learner", "SIGKILL"),
    ("controller", "SIGKILL"),
)
# What ends with the process that was harmed: its code is that of a kill, of a refusal
# to go on, or of an end in order.
ENDS = {
    ("controller", "SIGKILL"): -signal.SIGKILL,
    ("head", "SIGKILL"): 1,
    ("learner", "SIGTERM"): 0,
}
# Behind a fault an update must be made in this time, or it is not survived.
SURVIVE_S = 300.0
# A slow process runs for one part in ten.
SLOW_S, SLOW_STOP_S, SLOW_RUN_S = 8.0, 0.18, 0.02
QUIET_UPDATES = 10
FAULT_S = 10.0
# What must be the same without faults.
SAME = ("reward/mean", "reward/std", "loss", "policy/entropy", "optim/grad_norm")


class Run:
    """A controller process, started again where it ended.

    Args:
      args: of the command line.
      folder: for its directory and its log.
      on: the hosts that its workers are on, if not here.
      name: of the directory.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        folder: pathlib.Path,
        on: hosts.Hosts | None = None,
        name: str = "run",
    ) -> None:
        self.dir = folder / name
        self.hosts = on
        sets = [part for binding in args.set for part in ("--set", binding)]
        cluster = ["--cluster", args.cluster] if args.cluster else []
        flags = ["--run_dir", str(self.dir), *cluster, *sets]
        self._argv = [
            sys.executable,
            "-m",
            "jigsaw_jax.main",
            "--gin",
            args.gin,
            *flags,
        ]
        self._path = folder / ("log" if name == "run" else f"{name}.log")
        self._log = self._path.open("ab")
        self.start()

    def start(self) -> None:
        argv = self.hosts.command(self._argv) if self.hosts else self._argv
        self.process = subprocess.Popen(
            argv, cwd=ROOT, stdout=self._log, stderr=self._log
        )

    def interrupt(self) -> None:
        """Ctrl-C, and time to end by itself."""
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SURVIVE_S)

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
        if role == "head":
            return [pid for pid, owner, _ in ray_daemons() if owner == self.process.pid]
        if role == "reward":
            # Of this run's workers alone: others may run on this machine too.
            owners = {*self.pids("sampler"), self.process.pid}
            return [pid for pid, owner in reward_workers() if owner in owners]
        found: dict[str, int] = {}
        for event in marks(self.dir):
            if event["track"].startswith(f"worker/{role}") and event["pid"]:
                pid = event["pid"]
                found[event["track"]] = self.hosts.worker(pid) if self.hosts else pid
        return [pid for pid in found.values() if pathlib.Path(f"/proc/{pid}").exists()]


def reward_workers() -> Iterator[tuple[int, int]]:
    """Every process that scores, with its parent."""
    for pid, owner, _ in hosts.processes(b"jigsaw_jax.reward.worker"):
        yield pid, owner


def ray_daemons() -> Iterator[tuple[int, int, str]]:
    """Every process without which there is no Ray."""
    for pid, owner, name in hosts.processes(b"ray/core/src/ray"):
        if name in ("gcs_server", "raylet"):
            yield pid, owner, name


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
    """One fault, and how long until two more updates; None where nobody was there."""
    role, how = chance.choice(CUTS if run.hosts else KINDS)
    if role == "network":
        return cut(run, chance, float(how))
    pids = run.pids(role)
    if not pids:
        return None
    pid = chance.choice(pids)
    before, at_s = run.updates(), time.monotonic()
    is_survived = strike(run, pid, how)
    if (role, how) in ENDS:
        # Its workers end by themselves, and hold no device or port that is needed.
        is_survived = wait_for_end(run, ENDS[role, how])
        run.start()
    is_survived &= run.wait_for(lambda: run.updates() > before + 1)
    fault = {
        "role": role,
        "how": how,
        "pid": pid,
        "recovered_s": round(time.monotonic() - at_s, 2),
        "survived": is_survived,
    }
    if (role, how) == ("sampler", "SIGSTOP") and is_survived:
        # The others go on, so only its end says that it was found out.
        gone = run.wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), 60.0)
        fault["survived"] = gone
    return fault


def strike(run: Run, pid: int, how: str) -> bool:
    """Do it; whether the run lives where that takes time."""
    if how != "slow":
        os.kill(pid, getattr(signal, how))
        return True
    end_s = time.monotonic() + SLOW_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end_s:
            os.kill(pid, signal.SIGSTOP)
            pause(SLOW_STOP_S)
            os.kill(pid, signal.SIGCONT)
            pause(SLOW_RUN_S)
    return run.process.poll() is None


def wait_for_end(run: Run, code: int) -> bool:
    """Whether the command ends by itself, with this code."""
    try:
        return run.process.wait(SURVIVE_S) == code
    except subprocess.TimeoutExpired:
        run.process.kill()
        run.process.wait()
        return False


def cut(run: Run, chance: random.Random, seconds: float) -> dict:
    """Cut a host of a sampler off for a while."""
    assert run.hosts is not None
    index = chance.randint(1, run.hosts.num)
    before, at_s = run.updates(), time.monotonic()
    run.hosts.cut(index, seconds)
    is_survived = run.wait_for(lambda: run.updates() > before + 1)
    return {
        "role": "network",
        "how": f"{seconds:g} s",
        "host": index,
        "recovered_s": round(time.monotonic() - at_s, 2),
        "survived": is_survived,
    }


def check(folder: pathlib.Path) -> int:
    """Judge a run by what it left behind."""
    lines = (folder / "faults.jsonl").read_text().splitlines()
    faults = [json.loads(line) for line in lines]
    survived = sum(fault["survived"] for fault in faults)
    is_exact, told = ledger(folder / "run")
    is_same, compared = compare(folder)
    lost_s, bound_s, spent = lost(folder, faults)
    print(f"faults survived: {survived}/{len(faults)}")
    print(f"ledger {'exact' if is_exact else 'NOT exact'}: {told}")
    print(f"as without faults{'' if is_same else ' NOT'}: {compared}")
    print(f"time lost: {lost_s:.1f} s, at most {bound_s:.1f} s ({spent})")
    print(f"left in {folder}")
    is_good = survived == len(faults) and is_exact and is_same
    return 0 if is_good and lost_s <= bound_s else 1


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


def rows_of(path: pathlib.Path) -> list[dict]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def lost(folder: pathlib.Path, faults: list[dict]) -> tuple[float, float, str]:
    """Seconds beyond what the updates would have taken; their bound; how they come."""
    phases = json.loads((folder / "phases.json").read_text())
    made = phases["after"] - phases["before"]
    again = phases["shown"] - made
    quiet_s = phases["quiet_s"]
    lost_s = phases["wall_s"] - made * quiet_s
    bound_s = again * quiet_s + len(faults) * FAULT_S
    told = (
        f"{phases['wall_s']:.0f} s for {made} updates of {quiet_s:.2f} s, and {again} "
        "made again"
    )
    return lost_s, bound_s, told


def compare(folder: pathlib.Path) -> tuple[bool, str]:
    """Whether every update is that of the run without faults."""
    with_faults = rows_of(folder / "run" / "metrics.jsonl")
    without = rows_of(folder / "alone" / "metrics.jsonl")
    if len(without) < len(with_faults):
        return False, f"{len(without)} of {len(with_faults)} updates to compare with"
    for row, other in zip(with_faults, without, strict=False):
        for name in SAME:
            if row[name] != other[name]:
                found = f"{row[name]!r}, without faults {other[name]!r}"
                return False, f"update {row['update']} has {name} {found}"
    last = with_faults[-1]["reward/mean"]
    return True, f"{len(with_faults)} updates, the last with reward {last:.4f}"


def run_alone(args: argparse.Namespace, folder: pathlib.Path) -> None:
    """The same updates in one process, without faults."""
    num = len(rows_of(folder / "run" / "metrics.jsonl"))
    here = argparse.Namespace(gin=args.gin, set=args.set, cluster=None)
    run = Run(here, folder, name="alone")
    try:
        run.wait_for(lambda: run.updates() >= num, 600.0 + 5.0 * num)
        run.interrupt()
    finally:
        run.process.kill()
        run.process.wait()


def trained(run: Run) -> int:
    return len(rows_of(run.dir / "metrics.jsonl"))


def quiet(run: Run) -> float | None:
    """Seconds that an update takes before the first fault."""
    if not run.wait_for(lambda: run.updates() >= 3, 600.0):
        return None
    at_s, before = time.monotonic(), run.updates()
    if not run.wait_for(lambda: run.updates() >= before + QUIET_UPDATES):
        return None
    return (time.monotonic() - at_s) / (run.updates() - before)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", default="local:4")
    parser.add_argument("--gin", default="configs/bench/chaos.gin")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--folder", help="where it leaves everything")
    parser.add_argument("--check", metavar="FOLDER", help="judge an earlier one again")
    parser.add_argument("--cuts", action="store_true", help="cut hosts off, too")
    args = parser.parse_args()
    if args.check:
        return check(pathlib.Path(args.check))
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not args.cuts:
        return bench(args, folder, None)
    reason = hosts.why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    args.cluster = hosts.ADDRESS
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    with hosts.Hosts(2, folder / "hosts.log") as on:
        return bench(args, folder, on)


def leave(number: int, _frame: object) -> None:
    """Undo everything on the way out, which a signal alone would not."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def bench(
    args: argparse.Namespace, folder: pathlib.Path, on: hosts.Hosts | None
) -> int:
    chance = random.Random(args.seed)
    if on is not None and not on.wait(SURVIVE_S):
        print(f"no cluster:\n{(folder / 'hosts.log').read_text()[-3000:]}")
        return 1
    run = Run(args, folder, on)
    try:
        quiet_s = quiet(run)
        if quiet_s is not None:
            harm_often(run, chance, args.faults, folder, quiet_s)
        run.interrupt()
    finally:
        run.process.kill()
        run.process.wait()
    if run.process.returncode or quiet_s is None:
        print(f"exit {run.process.returncode}:\n{(folder / 'log').read_text()[-3000:]}")
        return 1
    run_alone(args, folder)
    return check(folder)


def harm_often(
    run: Run, chance: random.Random, num: int, folder: pathlib.Path, quiet_s: float
) -> None:
    """Fault after fault, and what they took."""
    start_s, before, shown = time.monotonic(), trained(run), run.updates()
    faults = 0
    with (folder / "faults.jsonl").open("w") as log:
        while faults < num:
            pause(chance.uniform(0.0, 1.0))
            fault = harm(run, chance)
            if fault is None:
                continue
            faults += 1
            print(faults, json.dumps(fault), flush=True)
            log.write(json.dumps(fault) + "\n")
            log.flush()
            if not fault["survived"]:
                break
    phases = {
        "quiet_s": quiet_s,
        "wall_s": time.monotonic() - start_s,
        "before": before,
        "after": trained(run),
        "shown": run.updates() - shown,
    }
    (folder / "phases.json").write_text(json.dumps(phases))


if __name__ == "__main__":
    sys.exit(main())
