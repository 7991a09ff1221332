"""Tokens of a SentencePiece model file."""

import pathlib
import shutil

import sentencepiece

UNKNOWN_ID_TEXT = "\ufffd"


class SentencePieceTokenizer:
    """A SentencePiece model; BOS only where the model defines it.

    Control pieces ("<s>", "</s>") are never matched in text, by SentencePiece's own
    rule; user-defined pieces are.
    """

    def __init__(self, path: str) -> None:
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(f"Tokenizer.path must be a file, got {path!r}")
        self._path = path
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=path)
        except RuntimeError as error:
            raise ValueError(
                f"Tokenizer.path must be a SentencePiece model, got {path!r}: {error}"
            ) from error
        if self._model.eos_id() < 0:
            raise ValueError(f"Tokenizer.path must be a model with EOS, got {path!r}")
        self.vocab_size: int = self._model.vocab_size()
        bos, pad = self._model.bos_id(), self._model.pad_id()
        self.eos_id: int = self._model.eos_id()
        self.bos_id: int | None = bos if bos >= 0 else None
        self.pad_id: int = pad if pad >= 0 else self.eos_id
        self.stop_ids: tuple[int, ...] = (self.eos_id,)
        # Those met so far that are no control pieces: asking takes as long as decoding.
        self._plain: set[int] = set()

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text."""
        return tuple(self._model.encode(text))

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of the ids; control pieces are spelled out."""
        if self._plain.issuperset(ids):
            return self._model.decode(list(ids))
        texts: list[str] = []
        run: list[int] = []
        for token in ids:
            if token < self.vocab_size and not self._model.is_control(token):
                self._plain.add(token)
                run.append(token)
                continue
            texts += [self._model.decode(run), self._spelled(token)]
            run = []
        return "".join([*texts, self._model.decode(run)])

    def encode_prompt(self, text: str) -> tuple[tuple[int, ...], str]:
        """The model's BOS, where it has one, and the tokens of `text`."""
        start = () if self.bos_id is None else (self.bos_id,)
        return start + self.encode(text), text

    def save(self, folder: pathlib.Path) -> None:
        """Copy the model file."""
        shutil.copyfile(self._path, folder / "tokenizer.model")

    def _spelled(self, token: int) -> str:
        if token >= self.vocab_size:
            return UNKNOWN_ID_TEXT
        return self._model.id_to_piece(token)
