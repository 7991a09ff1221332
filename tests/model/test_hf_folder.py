"""Hugging Face folders: both ways, straight into a sharding, every tensor used.

That the numbers are those of transformers is the matter of tests/parity.
"""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.model import hf_load
from jigsaw_jax.model.families import family_of
from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder
from tests.model.families import (
    FAMILIES,
    GEMMA3,
    LLAMA,
    QWEN3,
    QWEN3_MOE,
    random_params,
)


def _equal(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_gives_back_what_was_written_also_for_scanned_layers(name, tmp_path):
    decoder = FAMILIES[name]
    params = random_params(decoder)
    export_folder(tmp_path / "out", decoder, params)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    folder = Folder(tmp_path / "out")
    assert name.startswith(folder.family.model_type.removesuffix("_text"))
    _equal(load_folder(folder, decoder), params)
    scanned = dataclasses.replace(decoder, scan_layers=True)
    _equal(load_folder(folder, scanned), model.stack(params))
    export_folder(tmp_path / "again", scanned, model.stack(params))
    one, two = (tmp_path / n / "model.safetensors" for n in ("out", "again"))
    assert one.read_bytes() == two.read_bytes()


def test_many_files_have_an_index_and_are_not_larger_than_asked(tmp_path):
    params = random_params(QWEN3)
    export_folder(tmp_path / "out", QWEN3, params, shard_bytes_max=20_000)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 2
    assert {f.name for f in files} == set(index["weight_map"].values())
    sizes = [sum(t.nbytes for t in load_file(f).values()) for f in files]
    assert max(sizes) <= 20_000
    assert sum(sizes) == index["metadata"]["total_size"]
    _equal(load_folder(Folder(tmp_path / "out"), QWEN3), params)

    files[1].unlink()
    with pytest.raises(ValueError, match=f"got none of {files[1].name}"):
        Folder(tmp_path / "out")


@pytest.mark.parametrize("shape", [(1, 8, 1), (1, 4, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("decoder", [QWEN3, QWEN3_MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("scan", [False, True])
def test_leaves_come_straight_into_their_sharding(decoder, shape, scan, tmp_path):
    decoder = dataclasses.replace(decoder, scan_layers=scan)
    params = random_params(decoder)
    export_folder(tmp_path / "out", decoder, params)
    data, fsdp, tensor = shape
    setting = settings.Mesh(data=data, fsdp=fsdp, tensor=tensor, shared=True)
    mesh = meshes.learner_mesh(setting, jax.devices())
    shardings = meshes.sharding_tree(mesh, model.logical_axes(decoder), params)
    placed = load_folder(Folder(tmp_path / "out"), decoder, shardings)
    _equal(placed, params)
    jax.tree.map(lambda x, s: x.sharding == s or pytest.fail(str(s)), placed, shardings)


def test_what_several_devices_hold_is_read_once_and_no_more_than_it(
    tmp_path, monkeypatch
):
    params = random_params(QWEN3)
    export_folder(tmp_path / "out", QWEN3, params)
    setting = settings.Mesh(data=2, fsdp=4, tensor=1, shared=True)
    mesh = meshes.learner_mesh(setting, jax.devices())
    shardings = meshes.sharding_tree(mesh, model.logical_axes(QWEN3), params)
    blocks = []
    read = hf_load._read

    def spy(*args):
        blocks.append(read(*args))
        return blocks[-1]

    monkeypatch.setattr(hf_load, "_read", spy)
    load_folder(Folder(tmp_path / "out"), QWEN3, shardings)
    whole = sum(x.nbytes for x in jax.tree.leaves(params))
    assert sum(block.nbytes for block in blocks) <= whole
    assert (
        max(block.nbytes for block in blocks) <= params["ends"]["embedding"].nbytes // 4
    )


def test_bfloat16_is_stored_and_read_and_cast(tmp_path):
    params = random_params(LLAMA)
    export_folder(tmp_path / "out", LLAMA, params, dtype="bfloat16")
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    narrow = dataclasses.replace(LLAMA, param_dtype="bfloat16")
    folder = Folder(tmp_path / "out")
    _equal(load_folder(folder, narrow), rounded)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    _equal(load_folder(folder, LLAMA), wide)


@pytest.fixture
def written(tmp_path):
    """A folder of the tiny Qwen3 and a function that changes its tensors."""
    folder = tmp_path / "out"
    export_folder(folder, QWEN3, random_params(QWEN3))

    def change(edit):
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")

    return folder, change


def _poison(tensors):
    tensors["model.layers.1.mlp.up_proj.weight"][3, 2] = np.inf


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight must be in the fold"),
        (lambda t: t.update(extra=np.zeros(3, np.float32)), "all be used.*extra"),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(3, np.float32)}),
            r"model.norm.weight must have shape \(24,\), got \(3,\)",
        ),
        (_poison, "layers.1.mlp.up_proj.weight must be finite"),
        (
            lambda t: t.update({"lm_head.weight": np.zeros((62, 24), np.float32)}),
            "lm_head.weight must equal the embedding",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(24, np.int32)}),
            "model.norm.weight must be one of F32",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(written, edit, message):
    folder, change = written
    change(edit)
    with pytest.raises(ValueError, match=message):
        load_folder(Folder(folder), QWEN3)


def test_a_second_copy_of_a_tied_head_and_old_buffers_are_passed_over(written):
    folder, change = written

    def edit(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        tensors[name] = np.zeros(4, np.float32)

    change(edit)
    _equal(load_folder(Folder(folder), QWEN3), random_params(QWEN3))


def test_a_file_that_is_cut_off_is_refused(written):
    folder, _ = written
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"must be whole.*fetch it again"):
        Folder(folder).check(QWEN3)
    path.write_bytes(b"version https://git-lfs")
    with pytest.raises(ValueError, match="must be a safetensors file"):
        Folder(folder).check(QWEN3)


def test_an_index_without_a_map_is_refused(written):
    folder, _ = written
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="must have a weight_map, got None"):
        Folder(folder)


@pytest.mark.parametrize("is_part", [False, True], ids=["text", "part"])
def test_a_quantised_folder_is_refused_with_what_to_take_instead(written, is_part):
    folder, _ = written
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    whole = {"model_type": "gemma3", "text_config": config} if is_part else config
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="quantization_config must be absent, got 'g"):
        Folder(folder)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_exported_files_can_be_read_by_whom_the_umask_lets(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        export_folder(tmp_path / "out", LLAMA, random_params(LLAMA))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("out/*")}
    assert modes == {"config.json": mode, "model.safetensors": mode}


