"""A run that has ended leaves its policy as a Hugging Face folder."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jigsaw_jax import model, settings
from jigsaw_jax.data.byte_tokenizer import ByteTokenizer
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder
from jigsaw_jax.runtime.export import export_policy
from jigsaw_jax.store.files import StoreError
from tests.runtime.test_local import make_train, run, team_of


def exporting(**store):
    train = make_train(updates=1)
    decoder = dataclasses.replace(train.decoder, lora=settings.Lora(rank=2))
    store = dataclasses.replace(train.store, export="hf", **store)
    return dataclasses.replace(train, decoder=decoder, store=store)


def test_an_earlier_export_gives_way_whole(tmp_path):
    train = exporting()
    for seed in (0, 1):
        params = model.init_params(train.decoder, seed)
        export_policy(train, params, ByteTokenizer(), tmp_path / "export")
    base = {name: params[name] for name in ("ends", "layers")}
    loaded = load_folder(Folder(tmp_path / "export"), train.decoder)
    jax.tree.map(np.testing.assert_array_equal, loaded, base)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    generation = json.loads((tmp_path / "export/generation_config.json").read_text())
    assert generation == {"bos_token_id": 256, "eos_token_id": [257], "pad_token_id": 0}


def test_what_can_not_be_written_is_a_store_error(tmp_path):
    train = exporting()
    params = model.init_params(train.decoder, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot export the policy"):
        export_policy(train, params, ByteTokenizer(), tmp_path / "file" / "export")


@pytest.mark.slow
def test_a_run_exports_its_last_policy_and_again_when_asked_later(tmp_path):
    train = exporting()
    without = dataclasses.replace(train, store=make_train().store)
    run(without, tmp_path)
    assert not (tmp_path / "export").exists()
    # The run has ended; now it only exports.
    learner = team_of(run(train, tmp_path)).parts.learner
    folder = Folder(tmp_path / "export")
    folder.check(train.decoder)
    loaded = load_folder(folder, train.decoder)
    is_same = jax.tree.map(
        lambda x, y: bool(np.array_equal(x, y)), loaded, dict(learner.frozen)
    )
    # Adapters are in the weights that have one, and norms are as they were.
    layer = is_same["layers"]["000"]
    assert layer["mlp_norm"]
    assert not layer["query"]
