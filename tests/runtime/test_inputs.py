import dataclasses
import json

import gguf
import numpy as np
import pytest

from jigsaw_jax import settings
from jigsaw_jax.runtime.inputs import RefusedError, open_inputs, preview, prompts_again
from tests.runtime.test_local import make_train


def jsonl_train(tmp_path, answers, **reward):
    path = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"q{i}", "answer": x} for i, x in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = make_train()
    return settings.Train(
        updates=1,
        decoder=base.decoder,
        data=settings.Data(source="jsonl", task="mine", path=str(path), held_out=1),
        reward=settings.Reward(**reward),
        sampler=base.sampler,
        learner=base.learner,
    )


@pytest.mark.parametrize("bad", [0, 3])
def test_an_answer_that_fits_no_reward_is_refused_by_file_and_line(tmp_path, bad):
    answers = ["1", "2", "3", "4"]
    answers[bad] = "many"
    train = jsonl_train(tmp_path, answers, weights={"numeric": 1.0})
    with pytest.raises(RefusedError) as caught:
        open_inputs(train)
    said = str(caught.value)
    assert f"problems.jsonl:{bad + 1}: answer must be a number" in said
    assert "got 'many'" in said
    assert "\n" not in said


def test_all_rows_that_fit_no_reward_are_counted_and_tests_are_read(tmp_path):
    answers = ['["assert f(1) == 2"]', "4", '["assert f(1) =="]', "[]"]
    train = jsonl_train(tmp_path, answers, weights={"code": 1.0}, timeout_s=30.0)
    with pytest.raises(RefusedError, match=r"jsonl:\d: .*'code' \(\d rows are"):
        open_inputs(train)


def test_a_gguf_file_of_another_model_is_refused_with_what_differs(tmp_path):
    base = jsonl_train(tmp_path, ["1", "2"], weights={"numeric": 1.0})
    decoder = dataclasses.replace(base.decoder, qk_norm=True)
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(decoder.num_layers)
    writer.add_embedding_length(decoder.model_dim)
    writer.add_feed_forward_length(decoder.hidden_dim)
    writer.add_head_count(decoder.num_heads)
    writer.add_head_count_kv(decoder.num_kv_heads)
    writer.add_key_length(decoder.head_dim)
    writer.add_rope_freq_base(decoder.rope_base)
    writer.add_layer_norm_rms_eps(decoder.norm_eps)
    shape = (decoder.vocab_size, decoder.model_dim)
    writer.add_tensor("token_embd.weight", np.zeros(shape, np.float16))
    if not decoder.tied_head:
        writer.add_tensor("output.weight", np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = settings.Weights(source="gguf", path=str(path))
    open_inputs(dataclasses.replace(base, decoder=decoder, weights=weights))
    # Nothing in the tensors would show it.
    other = dataclasses.replace(decoder, rope_base=5.0)
    train = dataclasses.replace(base, decoder=other, weights=weights)
    with pytest.raises(RefusedError, match=r"set Decoder.rope_base = .* \(is 5.0\)"):
        open_inputs(train)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RefusedError, match="must be a whole GGUF file"):
        open_inputs(train)


def test_a_data_file_that_has_changed_is_refused_when_a_run_goes_on(tmp_path):
    numbers = [str(number) for number in range(40)]
    before = open_inputs(jsonl_train(tmp_path, numbers, weights={"exact": 1.0}))
    outstanding = [(before.source.prompt(p).uid, p) for p in (3, 4, 50)]
    prompts = prompts_again(before.source, outstanding)
    assert [prompt.uid for prompt in prompts] == [uid for uid, _ in outstanding]
    after = open_inputs(jsonl_train(tmp_path, numbers[:30], weights={"exact": 1.0}))
    with pytest.raises(RefusedError, match="those that the run began with, got 'main"):
        prompts_again(after.source, outstanding)


def test_a_preview_says_what_is_there(tmp_path):
    train = jsonl_train(tmp_path, ["1", "2", "3"], weights={"numeric": 1.0})
    assert preview(train) == [
        "tokenizer: 258 tokens",
        "problems: 2 to train, 1 held out",
        f"first prompt: {open_inputs(train).source.prompt(0).text!r}",
    ]


def test_a_tokenizer_larger_than_the_decoder_is_refused(tmp_path):
    train = jsonl_train(tmp_path, ["1", "2"], weights={"numeric": 1.0})
    decoder = settings.Decoder(
        vocab_size=64,
        num_layers=1,
        model_dim=32,
        hidden_dim=64,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
    )
    small = settings.Train(
        updates=1, decoder=decoder, sampler=train.sampler, learner=train.learner
    )
    with pytest.raises(RefusedError, match="at least the tokenizer's 258, got 64"):
        open_inputs(small)
