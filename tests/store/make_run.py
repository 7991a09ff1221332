"""A synthetic run directory: what a streamed run of a few rounds leaves behind.

`python -m tests.store.make_run DIR` makes one to look at the report with.
"""

import collections
import json
import pathlib
import sys

import numpy as np

from jigsaw_jax.store.evaluations import EvaluationLog
from jigsaw_jax.store.journal import EventLog
from jigsaw_jax.store.metrics import MetricsLog
from jigsaw_jax.store.rollouts import RolloutLog
from jigsaw_jax.store.run_dir import RunDir

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u202e\u2028 & \"'"
SLOTS, GROUPS, SIZE, PER_UPDATE = 24, 8, 6, 4


def _completion(rng, a, b, is_right, length):
    answer = a + b if is_right else a + b + int(rng.integers(1, 9))
    thought = f"{a} + {b}: tens {a // 10 + b // 10}, ones {a % 10 + b % 10}."
    text = f"{thought} <answer>{answer}</answer>"
    pieces = [text[i : i + 2] for i in range(0, len(text), 2)][:length]
    logprobs = -rng.exponential(0.3, len(pieces)) * rng.integers(0, 2, len(pieces))
    return "".join(pieces), pieces, [round(float(x), 6) for x in logprobs]


def _rows(rng, *, update, version, uids, skill):
    rows = []
    for order, uid in enumerate(uids):
        a, b = (int(x) for x in rng.integers(10, 99, 2))
        for sample in range(SIZE):
            is_right = bool(rng.random() < skill)
            length = int(rng.integers(12, 40))
            text, pieces, logprobs = _completion(rng, a, b, is_right, length)
            if order == 0 and sample == 0:
                text, pieces, logprobs = HOSTILE, [HOSTILE], [-0.5]
            tokens = [int(x) for x in rng.integers(3, 500, len(pieces))]
            value = 1.0 if is_right and "</answer>" in text else 0.0
            rows.append(
                {
                    "update": update,
                    "uid": uid,
                    "draw": 0,
                    "sample": sample,
                    "attempt": 0,
                    "order": order,
                    "task": "chain_sum",
                    "prompt": f"What is {a} + {b}?",
                    "answer": str(a + b),
                    "text": text,
                    "pieces": pieces,
                    "segments": [
                        {
                            "is_sampled": True,
                            "tokens": tokens,
                            "logprobs": logprobs,
                            "versions": [version] * len(tokens),
                        }
                    ],
                    "reward": value if sample != 3 or order else None,
                    "parts": {"task": value, "format": 0.1},
                    "failure": None if sample != 3 or order else "timeout",
                    "advantage": round(float(rng.normal()), 4),
                    "finish": "length" if length == 39 else "stop",
                }
            )
    return rows


def _sample_round(rng, log, *, start_s, version, uids):
    """Fill the slots and log every completion; returns when each group is whole."""
    free = [(start_s, slot) for slot in range(SLOTS)]
    done: dict[str, float] = collections.defaultdict(float)
    last_s: float = start_s
    for uid in uids:
        for sample in range(SIZE):
            free.sort()
            at_s, slot = free.pop(0)
            length_s = float(np.clip(rng.lognormal(-0.55, 0.6), 0.15, 2.6))
            end_s = at_s + length_s
            log.interval(
                f"slot/{slot:02d}",
                "sample",
                at_s,
                end_s,
                uid=uid,
                draw=0,
                sample=sample,
                num_tokens=int(length_s * 60),
                version=version,
                finish="length" if length_s >= 2.6 else "stop",
            )
            free.append((end_s, slot))
            done[uid] = max(done[uid], end_s)
            last_s = max(last_s, end_s)
    for call_s in np.arange(start_s, last_s, 0.1):
        end_s = float(call_s) + 0.095
        log.interval("sampler", "decode", float(call_s), end_s, active=9, tokens=72)
    return sorted(done.values())


def _train_round(rng, log, *, update, ready):
    """Take groups as they are whole; returns the end of every update."""
    now_s, ends = 0.0, []
    for index, at_s in enumerate(ready):
        start_s = max(now_s, at_s) + 0.004
        now_s = start_s + float(rng.uniform(0.16, 0.24))
        current = update + index // PER_UPDATE
        log.interval("learner", "accumulate", start_s, now_s, update=current, groups=1)
        if (index + 1) % PER_UPDATE == 0:
            log.interval("learner", "step", now_s, now_s + 0.08, update=current)
            now_s += 0.08
            ends.append(now_s)
    return ends


