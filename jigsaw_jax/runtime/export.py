"""The policy that a run ends with, as a Hugging Face folder with its tokenizer."""

import json
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

    def write_beside(folder: pathlib.Path) -> None:
        tokenizer.save(folder)
        generation = folder / "generation_config.json"
        if not generation.exists():
            generation.write_text(json.dumps(_stops(tokenizer), indent=2) + "\n")

    try:
        export_folder(
            path,
            train.decoder,
            params,
            dtype=train.store.export_dtype,
            like=train.weights.path if train.weights.source == "hf" else None,
            beside=write_beside,
            replace=True,
        )
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot export the policy to {path}: {error}") from error


def _stops(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tells transformers where a completion ends."""
    ids = {"eos_token_id": list(tokenizer.stop_ids), "pad_token_id": tokenizer.pad_id}
    if tokenizer.bos_id is not None:
        ids["bos_token_id"] = tokenizer.bos_id
    return ids
