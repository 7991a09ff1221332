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
