import pathlib

import pytest

from jigsaw_jax import config, evaluate

ROOT = pathlib.Path(__file__).parents[1]
BENCH = str(ROOT / "configs/bench/tiny_qwen3.gin")


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("Data.held_out = 0", "Data.held_out must be at least 1 to evaluate"),
        ("Evaluation.k = (8,)", "Evaluation.k must be between 1 and"),
        ("Train.updtes = 3", "did you mean Train.updates?"),
    ],
)
def test_a_refusal_is_exit_2_and_one_line(tmp_path, binding, message, capsys):
    (tmp_path / "config.gin").write_text(config.load([BENCH]).operative)
    assert evaluate.main(["--run_dir", str(tmp_path), "--set", binding]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert evaluate.main(["--run_dir", str(tmp_path / "none")]) == 2
    assert "must hold a run" in capsys.readouterr().err
