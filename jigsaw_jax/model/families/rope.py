"""Rotary settings in config.json: the older two keys, and `rope_parameters`."""

from collections.abc import Mapping
from typing import Any

from jigsaw_jax.settings import Decoder

# Llama 3.1's names, the same in both forms.
_LLAMA3 = {
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "rope_original_length": "original_max_position_embeddings",
}


def read(config: Mapping[str, Any], *, has_local_base: bool) -> dict[str, Any]:
    """The rotary fields of Decoder.

    Transformers 5 writes `rope_parameters`, nested by layer type where local layers
    have a base of their own; what came before it has `rope_theta` and `rope_scaling`.

    Args:
      config: with the family's defaults.
      has_local_base: local layers have a rotary base of their own.

    Returns:
      Field to value.

    Raises:
      ValueError: a kind of scaling that is not supported.
    """
    parameters = config.get("rope_parameters") or {}
    of_global = parameters.get("full_attention", parameters) or {}
    of_local = parameters.get("sliding_attention", {}) or {}
    scaling = {**(config.get("rope_scaling") or {}), **of_global}
    base = float(of_global.get("rope_theta", config.get("rope_theta", 10_000.0)))
    local = of_local.get("rope_theta", config.get("rope_local_base_freq", 10_000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ValueError(
            f"config.json: rope_type must be default, linear or llama3, got {kind!r}"
        )
    values = {
        "rope_base": base,
        "rope_local_base": float(local) if has_local_base else base,
        "rope_scaling": "none" if kind == "default" else kind,
    }
    if kind != "default":
        values["rope_factor"] = float(scaling["factor"])
    if kind == "llama3":
        values |= {field: scaling[key] for field, key in _LLAMA3.items()}
        for field in ("rope_low_freq_factor", "rope_high_freq_factor"):
            values[field] = float(values[field])
    return values


def write(decoder: Decoder, *, has_local_base: bool) -> dict[str, Any]:
    """The keys of config.json, in the older form, which every reader knows."""
    config: dict[str, Any] = {"rope_theta": decoder.rope_base, "rope_scaling": None}
    if has_local_base:
        config["rope_local_base_freq"] = decoder.rope_local_base
    if decoder.rope_scaling != "none":
        scaling = {"rope_type": decoder.rope_scaling, "factor": decoder.rope_factor}
        if decoder.rope_scaling == "llama3":
            scaling |= {key: getattr(decoder, f) for f, key in _LLAMA3.items()}
        config["rope_scaling"] = scaling
    return config