def test_a_decoder_of_another_model_is_refused_with_what_differs(written):
    folder, _ = written
    other = dataclasses.replace(QWEN3, rope_base=1e4, scan_layers=True)
    with pytest.raises(ValueError, match=r"set Decoder.rope_base = 1000000.0 \(is 10"):
        load_folder(Folder(folder), other)


def test_the_text_model_inside_a_larger_one_is_found(tmp_path):
    export_folder(tmp_path / "out", GEMMA3, random_params(GEMMA3))
    config = json.loads((tmp_path / "out/config.json").read_text())
    tensors = load_file(tmp_path / "out/model.safetensors")
    for prefix in ("language_model.model.", "model.language_model."):
        folder = tmp_path / prefix
        folder.mkdir()
        whole = {"model_type": "gemma3", "text_config": config}
        (folder / "config.json").write_text(json.dumps(whole))
        renamed = {k.replace("model.", prefix, 1): v for k, v in tensors.items()}
        renamed["vision_tower.x.weight"] = np.zeros(2, np.float32)
        save_file(renamed, folder / "model.safetensors")
        _equal(load_folder(Folder(folder), GEMMA3), random_params(GEMMA3))


def test_an_export_keeps_what_the_source_has_beside_the_weights(tmp_path):
    params = random_params(QWEN3)
    export_folder(tmp_path / "a", QWEN3, params)
    path = tmp_path / "a/config.json"
    kept = {"eos_token_id": 7, "max_position_embeddings": 99}
    # The type's newer name must not contradict what is stored.
    newer = kept | {"dtype": "float16"}
    path.write_text(json.dumps(json.loads(path.read_text()) | newer))
    (tmp_path / "a/tokenizer.json").write_text("{}")
    export_folder(tmp_path / "b", QWEN3, params, like=tmp_path / "a")
    assert (tmp_path / "b/tokenizer.json").read_text() == "{}"
    wanted = json.loads(path.read_text())
    del wanted["dtype"]
    assert json.loads((tmp_path / "b/config.json").read_text()) == wanted
    with pytest.raises(ValueError, match="new or empty folder"):
        export_folder(tmp_path / "b", QWEN3, params)


def test_a_decoder_of_no_family_is_refused_with_the_reasons():
    odd = dataclasses.replace(QWEN3, qkv_bias=True)
    with pytest.raises(ValueError, match=r"qwen3 can't express Decoder.qkv_bias"):
        family_of(odd)
