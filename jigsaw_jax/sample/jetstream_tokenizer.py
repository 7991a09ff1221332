"""A tokenizer of ours as JetStream's `Tokenizer`."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

# JetStream puts `bos_id` before every prompt; this one stands for none.
NO_TOKEN = -1


def optional(name: str) -> Any:
    """A module of JetStream's, or None where it or what it needs is absent."""
    try:
        return importlib.import_module(f"jetstream.engine.{name}")
    except ImportError:
        return None


_tokenizer_api = optional("tokenizer_api")
_token_utils = optional("token_utils")
_TokenizerBase: Any = _tokenizer_api.Tokenizer if _tokenizer_api else object


@runtime_checkable
class TextTokenizer(Protocol):
    """What is asked of a tokenizer; those of `jigsaw_jax.data` have it."""

    bos_id: int | None
    eos_id: int
    pad_id: int

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without BOS or EOS."""
        ...

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of ids."""
        ...


class JetStreamTokenizer(_TokenizerBase):
    """A tokenizer of ours as JetStream's `Tokenizer`.

    Args:
      tokenizer: ours.
      stop_tokens: ids that end a completion; the driver returns none of them.
    """

    def __init__(self, tokenizer: TextTokenizer, stop_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_tokens = frozenset(stop_tokens)

    def encode(self, s: str, **kwargs: Any) -> tuple[Any, int]:
        """Padded token ids of plain text, and how many there are before the padding."""
        ids = np.array(self._tokenizer.encode(s), np.int32)
        return _token_utils.pad_tokens(ids, self.bos_id, self.pad_id, **kwargs)

    def decode(self, token_ids: list[int], **_kwargs: Any) -> str:
        """Text of token ids; the driver asks for one at a time."""
        return self._tokenizer.decode(tuple(token_ids))

    @property
    def pad_id(self) -> int:
        """Fills a prompt up."""
        return self._tokenizer.pad_id

    @property
    def eos_id(self) -> int:
        """Ends a text."""
        return self._tokenizer.eos_id

    @property
    def bos_id(self) -> int:
        """Starts a prompt; NO_TOKEN where the model has no such token."""
        bos = self._tokenizer.bos_id
        return NO_TOKEN if bos is None else bos

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The engine's, which may be others than EOS and padding."""
        return self._stop_tokens
