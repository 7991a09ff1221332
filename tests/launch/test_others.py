"""The scripts for this machine and for Slurm, and what shellcheck says of all."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LOCAL = ROOT / "launch" / "local" / "run.sh"
SLURM = ROOT / "launch" / "slurm" / "run.sbatch"


def _program(path, line):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _run(words, **environment):
    return subprocess.run(
        words,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_local_hands_its_words_to_main_unchanged(tmp_path):
    _program(tmp_path / "python", "printf '%s|' \"$@\"")
    words = ("--gin", "configs/demo.gin", "--set", "Train.updates = 3")
    done = _run([LOCAL, "--workers", "4", *words], PYTHON=str(tmp_path / "python"))
    assert done.stdout.split("|")[:-1] == [
        *("-m", "jigsaw_jax.main", *words, "--cluster", "local:4")
    ]


def test_local_refuses_and_shows(tmp_path):
    assert _run([LOCAL, "--workers", "0"]).returncode == 2
    missing = str(tmp_path / "none")
    assert "there is no" in _run([LOCAL], PYTHON=missing).stderr
    done = _run([LOCAL, "--dry_run", "--gin", "a b"], PYTHON=sys.executable)
    assert "'a b' '--cluster' 'local:3'" in done.stdout


@pytest.fixture
def slurm(tmp_path):
    log = tmp_path / "log"
    _program(tmp_path / "bin/scontrol", "printf 'n1\\nn2\\nn3\\n'")
    _program(tmp_path / "bin/hostname", "echo 10.0.0.1 172.17.0.1")
    _program(tmp_path / "bin/srun", f'echo "$@" >> {log}; . {tmp_path}/step')
    _program(
        tmp_path / "step",
        """
while [ "${1#--}" != "$1" ]; do shift; done
case "$1" in */ray) exec sleep 60 ;; *) exec "$@" ;; esac""",
    )
    _program(tmp_path / "venv/ray", "exit 0")
    _program(
        tmp_path / "venv/python",
        f"""
case "$1" in -c) exec {sys.executable} "$@" ;; esac
stat -c %a "$RAY_AUTH_TOKEN_PATH" > {tmp_path}/mode
while [ "$(grep -c '/ray start' {log})" -lt 3 ]; do sleep 0.05; done
exit 7""",
    )
    return tmp_path


def test_slurm_starts_ray_on_each_node_and_main_on_the_first(slurm):
    path = f"{slurm}/bin{os.pathsep}{os.environ['PATH']}"
    done = _run(
        [SLURM, "--gin", "a b.gin"],
        PATH=path,
        PYTHON=f"{slurm}/venv/python",
        SLURM_JOB_ID="4242",
        SLURM_JOB_NODELIST="n[1-3]",
        SLURM_SUBMIT_DIR=str(slurm),
    )
    assert done.returncode == 7, done.stderr
    steps = (slurm / "log").read_text().splitlines()
    rays = sorted(line for line in steps if "/ray start" in line)
    assert len(rays) == 3
    assert "--nodelist=n1" in rays[0]
    assert "--head --port=24242 --node-ip-address=10.0.0.1" in rays[0]
    assert all("--address=10.0.0.1:24242" in line for line in rays[1:])
    (main,) = [line for line in steps if "jigsaw_jax.main" in line]
    assert "--nodelist=n1" in main
    assert main.endswith("--gin a b.gin --cluster 10.0.0.1:24242")
    assert (slurm / "mode").read_text().strip() == "600"
    assert not list(slurm.glob(".ray_token*"))


def test_slurm_s_notice_is_for_the_script_and_one_node_is_refused(slurm):
    # Without B: every step would get it, those of Ray too, and the script would not.
    assert "#SBATCH --signal=B:TERM@120" in SLURM.read_text().splitlines()
    _program(slurm / "bin/scontrol", "echo n1")
    done = _run(
        [SLURM, "--gin", "a.gin"],
        PATH=f"{slurm}/bin{os.pathsep}{os.environ['PATH']}",
        PYTHON=f"{slurm}/venv/python",
        SLURM_JOB_ID="4242",
        SLURM_JOB_NODELIST="n1",
        SLURM_SUBMIT_DIR=str(slurm),
    )
    assert done.returncode == 2
    assert "at least 2" in done.stderr


def test_slurm_refuses_to_run_without_an_allocation():
    environment = {k: v for k, v in os.environ.items() if "SLURM" not in k}
    done = subprocess.run(
        [SLURM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "sbatch" in done.stderr


@pytest.mark.slow
def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck", path=pathlib.Path(sys.executable).parent)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; make check runs it")
    scripts = sorted(ROOT.glob("launch/*/*.s*"))
    assert len(scripts) >= 9
    done = _run([shellcheck, "-x", *scripts])
    assert done.returncode == 0, done.stdout
