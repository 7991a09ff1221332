"""Print the speed and memory of a whole run, as medians over several.

    python -m tests.bench.loop                                        # even lengths
    python -m tests.bench.loop --gin configs/bench/tiny_qwen3_uneven.gin

A first run, which is not counted, fills the compilation cache. Use a quiet machine.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
KEYS = (
    "sampled_tokens_per_s",
    "loop_tokens_per_s",
    "trainer_wait_ratio",
    "rollout_to_train_end_s_median",
    "process_start_to_first_step_s",
    "peak_rss_mb",
    "logprob_abs_diff_max",
)


def measure(gin: str, directory: pathlib.Path) -> dict[str, float]:
    """The numbers of one run in a process of its own."""
    command = [sys.executable, "-m", "jigsaw_jax.main", "--gin", gin]
    command += ["--run_dir", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((directory / "summary.json").read_text())
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    updates = [json.loads(line)["time/update_s"] for line in lines[1:]]
    found = {key: summary[key] for key in KEYS}
    found["update_s"] = statistics.median(updates)
    # Of the loop's own time; the first update waits for the first touch of memory.
    found["control_share"] = summary["control_s"] / sum(updates)
    return found


def main() -> None:
    """Run, and print the median of each number."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loop")
    parser.add_argument("--gin", default="configs/bench/tiny_qwen3.gin")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = [
            measure(args.gin, pathlib.Path(scratch) / str(run))
            for run in range(args.runs + 1)
        ][1:]
    for key in runs[0]:
        values = [run[key] for run in runs]
        print(
            f"{key:32} {statistics.median(values):12.4g}   "
            f"from {min(values):.4g} to {max(values):.4g}"
        )


if __name__ == "__main__":
    main()
