"""Fits the lengths and rates of configs/sim/rolloutpipe_table.gin to Slime's column.

    python scripts/fit_rolloutpipe.py

Only the baseline's published figures are read: its trainer compute in all twelve
settings, LSAT-AR's two times to the end of training, and the bands of the first
dispatch (509-543 s) and of that time (1098-1184 s) at R = 96. The baseline trains when
all is sampled, so its rollout is its first dispatch, and

    time to the end of training = rollout + trainer compute

Each task has one service rate: seconds of rollout a group. It is the least-squares one
for variances in proportion to R. Where only a band is known, the rollout is put in the
middle of what the band, the least (LSAT-AR's 1098 s) and the largest time leave; half
of that interval is the error. Each task's training is one number too: seconds a group.

The spread of lengths shows in one place: LSAT-AR's two rollouts are not quite as 32 to
96. If a rollout's work is the sum of its lengths, then each time deviates from its rate
by cv / sqrt(R K), and the two deviations give cv without bias (one degree of freedom).
That is one figure for one parameter: the interval printed with it is wide.
"""

import math
import sys

TASKS = {
    "LSAT-AR": (195.1, 388.9, 587.4),
    "Sci-XW": (191.8, 379.9, 572.2),
    "Sci-JL": (194.1, 384.6, 584.5),
    "OlyPhys": (211.5, 420.7, 640.0),
}
ROUNDS = (32, 64, 96)
SAMPLES = 8
ENDS = {32: 363.0, 96: 1098.0}
FIRST_BAND = (509.0, 543.0)
END_BAND = (1098.0, 1184.0)
# 95 % of a chi-square of one degree of freedom: between these quantiles.
CHI_SQUARE = (0.000982, 5.024)


def rollout(task: str) -> tuple[float, float]:
    """(seconds, half of the interval that they lie in) at R = 96 of a task."""
    compute = TASKS[task][2]
    low = max(FIRST_BAND[0], END_BAND[0] - compute)
    high = min(FIRST_BAND[1], END_BAND[1] - compute)
    # The task whose band ends where the largest time begins is that largest one.
    if max(TASKS, key=lambda name: TASKS[name][2]) == task:
        low = high
    return (low + high) / 2, (high - low) / 2


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Print the parameters for the gin file."""
    lsat = {R: end - TASKS["LSAT-AR"][ROUNDS.index(R)] for R, end in ENDS.items()}
    rate = sum(lsat.values()) / sum(lsat)
    squares = sum(
        R * SAMPLES * (seconds / (R * rate) - 1) ** 2 for R, seconds in lsat.items()
    )
    sigmas = [
        math.sqrt(math.log(1 + squares / quantile)) for quantile in (1, *CHI_SQUARE)
    ]
    say(f"length_sigma = {sigmas[0]:.3f} (95 %: {sigmas[2]:.2f} to {sigmas[1]:.2f})")
    for task, computes in TASKS.items():
        seconds, half = rollout(task)
        group_s, off = seconds / 96, half / seconds
        if task == "LSAT-AR":
            group_s = rate
            off = max(abs(R * rate / seconds - 1) for R, seconds in lsat.items())
        train_s = sum(computes) / sum(ROUNDS)
        error = max(
            abs(train_s * R / c - 1) for R, c in zip(ROUNDS, computes, strict=True)
        )
        say(
            f"{task}: rollout {group_s:.3f} s a group (± {off:.1%}), so "
            f"decode_sequence_s = {group_s / SAMPLES / 1000:.4e}; "
            f"group_s = {train_s:.3f} (worst of three {error:.1%})"
        )


if __name__ == "__main__":
    main()