def _metrics(rng, *, share, start_s, end_s, ready):
    noise = float(rng.normal())
    skill = 0.2 + 0.65 * share
    return {
        "reward/mean": skill + 0.06 * noise,
        "reward/std": 0.5 - 0.2 * share,
        "reward/task": skill + 0.06 * noise,
        "reward/format": 0.4 + 0.58 * share,
        "group/zero_variance_ratio": 0.1 + 0.3 * share + 0.04 * abs(noise),
        "completion/length_mean": 52 - 14 * share + noise,
        "completion/length_max": 156,
        "completion/truncated_ratio": max(0.0, 0.12 - 0.1 * share + 0.01 * noise),
        "policy/entropy": 1.4 - 0.9 * share + 0.04 * noise,
        "policy/kl_ref": 0.2 * share**1.5,
        "policy/kl_behavior": 0.002 + 0.001 * abs(noise),
        "policy/clip_fraction_low": 0.01 + 0.004 * abs(noise),
        "policy/clip_fraction_high": 0.02 + 0.006 * abs(noise),
        "mismatch/logprob_abs_mean": 2e-7 * (1 + abs(noise)),
        "mismatch/logprob_abs_max": 4e-6 * (1 + abs(noise)),
        "mismatch/weight_mean": 1.0 + 1e-6 * noise,
        "optim/grad_norm": 1.5 - share + 0.2 * abs(noise),
        "optim/lr": 3e-4 * min(1.0, 0.1 + 5 * share),
        "staleness/mean": 0.0,
        "staleness/max": 0,
        "tokens/sampled": 2300,
        "tokens/trained": 2200 + 40 * noise,
        "time/update_s": end_s - start_s,
        "time/wait_s": 0.35 * (end_s - start_s),
        "time/rollout_to_train_end_s": end_s - start_s,
        "time/first_dispatch_s": ready[0] - start_s,
        "time/publish_s": 0.02,
        "pipeline/trainer_wait_ratio": 0.35 + 0.03 * noise,
        "pipeline/sampler_idle_ratio": 0.2 + 0.02 * noise,
        "pipeline/goodput_tokens_per_s": 620 + 15 * noise,
        "ledger/committed": 48 * share,
        "ledger/running": 0,
        "reward/timeouts": 0,
    }


def make_run(path, *, rounds=14, seed=0, is_finished=True):
    """Write a run directory of `rounds` rounds with two updates each."""
    rng = np.random.default_rng(seed)
    run = RunDir(path)
    run.lock()
    run.write_config("Train.updates = 28\nPipeline.mode = 'stream'\n")
    log = EventLog(run.events, incarnation=1, at_s=0.2, unix_s=1_790_000_000.0)
    metrics, rollouts = MetricsLog(run.metrics), RolloutLog(run.rollouts)
    evaluations = EvaluationLog(run.evaluations)
    evaluations.record(0, {"eval/accuracy": 0.21, "eval/pass@4": 0.5})
    now_s, accuracy = 3.0, 0.21
    for version in range(rounds):
        share = version / max(1, rounds - 1)
        uids = [f"main/{version * GROUPS + i}/0" for i in range(GROUPS)]
        ready = _sample_round(rng, log, start_s=now_s, version=version, uids=uids)
        ends = _train_round(rng, log, update=2 * version, ready=ready)
        for index, end_s in enumerate(ends):
            update = 2 * version + index
            record = _metrics(rng, share=share, start_s=now_s, end_s=end_s, ready=ready)
            record |= {"version": version, "round": version, "time_s": end_s}
            metrics.record(update, record)
            mine = uids[index * PER_UPDATE : (index + 1) * PER_UPDATE]
            skill = 0.2 + 0.65 * share
            rollouts.write(
                update,
                _rows(rng, update=update, version=version, uids=mine, skill=skill),
            )
        log.interval(
            "publish", "publish", ends[-1], ends[-1] + 0.02, version=version + 1
        )
        if version % 4 == 3:
            save_s = ends[-1] + 0.02
            log.interval("checkpoint", "save", save_s, save_s + 0.03)
            accuracy = 0.21 + 0.62 * share
            results = {"eval/accuracy": accuracy, "eval/pass@4": min(1, accuracy + 0.1)}
            evaluations.record(2 * version + 2, results)
        now_s = ends[-1] + 0.05
    for one in (log, metrics, rollouts):
        one.close()
    if is_finished:
        _finish(run, rounds=rounds, wall_s=now_s, accuracy=accuracy)
    run.unlock()
    return pathlib.Path(path)


def _finish(run, *, rounds, wall_s, accuracy):
    run.write_summary(
        {
            "updates": 2 * rounds,
            "rounds": rounds,
            "versions": rounds,
            "groups_committed": rounds * GROUPS,
            "groups_dropped": {"zero_variance": 3},
            "eval_accuracy_first": 0.21,
            "eval_accuracy_last": accuracy,
            "sampled_tokens_per_s": 10_310.4,
            "loop_tokens_per_s": 6_502.0,
            "trainer_wait_ratio": 0.352,
            "rollout_to_train_end_s_median": 3.4,
            "first_step_s": 2.5,
            "process_start_to_first_step_s": 5.1,
            "compilations_after_warmup": 0,
            "logprob_abs_diff_max": 7.2e-6,
            "peak_rss_mb": 612.0,
            "wall_s": wall_s,
        }
    )


if __name__ == "__main__":
    print(json.dumps(str(make_run(sys.argv[1]))))
