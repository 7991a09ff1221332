"""Gemma 3's text model: five local layers to a global one, each with its rope base."""

from jigsaw_jax.model.families.family import Family
from jigsaw_jax.model.families.gemma2 import (
    GEMMA_DEFAULTS,
    GEMMA_FIELDS,
    GEMMA_FIXED,
    GEMMA_LAYER,
    GEMMA_MUST,
)

GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    fixed=GEMMA_FIXED | {"qk_norm": True},
    must=GEMMA_MUST,
    fields=GEMMA_FIELDS,
    defaults=GEMMA_DEFAULTS
    | {
        "vocab_size": 262_208,
        "rope_theta": 1_000_000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    has_windows=True,
    has_local_base=True,
    global_every=6,
    layer=GEMMA_LAYER,
)
