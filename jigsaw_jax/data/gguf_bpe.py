"""The two kinds of vocabulary in GGUF files, as models of the `tokenizers` library."""

from collections.abc import Mapping, Sequence

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

SPACE = "\u2581"
# How text is cut into words, by llama.cpp's name. {digits} is how many stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{digits}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _cut(digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = tokenizers.Regex(_WORDS.replace("{digits}", digits))
    return pre_tokenizers.Split(pattern, "isolated")


_RULES: Mapping[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [_GPT2],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), _GPT2],
    "qwen2": [_cut(""), _BYTES],
    "llama-bpe": [_cut("{1,3}"), _BYTES],
}


def byte_level(
    tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int], *, pre: str
) -> tokenizers.Tokenizer:
    """Byte-level BPE.

    Args:
      tokens: in the order of their ids.
      merges: two pieces each, with a space between; the first merges first.
      kinds: llama.cpp's type of each token; user-defined ones are found in the text
        before it is cut.
      pre: llama.cpp's name of the rule that cuts text into words.

    Returns:
      The model, without special tokens.

    Raises:
      ValueError: the rule is not one of ours.
    """
    if pre not in _RULES:
        raise ValueError(
            f"tokenizer.ggml.pre must be one of {', '.join(_RULES)}, got {pre!r}; "
            "use Tokenizer.kind = 'json' with the model's tokenizer.json"
        )
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe")
    )
    if pre == "qwen2":
        model.normalizer = normalizers.NFC()
    model.pre_tokenizer = pre_tokenizers.Sequence(_RULES[pre])
    model.decoder = decoders.ByteLevel()
    user = int(gguf.TokenType.USER_DEFINED)
    defined = [x for x, kind in zip(tokens, kinds, strict=True) if kind == user]
    model.add_tokens([tokenizers.AddedToken(x, normalized=False) for x in defined])
    return model


def sentencepiece(
    tokens: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    *,
    unknown_id: int,
) -> tokenizers.Tokenizer:
    """SentencePiece's BPE with byte fallback, as Gemma has it.

    User-defined pieces, such as runs of newlines, are found in the text before
    anything merges.

    Args:
      tokens: in the order of their ids.
      scores: of each; the pair whose whole has the highest merges first.
      kinds: llama.cpp's type of each.
      unknown_id: of the piece for what can't be spelled.

    Returns:
      The model, without special tokens.
    """
    user = int(gguf.TokenType.USER_DEFINED)
    # The file has runs of spaces as they are, where the model has them escaped.
    pieces = [
        token.replace(" ", SPACE) if kind == user else token
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    defined = [i for i, kind in enumerate(kinds) if kind == user]
    # llama.cpp leaves out their scores, which are the highest.
    ranked = np.array(scores)
    ranked[defined] = np.inf
    model = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, ranked.tolist()),
            unk_token=pieces[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    model.normalizer = normalizers.Replace(" ", SPACE)
    model.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    model.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    model.add_tokens(
        [tokenizers.AddedToken(pieces[i], normalized=False) for i in defined]
    )
    return model


def _merges(
    vocabulary: dict[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every pair of pieces whose whole is a piece, the best whole first.

    Pairs of one whole are in the order of their ids, longest left piece first.
    """
    found = []
    for whole, index in vocabulary.items():
        pairs = [
            (whole[:cut], whole[cut:])
            for cut in range(1, len(whole))
            if whole[:cut] in vocabulary and whole[cut:] in vocabulary
        ]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(scores[index], pair) for pair in pairs]
    found.sort(
        key=lambda item: (item[0], len(item[1][0]), len(item[1][1])), reverse=True
    )
    return [pair for _, pair in found]
