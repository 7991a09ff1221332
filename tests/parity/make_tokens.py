"""Reference token ids: of the published rules in plain Python, and of transformers.

SmolLM2's reference is GPT-2's byte-level BPE, written out, with digits kept apart: its
tokenizer.json is in no package. Gemma 3's is its tokenizer.json in transformers.
"""

import itertools
import json
import pathlib

import gguf
import regex
import transformers  # pyright: ignore[reportMissingImports]

from jigsaw_jax.settings.paths import gguf_path
from tests.parity import tokens

_WORD = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_DIGITS = regex.compile(r"\p{N}|\P{N}+")


def _byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where that can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in seen}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(seen))
    return letters


def _merged(word: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    """The pieces of a word: the pair of lowest rank merges until none is left."""
    while len(word) > 1:
        pairs = itertools.pairwise(word)
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        out, at = [], 0
        while at < len(word):
            step = 2 if tuple(word[at : at + 2]) == best else 1
            out.append("".join(word[at : at + step]))
            at += step
        word = out
    return word


def smollm2() -> dict:
    """Ids of all texts, and of the question between its turns."""
    fields = gguf.GGUFReader(gguf_path(tokens.SOURCES["smollm2"], name="gguf")).fields
    pieces = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    ids = {piece: index for index, piece in enumerate(pieces)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    letters = _byte_letters()

    def encode(text):
        found = []
        for run in _DIGITS.findall(text):
            for word in _WORD.findall(run):
                spelled = [letters[byte] for byte in word.encode()]
                found += [ids[piece] for piece in _merged(spelled, ranks)]
        return found

    start, end = ids["<|im_start|>"], ids["<|im_end|>"]
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    prompt = []
    for role, content in (("system", system), ("user", tokens.QUESTION)):
        prompt += [start, *encode(f"{role}\n{content}"), end, *encode("\n")]
    prompt += [start, *encode("assistant\n")]
    return {
        "ids": [encode(text) for text in tokens.stored()["texts"]],
        "prompt": prompt,
    }


def gemma3(folder: pathlib.Path) -> dict:
    """Ids of the folder's tokenizer.json, special tokens split."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = folder / "chat_template.jinja"
    # Newer folders have the template in a file of its own.
    source = template.read_text() if template.is_file() else config["chat_template"]
    names = {key: config[key] for key in ("bos_token", "eos_token", "pad_token")}
    loaded = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), **names
    )

    def encode(text):
        return loaded.encode(text, add_special_tokens=False, split_special_tokens=True)

    prompt = loaded.apply_chat_template(
        [{"role": "user", "content": tokens.QUESTION}],
        chat_template=source,
        add_generation_prompt=True,
        tokenize=False,
    )
    return {
        "ids": [encode(text) for text in tokens.stored()["texts"]],
        "prompt": loaded.encode(prompt, add_special_tokens=False),
    }


def write(made: dict) -> list[str]:
    """Store what is new; the families whose stored ids are other ones."""
    golden = tokens.stored()
    differ = [name for name in made if golden.get(name, made[name]) != made[name]]
    golden |= made
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}"
        for name, part in golden.items()
    )
    tokens.STORED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return differ
