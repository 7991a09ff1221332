"""A run on a JSONL file of programming problems, with programs really run."""

import json
import pathlib

import pytest

from jigsaw_jax import config
from jigsaw_jax.config import places
from jigsaw_jax.runtime.local import LocalRuntime

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_two_updates_train_on_what_programs_print(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    problems = tmp_path / "problems.jsonl"
    tests = {"inputs": [""], "outputs": ["3"]}
    rows = [{"prompt": str(number), "answer": tests} for number in range(8)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # A model of one layer learns by heart to print 3 before the first round.
    bindings = [
        f"Data.path = '{problems}'",
        "Data.held_out = 0",
        "Data.template = '{prompt}'",
        "Decoder.num_layers = 1",
        "Decoder.model_dim = 64",
        "Decoder.hidden_dim = 128",
        "WarmUp.updates = 60",
        "WarmUp.batch = 4",
        "WarmUp.learning_rate = 1e-2",
        r"WarmUp.solution = '```\nprint(3)\n```\n{answer}'",
        "Sampler.slots = 8",
        "Sampler.prompt_buckets = (8,)",
        "Sampler.new_tokens_max = 24",
        "Learner.row_tokens = 96",
        "Train.updates = 2",
        "Pipeline.groups_per_round = 2",
        "Pipeline.groups_per_update = 2",
        "Pipeline.samples_per_group = 4",
        "Pipeline.filter = 'keep'",
        "Evaluation.every = -1",
        "Store.tensorboard = False",
        "Mesh.shared = True",
    ]
    files = ["configs/code_jsonl.gin", "configs/model/tiny_qwen3.gin"]
    loaded = config.load(files, bindings)
    try:
        places.check_isolation(loaded.train.reward)
    except config.ConfigError as error:
        pytest.skip(str(error))
    run = LocalRuntime(
        loaded.train, run_dir=tmp_path / "run", resume=False, operative=loaded.operative
    )
    assert run.run() == 0
    assert "code sandbox: limits, network, files, processes" in capsys.readouterr().out
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 2
    for record in records:
        assert record["reward/missing"] == 0
        assert record["reward/mean"] == record["reward/code"]
        ends = [record[f"reward/code/{name}"] for name in ("none", "wrong", "crash")]
        assert record["reward/code"] + sum(ends) == pytest.approx(1.0)
    assert max(record["reward/code"] for record in records) > 0
