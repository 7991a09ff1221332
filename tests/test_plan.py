import importlib.util
import json
import pathlib

import pytest

from jigsaw_jax import plan
from jigsaw_jax.planning import programs

ROOT = pathlib.Path(__file__).parents[1]
TINY = [
    "--gin",
    str(ROOT / "configs/bench/tiny_qwen3.gin"),
    *("--set", "Decoder.scan_layers = True"),
    *("--set", "Decoder.num_layers = 3"),
    *("--set", "Learner.rows = 4"),
    *("--set", "Mesh.fsdp = 4"),
    *("--set", "Mesh.sampler_tensor = 4"),
    *("--set", "Sampler.steps_per_call = 4"),
]
SLICES = ["--sampler_topology", "v5e:2x2", "--learner_topology", "v5e:2x2"]


def test_a_run_that_names_no_slice_is_told_how(capsys):
    assert plan.main(TINY) == 2
    message = capsys.readouterr().err
    assert message.startswith("--sampler_topology must be a generation")
    assert "'v5e:2x4'" in message


def test_without_libtpu_one_line_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    assert plan.main([*TINY, *SLICES]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "pip install 'jigsaw-jax[tpu]'" in message


def test_a_mistyped_option_is_refused_as_everywhere(capsys):
    assert plan.main([*TINY, "--set", "Learner.row = 4"]) == 2
    assert "Learner.rows" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu"
)
def test_a_tiny_run_compiles_for_four_chips_and_the_plan_holds_together(tmp_path):
    path = tmp_path / "plan.json"
    assert plan.main([*TINY, *SLICES, "--json", str(path)]) == 0
    made = json.loads(path.read_text())
    for side in ("sampler", "learner"):
        found = made[side]
        assert 0 < found["hbm_fraction"] < 0.1
        assert found["hbm_bytes"] > 0
        assert found["flops"] > 0
        assert found["bytes"] > 0
        assert found["estimated_cycles"] > 0
        assert found["collectives"]
        assert found["bound"] == max(found["roofline_s"], key=found["roofline_s"].get)
        assert found["tokens_per_s"] > 0
    assert 0 < made["learner"]["mfu"] <= made["learner"]["mfu_roofline"] <= 1
    # Every decode step, and in it every layer, counts.
    runs = [row["runs"] for row in made["sampler"]["collectives"]]
    assert max(runs) >= 4 * 3
    assert made["sampler"]["programs"]["generate"]["open_loops"]
    assert not made["learner"]["programs"]["gradient"]["open_loops"]
    assert all(1 <= ratio < 2 for ratio in made["flops_check"].values())
