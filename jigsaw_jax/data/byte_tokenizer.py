"""Bytes as tokens: ids are byte values, 256 is BOS and 257 is EOS."""

import pathlib

BOS = 256
EOS = 257


class ByteTokenizer:
    """UTF-8 bytes; needs no file and no training."""

    vocab_size: int = 258
    bos_id: int | None = BOS
    eos_id: int = EOS
    pad_id: int = 0
    stop_ids: tuple[int, ...] = (EOS,)

    def encode(self, text: str) -> tuple[int, ...]:
        """The UTF-8 bytes of `text`; a lone surrogate becomes a question mark."""
        return tuple(text.encode("utf-8", errors="replace"))

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of the bytes; ids that are no byte and broken UTF-8 are U+FFFD."""
        # 0xFF occurs in no UTF-8 text, so that each of them becomes one U+FFFD.
        return bytes(i if i < BOS else 0xFF for i in ids).decode(errors="replace")

    def encode_prompt(self, text: str) -> tuple[tuple[int, ...], str]:
        """BOS and the bytes of `text`."""
        return (BOS, *self.encode(text)), text

    def save(self, folder: pathlib.Path) -> None:
        """Nothing: bytes need no file."""
