"""A Hugging Face folder: its config.json and which file holds which tensor."""

import functools
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jigsaw_jax.model.families import Family, differing, family_of_config
from jigsaw_jax.model.safetensors_file import SafetensorsFile
from jigsaw_jax.settings import Decoder

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Buffers that old checkpoints hold, and what a text model leaves of a larger one.
_IGNORED = ("rotary_emb.inv_freq",)
_NOT_TEXT = ("vision_tower.", "multi_modal_projector.")
_TEXT_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


class Folder:
    """The text model of a folder, looked through but not read.

    Args:
      path: of the folder.

    Attributes:
      config: config.json, of the text model.
      family: that it belongs to.
      decoder: that it describes.

    Raises:
      ValueError: a file is missing or cut off, or the family is unknown.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self._path = pathlib.Path(path)
        whole = _read_json(self._path, CONFIG)
        self.config: Mapping[str, Any] = whole.get("text_config", whole)
        self._is_part = "text_config" in whole
        _check_unquantised(self._path / CONFIG, whole, self.config)
        self.family: Family = family_of_config(self.config)
        self.decoder = self.family.decoder(self.config)
        self._files = [self._path / name for name in _file_names(self._path)]

    def check(self, decoder: Decoder) -> None:
        """Refuse a decoder that is another model than the folder's.

        Args:
          decoder: that a run asks for.

        Raises:
          ValueError: with the fields that differ, or a file that is cut off.
        """
        differences = differing(self.decoder, decoder)
        if differences:
            raise ValueError(
                f"Decoder must be the model of {self._path / CONFIG}: set "
                + ", ".join(differences)
            )
        _ = self._places

    @property
    def tokens_max(self) -> int | float:
        """Tokens of the longest sequence that the model was made for."""
        places = self.config.get("max_position_embeddings") or math.inf
        # What the key counts is without linear scaling, where that is added later.
        is_linear = self.decoder.rope_scaling == "linear"
        return places * self.decoder.rope_factor if is_linear else places

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape, by its name in a plain text model."""
        return {name: file.shapes[own] for name, (file, own) in self._places.items()}

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, read where it is indexed."""
        file, own = self._places[name]
        return file.tensor(own)

    @functools.cached_property
    def _places(self) -> dict[str, tuple[SafetensorsFile, str]]:
        places = {}
        for path in self._files:
            file = SafetensorsFile(path)
            for own in file.shapes:
                name = self._plain(own)
                if name is None:
                    continue
                if name in places:
                    raise ValueError(f"tensor {name} must be in one file, got two")
                places[name] = (file, own)
        return places

    def _plain(self, own: str) -> str | None:
        """The name in a plain text model, or None where it is no part of one."""
        if own.endswith(_IGNORED):
            return None
        if self._is_part:
            if own.removeprefix("model.").startswith(_NOT_TEXT):
                return None
            for prefix, plain in _TEXT_PREFIXES:
                if own.startswith(prefix):
                    return plain + own.removeprefix(prefix)
        return own


def _check_unquantised(path: pathlib.Path, *configs: Mapping[str, Any]) -> None:
    """Packed integers and their scales are no weights that we could train."""
    for config in configs:
        found = config.get("quantization_config")
        if found:
            method = found.get("quant_method") if isinstance(found, dict) else found
            raise ValueError(
                f"{path}: quantization_config must be absent, got {method!r}; take the "
                "model's folder in bfloat16 or float32, or a GGUF file of it with "
                "Weights.source = 'gguf'"
            )


def _file_names(path: pathlib.Path) -> list[str]:
    """Safetensors files of the folder, all of them there."""
    if (path / INDEX).is_file():
        weight_map = _read_json(path, INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{path / INDEX} must have a weight_map, got {weight_map}")
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise ValueError(
                f"{path} must have the {len(names)} files of {INDEX}, got none of "
                f"{', '.join(missing[:3])}{' ...' * (len(missing) > 3)}"
            )
        return names
    if not (path / SINGLE).is_file():
        raise ValueError(
            f"{path} must have {SINGLE} or {INDEX}, got neither; transformers writes "
            "them from older files: from_pretrained, then save_pretrained"
        )
    return [SINGLE]


def _read_json(path: pathlib.Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((path / name).read_text())
    except OSError:
        if not path.is_dir():
            raise ValueError(
                f"{path} must be a Hugging Face folder on this machine, got none; "
                f"fetch a model of the hub first: hf download {path} --local-dir DIR"
            ) from None
        raise ValueError(
            f"{path} must be a Hugging Face folder, got no {name} in it"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path / name} must be JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path / name} must hold an object, got {found!r}")
    return found
