"""The tokenizers of SmolLM2 and Gemma 3 give the ids of their references."""

import pytest

from tests.parity import tokens


@pytest.mark.slow
@pytest.mark.parametrize("family", tokens.SOURCES)
def test_ids_are_those_of_the_reference(family):
    if not tokens.is_here(family):
        pytest.skip(f"{tokens.SOURCES[family]} is not here")
    assert tokens.disagreements(family) == []


def test_texts_hold_what_they_are_there_for():
    golden = tokens.stored()
    joined = "".join(golden["texts"])
    for part in ("\t", "   ", "\r\n", "<|im_end|>", "<end_of_turn>", "\u200d"):
        assert part in joined
    for family in tokens.SOURCES:
        assert len(golden[family]["ids"]) == len(golden["texts"])
