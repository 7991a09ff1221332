"""The policy that a run ends with, as a Hugging Face folder with its tokenizer."""

import pathlib
from typing import Any

from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.settings import Train
from jigsaw_jax.store.files import StoreError


def export_policy(
    train: Train, params: Any, tokenizer: Tokenizer, path: pathlib.Path
) -> None:
    """Write the folder; one from an earlier end of the same run gives way.

    Args:
      train: the run.
      params: all weights; adapters are merged.
      tokenizer: of the run; its files lie beside the weights where it has some.
      path: of the folder.

    Raises:
      StoreError: the disk refuses, or a weight is not finite.
    """
    # Imported here: most runs export nothing.
    from jigsaw_jax.model.hf_export import export_folder

    try:
        export_folder(
            path,
            train.decoder,
            params,
            dtype=train.store.export_dtype,
            like=train.weights.path if train.weights.source == "hf" else None,
            beside=tokenizer.save,
            replace=True,
        )
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot export the policy to {path}: {error}") from error
