"""Tokens of a `tokenizers` model, with special tokens and a chat template beside it."""

import pathlib
from collections.abc import Callable, Mapping

import tokenizers

from jigsaw_jax.data.chat import ChatTemplate

UNKNOWN_ID_TEXT = "\ufffd"
# Some models stop at a second token that their file does not call EOS.
STOP_NAMES = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>")


class BpeTokenizer:
    """A fast tokenizer whose `model` must never match a special token in text."""

    def __init__(
        self,
        model: tokenizers.Tokenizer,
        *,
        special: Mapping[str, int],
        eos_id: int,
        bos_id: int | None = None,
        pad_id: int | None = None,
        template: ChatTemplate | None = None,
        save: Callable[[pathlib.Path], None],
    ) -> None:
        self._model = model
        self._special = dict(special)
        self._spelling = {token: text for text, token in special.items()}
        self._template = template
        self._save = save
        # Ids may leave gaps, so their number is no bound.
        self.vocab_size: int = max(model.get_vocab().values()) + 1
        self.bos_id: int | None = bos_id
        self.eos_id: int = eos_id
        self.pad_id: int = eos_id if pad_id is None else pad_id
        others = sorted(special[name] for name in STOP_NAMES if name in special)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([eos_id, *others]))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text."""
        return tuple(self._model.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of the ids; special tokens are spelled out."""
        texts: list[str] = []
        run: list[int] = []
        for token in ids:
            is_known = self._model.id_to_token(token) is not None
            if is_known and token not in self._spelling:
                run.append(token)
                continue
            texts.append(self._model.decode(run, skip_special_tokens=False))
            texts.append(self._spelling.get(token, UNKNOWN_ID_TEXT))
            run = []
        texts.append(self._model.decode(run, skip_special_tokens=False))
        return "".join(texts)

    def save(self, folder: pathlib.Path) -> None:
        """Write the files that transformers and kind "json" read."""
        self._save(folder)

    def encode_prompt(self, text: str) -> tuple[tuple[int, ...], str]:
        """The prompt in its chat template, where there is one, with BOS once."""
        ids: list[int] = []
        if self._template is None:
            ids += self.encode(text)
        else:
            pieces = self._template.render(text)
            for piece in pieces:
                if piece.is_special:
                    ids.append(self._special[piece.text])
                else:
                    ids += self.encode(piece.text)
            text = "".join(piece.text for piece in pieces)
        # Templates often write BOS themselves.
        if self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return tuple(ids), text
