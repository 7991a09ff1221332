import json
import pathlib
import resource
import subprocess
import sys

import jax
import pytest

from jigsaw_jax import config, main
from jigsaw_jax.runtime import signals

ROOT = pathlib.Path(__file__).parents[1]
BENCH = str(ROOT / "configs/bench/tiny_qwen3.gin")
# Processor seconds from start to refusal, so that a busy machine fails nothing;
# measured 0.1, and importing jax alone takes 0.6.
REFUSAL_S = 0.4


def run(*args):
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "jigsaw_jax.main", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def children_s():
    """Processor seconds of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gin", BENCH, "--set", "Train.updtes = 3"], "did you mean Train.updates?"),
        (["--gin", BENCH, "--set", "Train.updates = 'x'"], "must be int"),
        (["--gin", "configs/dmo.gin"], "did you mean configs/demo.gin?"),
        (["--gin", BENCH, "--run_dir", "tests"], "must be empty or hold a run"),
        (["--gin", BENCH, "--cluster", "local:1"], "N at least 2"),
    ],
)
def test_a_refusal_is_exit_2_and_one_line(args, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main.main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_refusal_comes_before_jax_is_imported():
    code = (
        "import sys; from jigsaw_jax import main; "
        f"code = main.main(['--gin', {BENCH!r}, '--set', 'Train.updtes = 3']); "
        "sys.exit(code + 10 * ('jax' in sys.modules))"
    )
    before_s = children_s()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert children_s() - before_s < REFUSAL_S


def test_dry_run_prints_what_would_run_as_gin_and_touches_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = ["--gin", BENCH, "--set", "Train.updates = 3", "--dry_run"]
    assert main.main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    for line in (
        "# parameters: 1,049,984",
        "# devices: 2",
        "#   KV cache: 6.3 MB",
        "# prompt buckets: 32 tokens",
        "# decode: 32 slots, cache of 96 tokens",
        "# learner rows x tokens: 8 x 96",
        "# round: 8 groups of 4 samples, 1 updates",
    ):
        assert line in out.splitlines()
    (tmp_path / "again.gin").write_text(out)
    loaded = config.load([BENCH], ["Train.updates = 3"])
    assert config.load([str(tmp_path / "again.gin")]) == loaded


def test_a_dry_run_refuses_what_the_files_hold(tmp_path, capsys):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"prompt": "A) x B) y", "answer": "C"}\n')
    args = ["--gin", BENCH, "--gin", str(ROOT / "configs/task/multiple_choice.gin")]
    args += ["--set", f"Data.path = '{path}'", "--set", "Data.held_out = 0"]
    assert main.main([*args, "--dry_run"]) == 2
    out, err = capsys.readouterr()
    assert "# parameters: 1,049,984" in out
    assert f"{path}:1: answer must be one of the question's options A, B" in err
    assert err.count("\n") == 1
    path.write_text('{"prompt": "A) x B) y", "answer": "B"}\n')
    assert main.main([*args, "--dry_run"]) == 0
    assert "# problems: 1 to train, 0 held out" in capsys.readouterr().out


def test_a_mesh_larger_than_the_machine_is_refused_with_the_fix(tmp_path, capsys):
    # JAX has run in this process, so that no device can be added to its eight.
    assert len(jax.devices()) == 8
    args = ["--gin", BENCH, "--run_dir", str(tmp_path / "run")]
    args += ["--set", "Learner.rows = 16"]
    assert main.main([*args, "--set", "Mesh.data = 16"]) == 2
    err = capsys.readouterr().err
    assert "got 17" in err
    assert "Mesh.shared = True" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_a_signal_while_a_run_starts_is_one_line(
    number, code, tmp_path, capsys, monkeypatch
):
    def interrupted(*_, **__):
        raise signals.SignalledError(number)

    monkeypatch.setattr(main, "_train", interrupted)
    assert main.main(["--gin", BENCH, "--run_dir", str(tmp_path)]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_usage_names_the_options():
    done = run("--help")
    assert done.returncode == 0
    for option in ("--gin", "--set", "--run_dir", "--resume {auto,never}", "--dry_run"):
        assert option in done.stdout


@pytest.mark.slow
def test_a_run_ends_with_its_directory_and_the_same_command_finds_it_done(tmp_path):
    small = [
        "Train.updates = 2",
        "Decoder.num_layers = 1",
        "Sampler.new_tokens_max = 8",
    ]
    small += ["Pipeline.groups_per_round = 2", "Pipeline.groups_per_update = 2"]
    args = ["--gin", BENCH, "--run_dir", tmp_path / "run"]
    args += [part for binding in small for part in ("--set", binding)]
    done = run(*args)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["updates"] == 2
    written = config.load([str(tmp_path / "run/config.gin")])
    assert written == config.load([BENCH], small)
    again = run(*args)
    assert again.returncode == 0, again.stderr
    refused = run(*args, "--set", "Train.seed = 5")
    assert refused.returncode == 2
    assert "whose Train.seed is 0 instead of 5" in refused.stderr
