import os
import pathlib
import subprocess
import sys

import jax
import pytest

from jigsaw_jax.runtime import devices
from jigsaw_jax.settings import Mesh

PROGRAM = """
import jax
from jigsaw_jax.runtime.devices import prepare_devices
from jigsaw_jax.settings import Mesh
prepare_devices(Mesh(data=2, sampler_tensor=1))
jax.jit(lambda x: x + 1)(1.0).block_until_ready()
print(len(jax.devices()))
"""


def compile_once(tmp_path):
    environment = {**os.environ, "JIGSAW_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_process_gets_the_devices_of_its_mesh_and_keeps_its_programs(tmp_path):
    assert compile_once(tmp_path).stdout == "3\n"
    programs = [p for p in (tmp_path / "cache").iterdir() if p.name.endswith("-cache")]
    assert len(programs) >= 1


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("JIGSAW_CACHE_DIR", "/somewhere")
    assert devices.cache_dir() == pathlib.Path("/somewhere")
    monkeypatch.delenv("JIGSAW_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert devices.cache_dir() == pathlib.Path("/home/someone/.cache/jigsaw_jax/xla")


def test_a_cache_that_cant_be_written_is_left_alone(tmp_path):
    before = jax.config.values["jax_compilation_cache_dir"]
    (tmp_path / "file").write_text("")
    assert not devices.keep_compilations(tmp_path / "file" / "cache")
    assert not devices.keep_compilations(tmp_path / "file")
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_a_mesh_that_does_not_fit_is_refused():
    assert len(jax.devices()) == 8
    with pytest.raises(ValueError, match="must have at most 8 devices, got 10"):
        devices.prepare_devices(Mesh(data=9))
