"""A run over processes, as far as none is needed."""

import pytest

from jigsaw_jax.runtime.cluster import shell
from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir
from tests.runtime.test_local import make_train


def runtime(path):
    return shell.ClusterRuntime(
        make_train(), "local:2", run_dir=path, resume=True, operative=""
    )


def test_a_directory_in_use_is_refused_before_anything_starts(tmp_path, monkeypatch):
    def started(_):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(Head, "open", started)
    other = RunDir(tmp_path)
    other.lock()
    with pytest.raises(StoreError, match="in use by process"):
        runtime(tmp_path).run()
    other.unlock()
    with pytest.raises(AssertionError, match="Ray was started"):
        runtime(tmp_path).run()


class Fleet:
    """Of no processes."""

    def __init__(self, *_, **__):
        pass

    def close(self):
        """Nothing."""


def test_a_start_that_comes_too_late_leaves_the_weights_of_the_other_run(
    tmp_path, monkeypatch
):
    pytest.importorskip("ray")
    other = RunDir(tmp_path)
    folder = tmp_path / "weights"

    def opened(_):
        other.lock()
        folder.mkdir()

    monkeypatch.setattr(Head, "open", opened)
    monkeypatch.setattr(Head, "host", "127.0.0.1")
    monkeypatch.setattr(Head, "close", lambda _: None)
    monkeypatch.setattr("jigsaw_jax.runtime.cluster.fleet.Fleet", Fleet)
    with pytest.raises(StoreError, match="in use by process"):
        runtime(tmp_path).run()
    assert folder.exists()
    other.unlock()
