"""What a model family is: its settings and its tensors under Hugging Face's names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jigsaw_jax.model.families import rope
from jigsaw_jax.settings import Decoder

# Which key of config.json holds a field of Decoder.
FIELDS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "tied_head": "tie_word_embeddings",
}
ENDS = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
# Names inside "model.layers.{layer}."; {expert} counts along an expert dim.
LAYER = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
# JSON may have them without a decimal point.
_REAL = ("norm_eps", "query_pre_attn_scalar", "attention_soft_cap", "logit_soft_cap")
# Fields that change how a model runs or starts, not which model it is.
_RUNNING = ("scan_layers", "dtype", "param_dtype", "init_scale")
_ROPE_SCALED = (
    "rope_factor",
    "rope_low_freq_factor",
    "rope_high_freq_factor",
    "rope_original_length",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One family, read and written by the same tables.

    Attributes:
      model_type: of config.json.
      architecture: the class that transformers loads it with.
      fixed: fields of Decoder that are the same in all members.
      must: keys of config.json for which only this value is supported.
      fields: field of Decoder to key of config.json.
      defaults: values of keys that config.json may leave out.
      aliases: other names of keys, to ours.
      global_every: of layers where there is a sliding window; see Decoder.
      has_windows: config.json's sliding_window is in force.
      has_local_base: local layers have a rotary base of their own.
      layer: leaf to the tensor's name inside a layer.
    """

    model_type: str
    architecture: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    must: Mapping[str, Any]
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: FIELDS)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    global_every: int = 1
    has_windows: bool = False
    has_local_base: bool = False
    layer: Mapping[str, str] = dataclasses.field(default_factory=lambda: LAYER)

    def decoder(self, config: Mapping[str, Any]) -> Decoder:
        """The shape that a config.json describes, in float32 and unrolled.

        Args:
          config: of this family.

        Returns:
          The decoder.

        Raises:
          ValueError: a key is missing or has a value that is not supported.
        """
        renamed = {self.aliases.get(key, key): config[key] for key in config}
        config = {**self.defaults, **renamed}
        for key, value in self.must.items():
            if config.get(key) not in (None, value):
                raise ValueError(
                    f"config.json: {key} must be {value!r} for {self.model_type}, "
                    f"got {config[key]!r}"
                )
        values = dict(self.fixed)
        for field, key in self.fields.items():
            value = config.get(key)
            if value is None and field in ("head_dim", "num_kv_heads"):
                heads = config["num_attention_heads"]
                value = config["hidden_size"] // heads if field == "head_dim" else heads
            if key not in config and value is None:
                raise ValueError(f"config.json: {key} must be set, got nothing")
            if field in _REAL and value is not None:
                value = float(value)
            values[field] = value
        values |= self._windows(config)
        values |= rope.read(config, has_local_base=self.has_local_base)
        decoder = Decoder(**values)
        local = not all(map(decoder.is_global, range(decoder.num_layers)))
        if local and decoder.rope_scaling != "none" and not self.has_local_base:
            raise ValueError(
                f"config.json: {self.model_type} must have no rope scaling with local "
                f"layers, got {decoder.rope_scaling!r}"
            )
        return decoder

    def config(self, decoder: Decoder) -> dict[str, Any]:
        """A config.json of a decoder, which `decoder` reads back.

        Args:
          decoder: of this family.

        Returns:
          Without what is no part of the decoder, such as special tokens.

        Raises:
          ValueError: the decoder is not of this family.
        """
        config = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **self.must,
            **{key: _written(decoder, field) for field, key in self.fields.items()},
            **rope.write(decoder, has_local_base=self.has_local_base),
        }
        if self.has_windows:
            config["sliding_window"] = decoder.sliding_window
        if self.global_every > 1:
            kinds = ("sliding_attention", "full_attention")
            config["layer_types"] = [
                kinds[decoder.is_global(i)] for i in range(decoder.num_layers)
            ]
        try:
            again = self.decoder(config)
        except ValueError as error:
            raise ValueError(f"{self.model_type} can't express it: {error}") from None
        differences = differing(decoder, again)
        if differences:
            raise ValueError(
                f"{self.model_type} can't express {'; '.join(differences)}"
            )
        return config

    def _windows(self, config: Mapping[str, Any]) -> dict[str, Any]:
        window, types = config.get("sliding_window"), config.get("layer_types")
        period = config.get("sliding_window_pattern", self.global_every)
        if not self.has_windows or window is None:
            window, period = None, 1
        expected = [
            period == 1 or (period > 0 and (i + 1) % period == 0)
            for i in range(config["num_hidden_layers"])
        ]
        if types is None or _are_global(types) == expected:
            return {"sliding_window": window, "global_every": period}
        found = _are_global(types)
        period = found.index(True) + 1 if any(found) else 0
        if window is None or found != [
            period > 0 and (i + 1) % period == 0 for i in range(len(found))
        ]:
            raise ValueError(
                "config.json: layer_types must repeat local layers and one global one, "
                f"got {types!r}"
            )
        return {"sliding_window": window, "global_every": period}


def differing(wanted: Decoder, found: Decoder) -> list[str]:
    """Fields in which two decoders are different models, as text.

    What only says how the model runs, or has no effect, is not compared.
    """
    one, two = (dataclasses.asdict(_effective(each)) for each in (wanted, found))
    return [
        f"Decoder.{name} = {one[name]!r} (is {two[name]!r})"
        for name in one
        if one[name] != two[name]
    ]


def _effective(decoder: Decoder) -> Decoder:
    """The decoder with every field that has no effect at its default."""
    idle: list[str] = list(_RUNNING)
    if decoder.rope_scaling != "llama3":
        idle += _ROPE_SCALED[decoder.rope_scaling == "linear" :]
    if not decoder.num_experts:
        idle += ["experts_per_token", "norm_topk_prob"]
    are_global = [decoder.is_global(i) for i in range(decoder.num_layers)]
    if all(are_global):
        idle += ["sliding_window", "global_every", "rope_local_base"]
    if decoder.query_pre_attn_scalar == decoder.head_dim:
        idle.append("query_pre_attn_scalar")
    defaults = {f.name: f.default for f in dataclasses.fields(Decoder)}
    changes: dict[str, Any] = {name: defaults[name] for name in idle}
    return dataclasses.replace(decoder.base, **changes)


def _written(decoder: Decoder, field: str) -> Any:
    """A field's value as transformers wants it: Gemma's query scalar is whole."""
    value = getattr(decoder, field)
    if field != "query_pre_attn_scalar":
        return value
    value = decoder.head_dim if value is None else value
    return int(value) if value == int(value) else value


def _are_global(types: list[str]) -> list[bool]:
    return [kind == "full_attention" for kind in types]
