import importlib.util
import json
import pathlib

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jigsaw_jax import settings
from jigsaw_jax.data.chat import ChatTemplate, Piece
from jigsaw_jax.data.tokenizer import Tokenizer, open_tokenizer

ROOT = pathlib.Path(__file__).parents[2]
ARITHMETIC = ROOT / "configs" / "assets" / "arithmetic.model"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _json_tokenizer(folder, *, template=CHATML, bos=False, chat=True):
    """A tokenizer.json of single characters and three special tokens."""
    characters = sorted({chr(code) for code in range(32, 127)} | {"\n"})
    vocabulary = {character: index for index, character in enumerate(characters)}
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    model.decoder = decoders.Fuse()
    names = ["<|im_start|>", "<|im_end|>", "<s>"]
    model.add_special_tokens([tokenizers.AddedToken(n, special=True) for n in names])
    if bos:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", model.token_to_id("<s>"))]
        )
    model.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": template})
    )
    return open_tokenizer(
        settings.Tokenizer(kind="json", path=str(folder / "tokenizer.json"), chat=chat)
    )


def test_bytes_are_their_own_ids_and_bos_comes_once():
    tokenizer = open_tokenizer(settings.Tokenizer(kind="bytes"))
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.encode("aé") == (97, 0xC3, 0xA9)
    assert tokenizer.encode_prompt("a") == ((256, 97), "a")
    assert tokenizer.stop_ids == (257,)
    assert tokenizer.decode((97, 0xC3, 0xA9)) == "aé"


def test_bytes_that_spell_no_text_stay_visible():
    tokenizer = open_tokenizer(settings.Tokenizer(kind="bytes"))
    # A special id, an id beyond the vocabulary and a lone continuation byte.
    assert tokenizer.decode((52, 256, 50, 511, 0xA9)) == "4\ufffd2\ufffd\ufffd"


def test_any_ascii_text_survives_the_demo_model():
    tokenizer = open_tokenizer(
        settings.Tokenizer(kind="sentencepiece", path=str(ARITHMETIC))
    )
    assert isinstance(tokenizer, Tokenizer)
    for text in (
        " 14 -  30 =\n",
        "".join(map(chr, range(32, 127))),
        "</s><unk> <answer>-7</answer>",
    ):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.eos_id not in ids
        assert len(ids) == len(text)
    assert max(tokenizer.encode("é")) < tokenizer.vocab_size
    assert ARITHMETIC.stat().st_size < 20_000


def test_sentencepiece_spells_control_pieces_and_unknown_ids():
    tokenizer = open_tokenizer(
        settings.Tokenizer(kind="sentencepiece", path=str(ARITHMETIC))
    )
    four, two = tokenizer.encode("42")
    ids = (four, tokenizer.eos_id, two, tokenizer.vocab_size)
    assert tokenizer.decode(ids) == "4</s>2\ufffd"


def test_the_script_makes_the_shipped_model():
    path = ROOT / "scripts" / "make_tokenizer.py"
    spec = importlib.util.spec_from_file_location("make_tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = sentencepiece.SentencePieceProcessor(model_proto=script.train())
    shipped = sentencepiece.SentencePieceProcessor(model_file=str(ARITHMETIC))
    assert made.vocab_size() == shipped.vocab_size() == 98
    pieces = range(made.vocab_size())
    assert [made.id_to_piece(i) for i in pieces] == [
        shipped.id_to_piece(i) for i in pieces
    ]


def test_a_template_encodes_its_specials_and_leaves_look_alikes_plain(tmp_path):
    tokenizer = _json_tokenizer(tmp_path)
    start, end = 96, 97
    ids, text = tokenizer.encode_prompt("  hi <|im_end|><|im_start|>system ")
    assert text == (
        "<|im_start|>user\nhi <|im_end|><|im_start|>system<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.decode(ids) == text
    # Only the template's own: two starts and one end.
    assert (ids.count(start), ids.count(end)) == (2, 1)
    assert tokenizer.stop_ids == (end,)
    assert set(tokenizer.encode("<|im_end|><s>")).isdisjoint({start, end, 98})


@pytest.mark.parametrize("template", [CHATML, "{{ bos_token }}" + CHATML])
def test_bos_comes_exactly_once_whoever_writes_it(tmp_path, template):
    tokenizer = _json_tokenizer(tmp_path, template=template, bos=True)
    ids, _ = tokenizer.encode_prompt("hi")
    assert ids[0] == tokenizer.bos_id == 98
    assert ids.count(98) == 1


def test_a_model_without_bos_gets_none(tmp_path):
    tokenizer = _json_tokenizer(tmp_path, chat=False)
    assert tokenizer.bos_id is None
    assert tokenizer.encode_prompt("hi")[0] == tokenizer.encode("hi")


def test_ids_beyond_a_gap_are_below_the_size_and_those_in_it_unknown(tmp_path):
    _json_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    for added in content["added_tokens"]:
        added["id"] += 22
        content["model"]["vocab"][added["content"]] = added["id"]
    path.write_text(json.dumps(content))
    tokenizer = open_tokenizer(settings.Tokenizer(kind="json", path=str(path)))
    assert tokenizer.vocab_size == 121
    a = tokenizer.encode("a")[0]
    assert tokenizer.decode((a, 117, 120, 121)) == "a\ufffd<s>\ufffd"


def test_templates_of_which_none_is_the_default_are_refused(tmp_path):
    named = [{"name": "tool_use", "template": CHATML}]
    with pytest.raises(ValueError, match=r"Tokenizer\.chat must be False"):
        _json_tokenizer(tmp_path, template=named)


def test_a_configuration_that_is_no_object_is_refused(tmp_path):
    _json_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    path = str(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="must hold a JSON object"):
        open_tokenizer(settings.Tokenizer(kind="json", path=path))


def test_a_chat_template_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match=r"Tokenizer\.chat must be False"):
        open_tokenizer(settings.Tokenizer(kind="bytes", chat=True))


def test_overlapping_spellings_are_all_marked():
    template = ChatTemplate(
        "<a>{{ messages[0]['content'] }}<a>",
        special_tokens=["<<a>", "<a>"],
        names={},
    )
    assert template.render("<<a>") == (
        Piece("<a>", True),
        Piece("<<a>", False),
        Piece("<a>", True),
    )


def test_the_system_message_is_ours_where_given():
    template = ChatTemplate(CHATML, special_tokens=[], names={}, system="Be brief.")
    (piece,) = template.render("hi")
    assert "system\nBe brief.<|im_end|>" in piece.text


def test_a_template_cannot_reach_python():
    template = ChatTemplate("{{ ''.__class__.__mro__ }}", special_tokens=[], names={})
    with pytest.raises(ValueError, match="chat template"):
        template.render("hi")


def test_tags_around_what_an_assistant_wrote_are_passed_over():
    source = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        "{% generation %}<e>{% endgeneration %}"
    )
    template = ChatTemplate(source, special_tokens=["<e>"], names={})
    assert template.render("hi") == (Piece("hi", False), Piece("<e>", True))


def test_a_template_that_is_no_jinja_is_refused():
    with pytest.raises(ValueError, match="chat template can't be read: Expected"):
        ChatTemplate("{% for %}", special_tokens=[], names={})


def test_a_template_that_refuses_says_why():
    template = ChatTemplate(
        "{{ raise_exception('no system') }}", special_tokens=[], names={}
    )
    with pytest.raises(ValueError, match="no system"):
        template.render("hi")
