"""A decoder in NumPy float64, written from the papers for one sequence at a time."""

import math

import numpy as np


def _norm(decoder, x, weight):
    scale = weight + 1 if decoder.norm_has_offset else weight
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + decoder.norm_eps) * scale


def _rates(decoder, is_global):
    """Radians a position; slow pairs of global layers are slowed down further."""
    half = decoder.head_dim // 2
    base = decoder.rope_base if is_global else decoder.rope_local_base
    rates = base ** (-np.arange(half) / half)
    if not is_global or decoder.rope_scaling == "none":
        return rates
    if decoder.rope_scaling == "linear":
        return rates / decoder.rope_factor
    scaled = []
    for rate in rates:
        turns = decoder.rope_original_length * rate / (2 * math.pi)
        low, high = decoder.rope_low_freq_factor, decoder.rope_high_freq_factor
        if turns > high:
            scaled.append(rate)
        elif turns < low:
            scaled.append(rate / decoder.rope_factor)
        else:
            part = (turns - low) / (high - low)
            scaled.append(part * rate + (1 - part) * rate / decoder.rope_factor)
    return np.array(scaled)


def _rotate(x_TNH, rate):
    """Multiplies the complex number x[i] + j x[i + H/2] by exp(j t rate[i])."""
    half = x_TNH.shape[-1] // 2
    angle = np.exp(1j * np.arange(len(x_TNH))[:, None] * rate)
    z = (x_TNH[..., :half] + 1j * x_TNH[..., half:]) * angle[:, None]
    return np.concatenate([z.real, z.imag], -1)


def _activate(decoder, x):
    if decoder.activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _mlp(decoder, w, y):
    def gated(gate, up, down, y):
        return (_activate(decoder, y @ gate) * (y @ up)) @ down

    if not decoder.num_experts:
        return gated(w["gate"], w["up"], w["down"], y)
    out = np.zeros_like(y)
    for t, router_logits in enumerate(y @ w["router"]):
        probs = np.exp(router_logits) / np.exp(router_logits).sum()
        best = np.argsort(-probs)[: decoder.experts_per_token]
        total = probs[best].sum() if decoder.norm_topk_prob else 1
        for expert in best:
            gate, up, down = (w[name][expert] for name in ("gate", "up", "down"))
            out[t] += probs[expert] / total * gated(gate, up, down, y[t])
    return out


def _capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


def _attention(decoder, w, y, index):
    period = decoder.global_every
    is_global = decoder.sliding_window is None or (
        period > 0 and (index + 1) % period == 0
    )
    q, k, v = (np.einsum("td,dnh->tnh", y, w[n]) for n in ("query", "key", "value"))
    if decoder.qkv_bias:
        q = q + w["query_bias"].reshape(q.shape[1:])
        k = k + w["key_bias"].reshape(k.shape[1:])
        v = v + w["value_bias"].reshape(v.shape[1:])
    if decoder.qk_norm:
        q = _norm(decoder, q, w["query_norm"])
        k = _norm(decoder, k, w["key_norm"])
    rates = _rates(decoder, is_global)
    q, k = _rotate(q, rates), _rotate(k, rates)
    out = np.zeros_like(q)
    window = decoder.sliding_window
    for head in range(decoder.num_heads):
        group = head // (decoder.num_heads // decoder.num_kv_heads)
        for t in range(len(y)):
            first = 0 if is_global or window is None else max(0, t - window + 1)
            keys = k[first : t + 1, group]
            divisor = decoder.query_pre_attn_scalar or decoder.head_dim
            score = keys @ q[t, head] / math.sqrt(divisor)
            score = _capped(score, decoder.attention_soft_cap)
            weight = np.exp(score - score.max())
            out[t, head] = weight / weight.sum() @ v[first : t + 1, group]
    return np.einsum("tnh,nhd->td", out, w["output"])


def logits(decoder, params, tokens):
    """Float64 logits [T, V] of one sequence; params of unrolled layers."""
    ends = {k: np.asarray(v, np.float64) for k, v in params["ends"].items()}
    x = ends["embedding"][np.asarray(tokens)]
    if decoder.scale_embedding:
        x = x * math.sqrt(decoder.model_dim)
    for index in range(decoder.num_layers):
        layer = params["layers"][f"{index:03d}"]
        w = {k: np.asarray(v, np.float64) for k, v in layer.items()}
        y = _attention(decoder, w, _norm(decoder, x, w["attention_norm"]), index)
        if decoder.sandwich_norms:
            y = _norm(decoder, y, w["attention_out_norm"])
        x = x + y
        y = _norm(decoder, x, w["mlp_norm"])
        y = _mlp(decoder, w, y)
        if decoder.sandwich_norms:
            y = _norm(decoder, y, w["mlp_out_norm"])
        x = x + y
    x = _norm(decoder, x, ends["final_norm"])
    out = x @ (ends["embedding"].T if decoder.tied_head else ends["head"])
    return _capped(out, decoder.logit_soft_cap)
