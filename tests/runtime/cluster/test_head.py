"""Ray's head, without Ray."""

import os
import subprocess
import sys

import pytest

from jigsaw_jax.runtime.cluster import head
from jigsaw_jax.runtime.crew import ClusterLostError
from tests.runtime.test_local import make_train


def test_a_daemon_that_has_ended_ends_the_run_also_while_nobody_has_asked_for_it():
    found = head.Head("local:2", make_train())
    found.check()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = head._name_of(child.pid)
    assert name.startswith("python")
    found._daemons = {name: child.pid}
    found.check()
    child.kill()
    # Ended and not waited for: it is there still, as a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ClusterLostError, match=f"its {name}, process {child.pid}"):
        found.check()
    child.communicate()
    with pytest.raises(ClusterLostError):
        found.check()


def test_a_ray_that_does_not_start_in_time_is_told_in_one_line(monkeypatch):
    ray = pytest.importorskip("ray")

    def late(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    found = head.Head("local:2", make_train())
    with pytest.raises(head.ClusterError, match="local:2: The current node timed out"):
        found.open()
    assert found._temporary is not None
    assert not os.path.exists(found._temporary)


def test_an_error_of_our_own_on_the_way_to_ray_stays_what_it_is(monkeypatch):
    ray = pytest.importorskip("ray")

    def wrong(**_):
        raise KeyError("ours")

    monkeypatch.setattr(ray, "init", wrong)
    with pytest.raises(KeyError, match="ours"):
        head.Head("local:2", make_train()).open()
