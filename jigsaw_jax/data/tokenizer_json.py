"""Opens a Hugging Face tokenizer.json with the configuration that lies beside it."""

import functools
import json
import pathlib
import shutil
from typing import Any

import tokenizers

from jigsaw_jax import settings
from jigsaw_jax.data.bpe_tokenizer import BpeTokenizer
from jigsaw_jax.data.chat import ChatTemplate


def open_json(tokenizer: settings.Tokenizer) -> BpeTokenizer:
    """The tokenizer of a tokenizer.json file.

    tokenizer_config.json beside it names EOS, BOS and PAD, and holds the chat template
    unless chat_template.jinja does.

    Args:
      tokenizer: settings of kind "json".

    Returns:
      The tokenizer.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it names no EOS, or has no chat template where one is asked for.
    """
    path = pathlib.Path(tokenizer.path or "")
    if not path.is_file():
        raise FileNotFoundError(f"Tokenizer.path must be a file, got {str(path)!r}")
    try:
        model = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises nothing more special.
        raise ValueError(
            f"Tokenizer.path must be a tokenizer.json, got {str(path)!r}: {error}"
        ) from error
    # Text that spells a special token is encoded as plain text.
    model.encode_special_tokens = True
    added = model.get_added_tokens_decoder()
    special = {token.content: i for i, token in added.items() if token.special}
    config = _config(path.parent)
    names = {
        name: text
        for name in ("bos_token", "eos_token", "pad_token")
        if (text := _spelling(config.get(name))) is not None and text in special
    }
    if "eos_token" not in names:
        raise ValueError(
            "tokenizer_config.json must name an eos_token that tokenizer.json marks "
            f"as special, got {config.get('eos_token')!r}"
        )
    template = None
    if tokenizer.chat:
        template = ChatTemplate(
            _template(path.parent, config),
            special_tokens=special,
            names=names,
            system=tokenizer.system,
        )
    return BpeTokenizer(
        model,
        special=special,
        eos_id=special[names["eos_token"]],
        bos_id=_bos(model, special, names),
        pad_id=special.get(names.get("pad_token", "")),
        template=template,
        save=functools.partial(_copy, path),
    )


def _copy(path: pathlib.Path, folder: pathlib.Path) -> None:
    """The files as they are, whatever the name of the tokenizer's own."""
    shutil.copyfile(path, folder / "tokenizer.json")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (path.parent / name).is_file():
            shutil.copyfile(path.parent / name, folder / name)


def _config(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must exist: it says which tokens are EOS and BOS"
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got {found!r}")
    return found


def _template(folder: pathlib.Path, config: dict[str, Any]) -> str:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    if template is None:
        raise ValueError(
            f"Tokenizer.chat must be False: {folder} holds no chat template, got True"
        )
    return template


def _bos(
    model: tokenizers.Tokenizer, special: dict[str, int], names: dict[str, str]
) -> int | None:
    """BOS where the file's own post-processor writes it, as the model was trained."""
    bos = special.get(names.get("bos_token", ""))
    starts = model.encode("", add_special_tokens=True).ids[:1]
    return bos if bos is not None and starts == [bos] else None


def _spelling(entry: Any) -> str | None:
    return entry["content"] if isinstance(entry, dict) else entry
