"""Text to token ids and back: one small protocol and what opens its kinds."""

import pathlib
from typing import Protocol, runtime_checkable

from jigsaw_jax import settings


@runtime_checkable
class Tokenizer(Protocol):
    """What the rest of the system asks of a tokenizer.

    Text is always plain: the spelling of a special token inside it is encoded as the
    characters it is made of. Only `encode_prompt` writes special tokens.

    Attributes:
      vocab_size: ids are below it.
      bos_id: starts every prompt, or None where the model has no such token.
      eos_id: ends every solution.
      pad_id: fills unused places; never read.
      stop_ids: tokens that end a completion, `eos_id` first.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int
    pad_id: int
    stop_ids: tuple[int, ...]

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without BOS or EOS."""
        ...

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of ids; special tokens are spelled out, unknown ids are U+FFFD.

        They are not dropped: an answer with a special token in its middle must not
        read like one without.
        """
        ...

    def encode_prompt(self, text: str) -> tuple[tuple[int, ...], str]:
        """Token ids of a prompt, and the text that they spell.

        The chat template, where one is in use, is put around `text`; BOS, where the
        model has one, is there exactly once and is not part of the returned text.
        """
        ...

    def save(self, folder: pathlib.Path) -> None:
        """Write the files that a Hugging Face folder has of it; none of bytes."""
        ...


def open_tokenizer(tokenizer: settings.Tokenizer) -> Tokenizer:
    """The tokenizer that the settings describe; heavy imports only where needed.

    Args:
      tokenizer: its kind, file and chat template.

    Returns:
      The tokenizer.

    Raises:
      ValueError: a chat template is asked for and there is none, or the file is not
        of its kind. A missing file is a FileNotFoundError of what opens it.
    """
    if tokenizer.chat and tokenizer.kind in ("bytes", "sentencepiece"):
        raise ValueError(
            f"Tokenizer.chat must be False for kind {tokenizer.kind!r} (it has no "
            "chat template), got True"
        )
    if tokenizer.kind == "bytes":
        from jigsaw_jax.data.byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    assert tokenizer.path is not None
    if tokenizer.kind == "sentencepiece":
        from jigsaw_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer

        return SentencePieceTokenizer(tokenizer.path)
    if tokenizer.kind == "json":
        from jigsaw_jax.data.tokenizer_json import open_json

        return open_json(tokenizer)
    from jigsaw_jax.data.tokenizer_gguf import open_gguf

    return open_gguf(tokenizer)
