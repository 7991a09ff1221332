"""From the sums of an update to the metrics that are logged."""

from collections.abc import Mapping

# Metric: (sum, what it is divided by).
MEANS = {
    "loss": ("loss", "weight"),
    "policy/entropy": ("entropy", "tokens"),
    "policy/kl_ref": ("kl_ref", "tokens"),
    "policy/kl_behavior": ("kl_behavior", "tokens"),
    "policy/clip_fraction_low": ("clip_low", "tokens"),
    "policy/clip_fraction_high": ("clip_high", "tokens"),
    "mismatch/logprob_abs_mean": ("mismatch_abs", "mismatch_count"),
    "mismatch/weight_mean": ("mismatch_weight", "mismatch_count"),
}
# Those that `of_update` leaves out where there is nothing to take them of.
OPTIONAL = (*MEANS, "mismatch/logprob_abs_max")


def of_update(sums: Mapping[str, float], rate: float) -> dict[str, float]:
    """Means, each divided once; one over nothing is left out.

    `sums` is empty where the update was skipped: its gradient norm is then 0.
    """
    metrics = {
        name: sums[total] / sums[count]
        for name, (total, count) in MEANS.items()
        if total in sums and sums[count]
    }
    if sums.get("mismatch_count"):
        metrics["mismatch/logprob_abs_max"] = sums["mismatch_abs_max"]
    metrics["optim/grad_norm"] = sums.get("grad_norm", 0.0)
    metrics["optim/lr"] = rate
    metrics["optim/skipped"] = float(not sums)
    metrics["tokens/trained"] = sums.get("tokens", 0.0)
    return metrics
