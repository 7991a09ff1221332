import dataclasses
import pathlib
from typing import Any

import gin
import pytest

from jigsaw_jax import config, settings
from jigsaw_jax.settings import fields

ROOT = pathlib.Path(__file__).parents[2]
BENCH = str(ROOT / "configs/bench/tiny_qwen3.gin")
HEADER = "from __gin__ import dynamic_registration\nfrom jigsaw_jax import settings\n"


def write(path, text):
    path.write_text(HEADER + text)
    return str(path)


def test_a_file_and_bindings_give_the_run_and_bindings_win():
    train = config.load([BENCH], ["Train.updates = 3", "Decoder.num_layers = 2"]).train
    assert isinstance(train, settings.Train)
    assert (train.updates, train.decoder.num_layers) == (3, 2)
    assert (train.decoder.model_dim, train.sampler.stop_tokens) == (128, (-1,))


def test_a_binding_may_name_a_class_that_the_files_never_bound():
    train = config.load([BENCH], ["Evaluation.samples = 4", "WarmUp.batch = 8"]).train
    assert (train.evaluation.samples, train.warm_up.batch) == (4, 8)


def test_a_later_file_wins_over_an_earlier_one(tmp_path):
    later = write(tmp_path / "later.gin", "settings.Train.updates = 5\n")
    assert config.load([BENCH, later]).train.updates == 5
    assert config.load([later, BENCH]).train.updates == 12


def test_the_operative_text_holds_every_value_and_loads_to_itself(tmp_path):
    template = 'It\'s "so"\n{prompt}\t' + "long words " * 20
    loaded = config.load([BENCH], [f"Data.template = {template!r}"])
    copy = write(tmp_path / "config.gin", "")
    pathlib.Path(copy).write_text(loaded.operative)
    assert config.load([copy]) == loaded
    assert loaded.train.data.template == template
    names = [
        f"settings.{type(part).__name__}.{field.name} ="
        for part in [loaded.train, *vars(loaded.train).values()]
        if dataclasses.is_dataclass(part)
        for field in dataclasses.fields(part)
    ]
    assert len(names) > 80
    assert [name for name in names if name not in loaded.operative] == []


def test_whole_numbers_fit_floats_and_lists_fit_tuples():
    bindings = ["Sampler.temperature = 2", "Sampler.prompt_buckets = [8, 32]"]
    sampler = config.load([BENCH], bindings).train.sampler
    assert sampler.prompt_buckets == (8, 32)
    assert type(sampler.temperature) is float


def test_a_macro_stands_for_its_last_definition(tmp_path):
    text = f"include {BENCH!r}\nLENGTH = 40\nsettings.Learner.row_tokens = 200\n"
    text += "settings.Sampler.prompt_buckets = (%LENGTH,)\n"
    file = write(tmp_path / "run.gin", text)
    assert config.load([file]).train.sampler.prompt_buckets == (40,)
    assert config.load([file], ["LENGTH = 50"]).train.sampler.prompt_buckets == (50,)


def test_a_file_is_found_from_its_includer_and_from_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub/part.gin", "settings.Train.updates = 7\n")
    text = 'include "configs/bench/tiny_qwen3.gin"\ninclude "part.gin"\n'
    run = write(tmp_path / "sub/run.gin", text)
    assert config.load([run]).train.updates == 7


def test_nothing_stays_in_gin_between_loads():
    config.load([BENCH], ["Train.updates = 3"])
    assert gin.config_str() == ""
    with pytest.raises(config.ConfigError):
        config.load([BENCH], ["Train.updates = 0"])
    assert gin.config_str() == ""
    assert config.load([BENCH]).train.updates == 12


