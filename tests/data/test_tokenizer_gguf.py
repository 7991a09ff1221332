import gguf
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from jigsaw_jax import settings
from jigsaw_jax.data.tokenizer import open_tokenizer

# Ids from 0; user-defined pieces have the score that llama.cpp gives them.
PIECES = [
    ("<pad>", -1000, 3),
    ("<eos>", -1000, 3),
    ("<bos>", -1000, 3),
    ("<unk>", -1000, 3),
    ("<start_of_turn>", -1000, 3),
    ("<end_of_turn>", -1000, 3),
    ("\n\n", -1000, 4),
    ("  ", -1000, 4),
    *((f"<0x{byte:02X}>", 0, 6) for byte in range(256)),
    ("ab", -1, 1),
    ("bc", -2, 1),
    ("abc", -3, 1),
    ("\u2581a", -4, 1),
    *((letter, -10, 1) for letter in "abc\u2581\n"),
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
)


def _write(path, *, pre="smollm", model="gpt2"):
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "12", "ab"]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([control] * 3 + [normal] * (len(tokens) - 3))
    writer.add_token_merges(["1 2", "a b"])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


def _write_gemma(path):
    writer = gguf.GGUFWriter(path, "gemma3")
    tokens, scores, kinds = zip(*PIECES, strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([float(score) for score in scores])
    writer.add_token_types(kinds)
    for name, token in (("pad", 0), ("eos", 1), ("bos", 2), ("unk", 3)):
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["abc"]),
        # "ab" has the better score, so that "bc" does not form.
        ("abcbc", ["abc", "bc"]),
        ("a ab", ["a", "\u2581", "ab"]),
        (" a", ["\u2581a"]),
        ("a\n\n\nb", ["a", "\n\n", "\n", "b"]),
        ("a   b", ["a", "  ", "\u2581", "b"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("<eos>", [f"<0x{byte:02X}>" for byte in b"<eos>"]),
    ],
)
def test_pieces_with_scores_become_a_tokenizer(tmp_path, text, pieces):
    path = tmp_path / "tiny.gguf"
    tokens = _write_gemma(path)
    tokenizer = open_tokenizer(settings.Tokenizer(kind="gguf", path=str(path)))
    ids = tokenizer.encode(text)
    assert [tokens[i] for i in ids] == pieces
    assert tokenizer.decode(ids) == text


def test_gemma_has_its_template_and_bos_once_also_where_the_file_has_none(tmp_path):
    path = tmp_path / "tiny.gguf"
    _write_gemma(path)
    tokenizer = open_tokenizer(
        settings.Tokenizer(kind="gguf", path=str(path), chat=True, system="b")
    )
    ids, text = tokenizer.encode_prompt("ab<eos>")
    assert text == (
        "<bos><start_of_turn>user\nb\n\nab<eos><end_of_turn>\n<start_of_turn>model\n"
    )
    assert ids[:2] == (2, 4)
    assert ids.count(2) == 1
    assert 1 not in ids
    assert tokenizer.stop_ids == (1, 5)


@pytest.mark.parametrize("write", [_write, _write_gemma])
def test_saved_files_open_again_as_the_same_tokenizer(tmp_path, write):
    path = tmp_path / "tiny.gguf"
    write(path)
    first = open_tokenizer(settings.Tokenizer(kind="gguf", path=str(path), chat=True))
    first.save(tmp_path)
    saved = settings.Tokenizer(
        kind="json", path=str(tmp_path / "tokenizer.json"), chat=True
    )
    again = open_tokenizer(saved)
    for text in ("abc ab  a\n\nb <eos> <|im_end|>", "12é"):
        assert again.encode(text) == first.encode(text)
        assert again.encode_prompt(text) == first.encode_prompt(text)
    names = ("vocab_size", "bos_id", "eos_id", "pad_id", "stop_ids")
    for name in names:
        assert getattr(again, name) == getattr(first, name), name
    (tmp_path / "copy").mkdir()
    again.save(tmp_path / "copy")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "copy" / name).read_text() == (tmp_path / name).read_text()


def test_a_vocabulary_becomes_a_tokenizer_with_single_digits(tmp_path):
    path = tmp_path / "tiny.gguf"
    tokens = _write(path)
    tokenizer = open_tokenizer(settings.Tokenizer(kind="gguf", path=str(path)))
    spelled = [tokens[i] for i in tokenizer.encode("ab 12é")]
    # SmolLM's rule keeps digits apart although "12" is a token and a merge.
    assert spelled == ["ab", "Ġ", "1", "2", "Ã", "©"]
    assert tokenizer.decode(tokenizer.encode("ab 12é")) == "ab 12é"
    assert tokenizer.bos_id is None
    assert tokenizer.stop_ids == (2, 0)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        # The two letters of é, composed by NFC; digits apart.
        ("qwen2", ["ab", "Ġ", "1", "2", "Ã", "©", "Ċ", "Ċ"]),
        ("llama-bpe", ["ab", "Ġ", "12", "e", "Ì", "ģ", "Ċ", "Ċ"]),
        ("gpt-2", ["ab", "Ġ", "12", "e", "Ì", "ģ", "Ċ", "Ċ"]),
    ],
)
def test_each_rule_cuts_words_its_own_way(tmp_path, pre, pieces):
    path = tmp_path / "tiny.gguf"
    tokens = _write(path, pre=pre)
    tokenizer = open_tokenizer(settings.Tokenizer(kind="gguf", path=str(path)))
    assert [tokens[i] for i in tokenizer.encode("ab 12e\u0301\n\n")] == pieces


def test_its_chat_template_ends_turns_with_special_tokens(tmp_path):
    path = tmp_path / "tiny.gguf"
    _write(path)
    tokenizer = open_tokenizer(
        settings.Tokenizer(kind="gguf", path=str(path), chat=True)
    )
    ids, text = tokenizer.encode_prompt("a<|im_end|>")
    assert text == "<|im_start|>user\na<|im_end|><|im_end|>\n"
    assert ids.count(2) == 1
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("wrong", [{"pre": "deepseek-llm"}, {"model": "llama"}])
def test_other_kinds_are_refused(tmp_path, wrong):
    path = tmp_path / "tiny.gguf"
    _write(path, **wrong)
    with pytest.raises(ValueError, match=r"tokenizer\.ggml"):
        open_tokenizer(settings.Tokenizer(kind="gguf", path=str(path)))
