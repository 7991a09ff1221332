"""Rebuilds a tokenizer from the metadata of a GGUF file."""

import functools
import json
import pathlib
from typing import Any

import gguf
import tokenizers
from tokenizers import processors

from jigsaw_jax import settings
from jigsaw_jax.data import gguf_bpe
from jigsaw_jax.data.bpe_tokenizer import BpeTokenizer
from jigsaw_jax.data.chat import ChatTemplate
from jigsaw_jax.data.gemma_template import GEMMA_TEMPLATE
from jigsaw_jax.settings.paths import gguf_path, read_gguf


def open_gguf(tokenizer: settings.Tokenizer) -> BpeTokenizer:
    """The tokenizer inside a GGUF file.

    Args:
      tokenizer: settings of kind "gguf".

    Returns:
      The tokenizer.

    Raises:
      ValueError: the file's tokenizer is of a kind that we do not build, or has no
        chat template where one is asked for.
    """
    path = gguf_path(tokenizer.path or "", name="Tokenizer.path")
    metadata = _Metadata(path)
    model = _model(metadata)
    special = _special(metadata)
    tokens: list[str] = metadata.get("tokens")
    names = {
        f"{name}_token": tokens[index]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if (index := metadata.get(f"{key}_token_id")) is not None
    }
    source = _template(metadata)
    if tokenizer.chat and source is None:
        raise ValueError(
            f"Tokenizer.chat must be False: {path} holds no chat template, got True"
        )
    template = None
    if tokenizer.chat and source is not None:
        template = ChatTemplate(
            source,
            special_tokens=special,
            names=names,
            system=tokenizer.system,
        )
    bos_id = metadata.get("bos_token_id") if metadata.get("add_bos_token") else None
    return BpeTokenizer(
        model,
        special=special,
        eos_id=metadata.get("eos_token_id"),
        bos_id=bos_id,
        pad_id=metadata.get("padding_token_id"),
        template=template,
        save=functools.partial(
            _save,
            model,
            special,
            names=names,
            config={"chat_template": source} if source is not None else {},
            has_bos=bos_id is not None,
        ),
    )


class _Metadata:
    """Entries of a GGUF file, those of its tokenizer by their last name."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._fields = read_gguf(path).fields

    def get(self, name: str) -> Any:
        for prefix in ("tokenizer.ggml.", "tokenizer.", "general."):
            if prefix + name in self._fields:
                return self._fields[prefix + name].contents()
        return None


def _model(metadata: _Metadata) -> tokenizers.Tokenizer:
    kind = metadata.get("model")
    if kind == "gpt2":
        return gguf_bpe.byte_level(
            metadata.get("tokens"),
            metadata.get("merges"),
            metadata.get("token_type"),
            pre=metadata.get("pre"),
        )
    if kind == "llama" and metadata.get("add_space_prefix") is False:
        return gguf_bpe.sentencepiece(
            metadata.get("tokens"),
            metadata.get("scores"),
            metadata.get("token_type"),
            unknown_id=metadata.get("unknown_token_id"),
        )
    raise ValueError(
        'tokenizer.ggml.model must be "gpt2" (byte-level BPE) or "llama" '
        f"(SentencePiece) without a space prefix, got {kind!r} in {metadata.path}; "
        "use Tokenizer.kind = 'json' with the model's tokenizer.json"
    )


def _special(metadata: _Metadata) -> dict[str, int]:
    control = int(gguf.TokenType.CONTROL)
    kinds = enumerate(metadata.get("token_type"))
    tokens = metadata.get("tokens")
    return {tokens[index]: index for index, kind in kinds if kind == control}


def _template(metadata: _Metadata) -> str | None:
    """The file's own template; files of Gemma 3's base models leave it out."""
    own = metadata.get("chat_template")
    is_gemma = str(metadata.get("architecture")).startswith("gemma")
    return GEMMA_TEMPLATE if own is None and is_gemma else own


def _save(
    model: tokenizers.Tokenizer,
    special: dict[str, int],
    folder: pathlib.Path,
    *,
    names: dict[str, str],
    config: dict[str, str],
    has_bos: bool,
) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers reads them."""
    whole = tokenizers.Tokenizer.from_str(model.to_str())
    whole.add_special_tokens(sorted(special, key=special.__getitem__))
    if has_bos:
        bos = names["bos_token"]
        whole.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, special[bos])]
        )
    whole.save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **names,
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(content, indent=2) + "\n")