REFUSED = {
    "Reward.weights = {'task': 'one'}": "['task'] must be a finite number, got 'one'",
    "Train.updtes = 3": "did you mean Train.updates?",
    "Trian.updates = 3": "did you mean Train.updates?",
    "updates = 3": "updates is never used; did you mean Train.updates?",
    "Train.groups_per_round = 4": "did you mean Pipeline.groups_per_round?",
    "Train.updates = 'x'": "Train.updates must be int, got 'x'",
    "Train.updates = 3.5": "Train.updates must be int, got 3.5",
    "Train.updates = True": "Train.updates must be int, got True",
    "Train.updates = None": "Train.updates must be int, got None",
    "Reward.shuffled = 1": "Reward.shuffled must be bool, got 1",
    "Objective.dual_clip = 'x'": "Objective.dual_clip must be float or None, got 'x'",
    "Sampler.prompt_buckets = 32": "must be tuple[int, ...], got 32",
    "Sampler.prompt_buckets = (8, 32.5)": "must be tuple[int, ...], got (8, 32.5)",
    "Data.options = [1]": "Data.options must be dict, got [1]",
    "Train.decoder = 3": "Train.decoder must be @settings.Decoder(), got 3",
    "Train.decoder = @settings.Data()": "must be @settings.Decoder(), got @settings.D",
    "Train.decoder = @settings.Decoder": "must be @settings.Decoder(), got @settings.D",
    "Train.updates = @settings.Data()": "must be plain, got @settings.Data()",
    "Data.options = {'a': %gin.REQUIRED}": "Data.options must be plain",
    "Train.updates = %gin.REQUIRED": "Train.updates must be chosen by the run",
    "Train.updates = %N": "%N must be defined",
    "Train.updates = 0": "Train.updates must be at least 1, got 0",
    "Pipeline.groups_per_update = 3": "groups_per_round (R) must be a multiple",
    "Train.seed = -1": "Train.seed must be from 0 to 2**31 - 1, got -1",
    "Optimizer.learning_rate = 1e999": "learning_rate must be finite, got inf",
    "Optimizer.b1 = 1": "Optimizer.b1 must be in [0, 1), got 1.0",
    "Mesh.tensor = 3": "Decoder.vocab_size must be a multiple of Mesh.tensor = 3",
    "Mesh.sampler_tensor = 8": "num_heads must be a multiple of Mesh.sampler_tensor",
    "Mesh.fsdp = 16": "Mesh.data x Mesh.fsdp = 16, got 8; take 16",
    "Sampler.stop_tokens = (512,)": "must be ids below Decoder.vocab_size = 512",
    "Sampler.stop_tokens = (-1, 3)": "or (-1,) for none, got (-1, 3)",
    "Sampler.cache = 'heap'": "Sampler.cache must be one of pages, slots, got 'heap'",
    "Sampler.num_pages = 3": "Sampler.cache must be 'pages' where Sampler.num_pages",
    "Sampler.kv_dtype = 'int4'": "kv_dtype must be None or 'int8', got 'int4'",
    "Mesh.sampler_data = 2": "must be 'pages' where Mesh.sampler_data is above 1",
    "Sampler.prompt_buckets = (16,)": "prompt_buckets must be at least 32, got 16",
    "Mesh.data = 3": "Learner.rows must be a multiple of Mesh.data x Mesh.fsdp = 3",
    "Decoder.dtype = bfloat16": "must be gin syntax",
    "Decoder.num_layers = (1,": "must be gin syntax",
    "Decoder.num_layers": "must be gin syntax",
    "a/Train.updates = 3": "scopes are not used here",
    "": "must be one binding",
    "import os": "must be one binding",
}


@pytest.mark.parametrize(("binding", "message"), REFUSED.items())
def test_a_wrong_binding_is_refused_in_one_line_that_quotes_it(binding, message):
    with pytest.raises(config.ConfigError) as caught:
        config.load([BENCH], [binding])
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"--set {binding!r}: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("settings.Train.updtes = 3", "run.gin:4: Train.updtes must be a setting"),
        (
            "settings.Train.updates = 'x'",
            "run.gin:4: Train.updates must be int, got 'x'",
        ),
        ("settings.Train.updates = 0", "run.gin:4: Train.updates must be at least 1"),
        ("settings.Train.updates = x", "run.gin:4: must be gin syntax"),
        ("settings.Train.updates = [", "run.gin:3: must be gin syntax"),
        ("other.Train.updates = 3", "run.gin:4: other.Train must be a settings class"),
        ("from os import path", "run.gin:4: only jigsaw_jax's config and settings"),
        ("include 'nowhere.gin'", "included file nowhere.gin must be an existing file"),
        ("include 'run.gin'", "run.gin: must not include itself"),
        ("A = %B\nB = %A\nsettings.Train.updates = %A", "%A must be defined"),
        ("settings.Train.weights = @settings.Data()", "must be @settings.Weights()"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_with_its_place(tmp_path, line, message):
    file = write(tmp_path / "run.gin", f"include {BENCH!r}\n{line}\n")
    with pytest.raises(config.ConfigError) as caught:
        config.load([file])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_no_file_binds_has_its_default(tmp_path):
    dims = "vocab_size num_layers model_dim hidden_dim num_heads num_kv_heads head_dim"
    text = "".join(f"settings.Decoder.{name} = 2\n" for name in dims.split())
    bare = write(tmp_path / "bare.gin", text)
    sizes: dict[str, Any] = dict.fromkeys(dims.split(), 2)
    decoder = settings.Decoder(**sizes)
    loaded = config.load([bare], ["Train.updates = 3"])
    assert loaded.train == settings.Train(updates=3, decoder=decoder)
    with pytest.raises(config.ConfigError, match=r"^Train\.updates must be chosen"):
        config.load([bare])


def places(cls):
    """The settings classes that stand somewhere in one, itself among them."""
    hints = fields.hints(cls).values()
    parts = [hint for hint in hints if dataclasses.is_dataclass(hint)]
    return [cls.__name__, *(name for part in parts for name in places(part))]


def test_every_settings_class_has_one_place_in_a_run():
    assert sorted(places(settings.Train)) == sorted(settings.__all__)


def test_a_missing_or_unreadable_file_is_refused_with_a_near_name(tmp_path):
    with pytest.raises(config.ConfigError, match=r"mean configs/demo\.gin\?"):
        config.load(["configs/dmo.gin"])
    (tmp_path / "binary.gin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(config.ConfigError, match="must be a readable text file"):
        config.load([str(tmp_path / "binary.gin")])
    with pytest.raises(config.ConfigError, match="must be an existing file"):
        config.load([str(tmp_path)])
