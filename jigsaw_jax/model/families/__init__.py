"""Model families: one small file each, one table both ways."""

from collections.abc import Mapping
from typing import Any

from jigsaw_jax.model.families.family import Family, differing
from jigsaw_jax.model.families.gemma2 import GEMMA2
from jigsaw_jax.model.families.gemma3 import GEMMA3
from jigsaw_jax.model.families.llama import LLAMA
from jigsaw_jax.model.families.mistral import MISTRAL
from jigsaw_jax.model.families.qwen2 import QWEN2
from jigsaw_jax.model.families.qwen3 import QWEN3
from jigsaw_jax.model.families.qwen3_moe import QWEN3_MOE
from jigsaw_jax.settings import Decoder

__all__ = ["FAMILIES", "Family", "differing", "family_of", "family_of_config"]

FAMILIES = {
    family.model_type: family
    for family in (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3)
}


def family_of_config(config: Mapping[str, Any]) -> Family:
    """The family of a config.json.

    Args:
      config: its content, of a text model.

    Returns:
      The family.

    Raises:
      ValueError: its model_type is of none of ours.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(
            f"config.json: model_type must be one of {known}, got {kind!r}"
        )
    return FAMILIES[kind]


def family_of(decoder: Decoder) -> Family:
    """The first family that can express a decoder.

    Args:
      decoder: of any origin.

    Returns:
      The family.

    Raises:
      ValueError: none can, with what each of them lacks.
    """
    reasons = []
    for family in FAMILIES.values():
        try:
            family.config(decoder)
        except ValueError as error:
            reasons.append(str(error))
        else:
            return family
    raise ValueError("decoder must be of a known family:\n  " + "\n  ".join(reasons))
