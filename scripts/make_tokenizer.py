"""Trains the demo's SentencePiece model: one piece a printable ASCII character.

    python scripts/make_tokenizer.py configs/assets/arithmetic.model

The pieces are <unk>, </s>, newline, space and every printable ASCII character, 98 in
all, so that any ASCII text encodes and decodes exactly; anything else is <unk>. There
is no BOS, no dummy prefix and no normalisation. Digits come first because the training
text, arithmetic in the words of chain_sum, has most of them. The same version of
sentencepiece always writes the same bytes.
"""

import io
import itertools
import pathlib
import string
import sys

import sentencepiece

PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F))
CONTROL_PIECES = 2


def sentences() -> list[str]:
    """The training text: small sums and differences, and every character once."""
    pairs = itertools.product(range(0, 100, 3), range(0, 100, 7))
    sums = [f"{a} + {b} = {a + b}; {b} - {a} = {b - a}" for a, b in pairs]
    return [*sums, string.ascii_letters, PRINTABLE]


def train() -> bytes:
    """The serialised model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()),
        model_writer=model,
        model_type="char",
        # The space is the piece U+2581 and stands in PRINTABLE already.
        vocab_size=CONTROL_PIECES + 1 + len(PRINTABLE),
        character_coverage=1.0,
        user_defined_symbols=["\n"],
        required_chars=PRINTABLE.strip(),
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        unk_id=0,
        eos_id=1,
        bos_id=-1,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_bytes(train())
