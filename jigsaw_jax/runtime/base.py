"""Whose adapters a checkpoint holds: it has none of the weights that they stand on."""

from collections.abc import Mapping
from typing import Any

from jigsaw_jax.model.fingerprint import fingerprint
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.train.learner import Learner


def base_of(learner: Learner) -> str | None:
    """The fingerprint of the frozen weights; None where all of them train."""
    return fingerprint(learner.frozen) if learner.frozen else None


def check_base(saved: Mapping[str, Any], base: str | None) -> None:
    """Refuse to go on over other weights than those that a checkpoint was made with.

    Args:
      saved: record of the checkpoint; one without a fingerprint is let through.
      base: of the weights that are here.

    Raises:
      StoreError: they are others.
    """
    expected = saved.get("base")
    if expected is not None and expected != base:
        raise StoreError(
            "Weights.path must be the weights file that it was trained over, to go on "
            f"with a checkpoint's adapters; got weights of fingerprint {base}, and the "
            f"checkpoint has {expected}"
        )
