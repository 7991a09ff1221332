"""`python -m tests.bench.kill_resume`: kill -9 ten times, resume, compare the ends.

Runs configs/bench/kill_resume.gin twice: once in peace, once with SIGKILL at ten
random moments, each followed by `--resume auto`. Both must end with the same set of
(uid, draw, sample), each ended once, and the same committed set.
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.store.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).parents[2]


def command(gin: str, run_dir: pathlib.Path, bindings: list[str]) -> list[str]:
    sets = [part for binding in bindings for part in ("--set", binding)]
    args = ["--gin", gin, "--run_dir", str(run_dir), *sets]
    return [sys.executable, "-m", "jigsaw_jax.main", *args]


def run_in_peace(argv: list[str], log: pathlib.Path) -> float:
    """Run to the end; how many seconds it took."""
    started_s = time.monotonic()
    with log.open("ab") as out:
        done = subprocess.run(argv, cwd=ROOT, stdout=out, stderr=out, check=False)
    if done.returncode:
        raise SystemExit(f"exit {done.returncode}:\n{log.read_text()[-3000:]}")
    return time.monotonic() - started_s


def run_until_killed(
    argv: list[str], log: pathlib.Path, metrics: pathlib.Path, chance: random.Random
) -> float:
    """Run and kill -9 at a random moment; how many seconds it lived.

    One kill in five falls into the start-up; the others wait for one to five updates
    and then a part of the next, so that steps, publishes and saves are all hit.
    """
    updates = lines(metrics) + chance.randint(0, 5)
    start_up_s = chance.uniform(0.1, 6.0)
    started_s = time.monotonic()
    with log.open("ab") as out:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=out)
        while process.poll() is None:
            is_up = lines(metrics) >= updates
            if is_up and time.monotonic() - started_s >= start_up_s:
                break
            pause(0.02)
        pause(chance.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        code = process.wait()
    if code != -signal.SIGKILL:
        raise SystemExit(f"ended by itself:\n{log.read_text()[-3000:]}")
    return time.monotonic() - started_s


def lines(path: pathlib.Path) -> int:
    """Lines of a file that may not exist yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def ends(run_dir: pathlib.Path) -> dict[str, list[tuple[str, int, int]]]:
    """Every (uid, draw, sample) that ended, by how it ended, from the last commit."""
    checkpoints = Checkpoints(run_dir / "checkpoints", read_only=True)
    step = checkpoints.latest_step()
    assert step is not None, run_dir
    snapshot = checkpoints.read_record(step)["pipeline"]
    size = snapshot["ledger"]["samples_per_group"]
    ledger = Ledger(size)
    ledger.restore(snapshot["ledger"], updates=snapshot["updates_done"])
    assert not ledger.open_groups(), "the run has ended with open groups"
    found: dict[str, list[tuple[str, int, int]]] = {}
    for group, how in ledger.ended():
        samples = [(group.uid, group.draw, sample) for sample in range(size)]
        found.setdefault(how, []).extend(samples)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gin", default="configs/bench/kill_resume.gin")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        peace, killed = base / "peace", base / "killed"
        whole_s = run_in_peace(command(args.gin, peace, args.set), base / "peace.log")
        print(f"in peace: {whole_s:.1f} s")
        argv = command(args.gin, killed, args.set)
        for kill in range(1, args.kills + 1):
            lived_s = run_until_killed(
                argv, base / "killed.log", killed / "metrics.jsonl", chance
            )
            steps = Checkpoints(killed / "checkpoints", read_only=True).steps()
            print(f"kill {kill} after {lived_s:.1f} s; checkpoints {steps}", flush=True)
        run_in_peace(argv, base / "killed.log")
        return compare(ends(peace), ends(killed), peace, killed, args.kills)


def compare(
    want: dict, got: dict, peace: pathlib.Path, killed: pathlib.Path, kills: int
) -> int:
    for run_dir, found in ((peace, want), (killed, got)):
        everything = [one for samples in found.values() for one in samples]
        counts = {end: len(samples) for end, samples in found.items()}
        accuracy = json.loads((run_dir / "summary.json").read_text())
        print(run_dir.name, counts, "accuracy", accuracy["eval_accuracy_last"])
        if len(everything) != len(set(everything)):
            print("a sample ended twice")
            return 1
    if {k: set(v) for k, v in want.items()} != {k: set(v) for k, v in got.items()}:
        print("committed sets differ")
        return 1
    print(f"committed sets equal after {kills} kills")
    return 0


if __name__ == "__main__":
    sys.exit(main())
