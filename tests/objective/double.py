"""The whole objective again, slowly, token by token in float64."""

import numpy as np


def policy_loss(objective, tokens, *, norm_tokens, moving=None):
    """(sum, weight, metric sums) of lists of sequences of tokens.

    `tokens` has the arrays of `policy.Tokens`. `moving` stands for logprobs where the
    loss is differentiated: its derivative there is the gradient, with all that is
    stopped held at `tokens.logprobs_RM`.
    """
    parts = {"tokens": 0, "clip_low": 0, "clip_high": 0, "kl_behavior": 0}
    parts |= {"entropy": 0, "kl_ref": 0}
    total, num_sequences = 0.0, 0
    logprobs = np.asarray(tokens.logprobs_RM, np.float64)
    moving = logprobs if moving is None else moving
    for r in range(logprobs.shape[0]):
        mask, ids = np.asarray(tokens.mask_RM[r]), np.asarray(tokens.sequence_ids_RM[r])
        for i in set(ids[mask].tolist()):
            places = [m for m in range(len(mask)) if mask[m] and ids[m] == i]
            num_sequences += 1
            losses = [
                _token(objective, tokens, parts, r, m, places, logprobs, moving)
                for m in places
            ]
            total += (
                sum(losses)
                * {
                    "token-mean": 1,
                    "seq-mean-token-mean": 1 / len(places),
                    "seq-mean-token-sum": 1,
                    "seq-mean-token-sum-norm": 1 / norm_tokens,
                }[objective.aggregation]
            )
    is_token_mean = objective.aggregation == "token-mean"
    return total, parts["tokens"] if is_token_mean else num_sequences, parts


def _token(objective, tokens, parts, r, m, places, logprobs, moving):
    old = np.asarray(tokens.old_logprobs_RM, np.float64)
    sampler = np.asarray(tokens.sampler_logprobs_RM, np.float64)
    advantage, logp = float(tokens.advantages_RM[r, m]), moving[r, m]
    if objective.ratio == "token":
        ratio = np.exp(logp - old[r, m])
    else:
        mean = np.mean([logprobs[r, p] - old[r, p] for p in places])
        ratio = np.exp(mean) * np.exp(logp - logprobs[r, m])
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    if objective.surrogate == "ppo":
        loss = -min(ratio * advantage, np.clip(ratio, low, high) * advantage)
        if objective.dual_clip and advantage < 0:
            loss = min(loss, -objective.dual_clip * advantage)
        parts["clip_low"] += advantage < 0 and ratio < low
        parts["clip_high"] += advantage > 0 and ratio > high
    else:
        stopped = ratio * np.exp(logprobs[r, m] - logp)
        loss = -np.clip(stopped, low, high) * advantage * logp
        parts["clip_low"] += stopped < low
        parts["clip_high"] += stopped > high
    if objective.mismatch:
        weight = np.exp(old[r, m] - sampler[r, m])
        bound = objective.mismatch_max
        if objective.mismatch == "truncate":
            loss *= min(weight, bound)
        else:
            loss *= weight if 1 / bound <= weight <= bound else 0
    loss += _extras(objective, tokens, parts, r, m, logprobs, logp)
    gap = sampler[r, m] - logprobs[r, m]
    parts["kl_behavior"] += np.exp(-gap) - 1 + gap
    parts["tokens"] += 1
    return loss


def _extras(objective, tokens, parts, r, m, logprobs, logp):
    entropy = float(tokens.entropies_RM[r, m])
    parts["entropy"] += entropy
    loss = -objective.entropy_coefficient * entropy
    if objective.kl is None:
        return loss
    reference = float(tokens.reference_logprobs_RM[r, m])
    d, d_stopped = logp - reference, logprobs[r, m] - reference
    value = {
        "k1": d_stopped + d**2 / 2 - d_stopped**2 / 2,
        "k2": d**2 / 2,
        "k3": np.exp(-d) - 1 + d,
    }[objective.kl]
    parts["kl_ref"] += value
    in_loss = objective.kl_placement == "loss"
    return loss + in_loss * objective.kl_coefficient * value
