"""A decoder in NumPy float64, written from the papers for one sequence at a time."""

import math

import numpy as np


def _norm(decoder, x, weight):
    scale = weight + 1 if decoder.norm_has_offset else weight
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + decoder.norm_eps) * scale


def _rotate(x_TNH, base):
    """Multiplies the complex number x[i] + j x[i + H/2] by exp(j t base^(-2i/H))."""
    half = x_TNH.shape[-1] // 2
    rate = base ** (-np.arange(half) / half)
    angle = np.exp(1j * np.arange(len(x_TNH))[:, None] * rate)
    z = (x_TNH[..., :half] + 1j * x_TNH[..., half:]) * angle[:, None]
    return np.concatenate([z.real, z.imag], -1)


def _activate(decoder, x):
    if decoder.activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attention(decoder, w, y, index):
    is_global = (
        decoder.sliding_window is None or (index + 1) % decoder.global_every == 0
    )
    q, k, v = (np.einsum("td,dnh->tnh", y, w[n]) for n in ("query", "key", "value"))
    if decoder.qk_norm:
        q = _norm(decoder, q, w["query_norm"])
        k = _norm(decoder, k, w["key_norm"])
    base = decoder.rope_base if is_global else decoder.rope_local_base
    q, k = _rotate(q, base), _rotate(k, base)
    out = np.zeros_like(q)
    window = decoder.sliding_window
    for head in range(decoder.num_heads):
        group = head // (decoder.num_heads // decoder.num_kv_heads)
        for t in range(len(y)):
            first = 0 if is_global or window is None else max(0, t - window + 1)
            keys = k[first : t + 1, group]
            score = keys @ q[t, head] / math.sqrt(decoder.head_dim)
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
        y = (_activate(decoder, y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        if decoder.sandwich_norms:
            y = _norm(decoder, y, w["mlp_out_norm"])
        x = x + y
    x = _norm(decoder, x, ends["final_norm"])
    return x @ (ends["embedding"].T if decoder.tied_head else ends["head"])
