"""One decoder layer and the two ends of the stack, as flax.nnx modules.

Both the learner and the sampler run these modules; they differ only in the `attend`
function they pass in.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import rotary
from jigsaw_jax.model.experts import Experts, activate, mixture
from jigsaw_jax.model.product import product
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Float, Int

# A standard normal array of the given shape, in the parameters' type.
Draw = Callable[[tuple[int, ...]], Array]
# What a rematerialised layer may keep: every product of a weight.
PRODUCT = "product"
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]


def precision(decoder: Decoder) -> jax.lax.Precision:
    """Precision of matrix products: float32 means float32, on a TPU too."""
    exact = decoder.dtype == "float32"
    return jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT


def score_options(decoder: Decoder) -> dict[str, Any]:
    """Keywords of `attention.attend` that every layer shares."""
    return {
        "precision": precision(decoder),
        "scale": (decoder.query_pre_attn_scalar or decoder.head_dim) ** -0.5,
        "soft_cap": decoder.attention_soft_cap,
    }


def _weight(
    draw: Draw, decoder: Decoder, shape: tuple[int, ...], axes: tuple[str, ...]
) -> nnx.Param:
    """A normal random weight whose metadata names its logical axes."""
    value = draw(shape)
    return nnx.Param(value * jnp.asarray(decoder.init_scale, value.dtype), axes=axes)


def _bias(decoder: Decoder, num_heads: int, axis: str) -> nnx.Param:
    """A bias of zeros; heads are flattened, since one dim means no weight decay."""
    size = num_heads * decoder.head_dim
    return nnx.Param(jnp.zeros((size,), jnp.dtype(decoder.param_dtype)), axes=(axis,))


def _norm(decoder: Decoder, size: int, axis: str) -> nnx.Param:
    """A norm's weight, at the value that leaves its input's scale alone."""
    start = 0.0 if decoder.norm_has_offset else 1.0
    return nnx.Param(
        jnp.full((size,), start, jnp.dtype(decoder.param_dtype)), axes=(axis,)
    )


def rms_norm(decoder: Decoder, x: Array, weight: Array) -> Array:
    """RMSNorm over the last dim, in float32, cast back to the compute type."""
    x32 = x.astype(jnp.float32)
    square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    scale = weight.astype(jnp.float32) + (1.0 if decoder.norm_has_offset else 0.0)
    scale = jnp.expand_dims(scale, range(x.ndim - 1))
    return (x32 * jax.lax.rsqrt(square + decoder.norm_eps) * scale).astype(x.dtype)


def _biased(
    heads_BTNH: Float[Array, "B T N H"], bias: Array
) -> Float[Array, "B T N H"]:
    shape = (1, 1, *heads_BTNH.shape[2:])
    return heads_BTNH + bias.astype(heads_BTNH.dtype).reshape(shape)


class Layer(nnx.Module):
    """Attention and gated MLP, each with its norm and residual.

    Args:
      decoder: the policy's shape; static.
      draw: makes the random weights.
    """

    def __init__(self, decoder: Decoder, draw: Draw) -> None:
        d, n, k, h = (
            decoder.model_dim,
            decoder.num_heads,
            decoder.num_kv_heads,
            decoder.head_dim,
        )
        self.decoder = decoder
        self.attention_norm = _norm(decoder, d, "embed")
        self.query = _weight(draw, decoder, (d, n, h), ("embed", "heads", "head_dim"))
        self.key = _weight(draw, decoder, (d, k, h), ("embed", "kv_heads", "head_dim"))
        self.value = _weight(
            draw, decoder, (d, k, h), ("embed", "kv_heads", "head_dim")
        )
        self.output = _weight(draw, decoder, (n, h, d), ("heads", "head_dim", "embed"))
        if decoder.qk_norm:
            self.query_norm = _norm(decoder, h, "head_dim")
            self.key_norm = _norm(decoder, h, "head_dim")
        if decoder.qkv_bias:
            self.query_bias = _bias(decoder, n, "heads")
            self.key_bias = _bias(decoder, k, "kv_heads")
            self.value_bias = _bias(decoder, k, "kv_heads")
        self.mlp_norm = _norm(decoder, d, "embed")
        self._init_mlp(draw)
        if decoder.sandwich_norms:
            self.attention_out_norm = _norm(decoder, d, "embed")
            self.mlp_out_norm = _norm(decoder, d, "embed")

    def _init_mlp(self, draw: Draw) -> None:
        decoder = self.decoder
        d, f, u = decoder.model_dim, decoder.hidden_dim, decoder.num_experts
        size, axis = ((u,), ("expert",)) if u else ((), ())
        if u:
            self.router = _weight(draw, decoder, (d, u), ("embed", "expert"))
        self.gate = _weight(draw, decoder, (*size, d, f), (*axis, "embed", "mlp"))
        self.up = _weight(draw, decoder, (*size, d, f), (*axis, "embed", "mlp"))
        self.down = _weight(draw, decoder, (*size, f, d), (*axis, "mlp", "embed"))

    def _product(self, equation: str, x: Array, weight: nnx.Param) -> Array:
        axes = weight.get_metadata()["axes"]
        matrix = meshes.gathered(weight[...].astype(x.dtype), axes)
        y = product(x, matrix, equation, precision(self.decoder))
        return checkpoint_name(y, PRODUCT)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], turn: rotary.Turn, attend: Attend
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The layer's output and whatever `attend` hands on (new keys and values).

        `turn` holds the rotary angles of the T positions; `attend` maps query, key
        and value of the T tokens to the attention's output.
        """
        o_BTNH, carried = attend(*self.project(x_BTD, turn))
        return self.finish(x_BTD, o_BTNH), carried

    def project(
        self, x_BTD: Float[Array, "B T D"], turn: rotary.Turn
    ) -> tuple[
        Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"]
    ]:
        """Query, key and value, as attention reads them."""
        y_BTD = rms_norm(self.decoder, x_BTD, self.attention_norm[...])
        q_BTNH = self._product("BTD,DNH->BTNH", y_BTD, self.query)
        k_BTKH = self._product("BTD,DKH->BTKH", y_BTD, self.key)
        v_BTKH = self._product("BTD,DKH->BTKH", y_BTD, self.value)
        if self.decoder.qkv_bias:
            q_BTNH = _biased(q_BTNH, self.query_bias[...])
            k_BTKH = _biased(k_BTKH, self.key_bias[...])
            v_BTKH = _biased(v_BTKH, self.value_bias[...])
        if self.decoder.qk_norm:
            q_BTNH = rms_norm(self.decoder, q_BTNH, self.query_norm[...])
            k_BTKH = rms_norm(self.decoder, k_BTKH, self.key_norm[...])
        return rotary.rotate(q_BTNH, turn), rotary.rotate(k_BTKH, turn), v_BTKH

    def finish(
        self, x_BTD: Float[Array, "B T D"], o_BTNH: Float[Array, "B T N H"]
    ) -> Float[Array, "B T D"]:
        """The layer's output, from its input and the attention's output."""
        y_BTD = self._product("BTNH,NHD->BTD", o_BTNH, self.output)
        if self.decoder.sandwich_norms:
            y_BTD = rms_norm(self.decoder, y_BTD, self.attention_out_norm[...])
        x_BTD = x_BTD + y_BTD
        return x_BTD + self._mlp(x_BTD)

    def _mlp(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        y_BTD = rms_norm(self.decoder, x_BTD, self.mlp_norm[...])
        if self.decoder.num_experts:
            weights = (self.router, self.gate, self.up, self.down)
            y_BTD = mixture(
                self.decoder,
                y_BTD,
                Experts(*(weight[...].astype(y_BTD.dtype) for weight in weights)),
                precision=precision(self.decoder),
            )
        else:
            gate_BTF = self._product("BTD,DF->BTF", y_BTD, self.gate)
            up_BTF = self._product("BTD,DF->BTF", y_BTD, self.up)
            gated_BTF = activate(self.decoder, gate_BTF) * up_BTF
            y_BTD = self._product("BTF,FD->BTD", gated_BTF, self.down)
        if self.decoder.sandwich_norms:
            y_BTD = rms_norm(self.decoder, y_BTD, self.mlp_out_norm[...])
        return y_BTD


class Ends(nnx.Module):
    """What stands before and behind the layers: embedding, final norm and head.

    Args:
      decoder: the policy's shape; static.
      draw: makes the random weights.
    """

    def __init__(self, decoder: Decoder, draw: Draw) -> None:
        v, d = decoder.vocab_size, decoder.model_dim
        self.decoder = decoder
        self.embedding = _weight(draw, decoder, (v, d), ("vocab", "embed"))
        self.final_norm = _norm(decoder, d, "embed")
        if not decoder.tied_head:
            self.head = _weight(draw, decoder, (d, v), ("embed", "vocab"))

    def embed(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Embeddings in the compute type; ids outside the vocabulary are clipped.

        Clipping keeps whatever id stands at a padded place from becoming NaN.
        """
        rows_BTD = self.embedding[...].at[tokens_BT].get(mode="clip")
        rows_BTD = rows_BTD.astype(jnp.dtype(self.decoder.dtype))
        if self.decoder.scale_embedding:
            root = jnp.sqrt(jnp.float32(self.decoder.model_dim))
            rows_BTD = rows_BTD * root.astype(rows_BTD.dtype)
        return rows_BTD

    def normalise(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The final norm."""
        return rms_norm(self.decoder, x_BTD, self.final_norm[...])

    def logits(self, hidden: Array) -> Array:
        """Float32 logits of normalised hidden states `[..., D]`."""
        tied = self.decoder.tied_head
        weight = self.embedding[...] if tied else self.head[...]
        logits = jnp.einsum(
            "...D,VD->...V" if tied else "...D,DV->...V",
            hidden,
            weight.astype(hidden.dtype),
            precision=precision(self.decoder),
            preferred_element_type=jnp.float32,
        )
        cap = self.decoder.logit_soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)
