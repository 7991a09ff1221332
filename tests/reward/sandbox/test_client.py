"""What is refused, and that a probe finds out what does not hold."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from jigsaw_jax import settings
from jigsaw_jax.reward.sandbox.client import (
    IsolationError,
    Sandbox,
    describe,
    require,
)
from jigsaw_jax.reward.sandbox.exchange import Program, Standing
from jigsaw_jax.reward.sandbox.limits import PIECES, REQUIRED, limits_of

ROOT = pathlib.Path(__file__).parents[3]


def _standing(**missing):
    held = tuple(piece for piece in PIECES if piece not in missing)
    return Standing(held=held, missing=missing)


def _reward(isolation):
    return settings.Reward(
        weights={"code": 1.0}, timeout_s=30.0, code_isolation=isolation
    )


@pytest.mark.parametrize("piece", REQUIRED)
def test_strict_refuses_a_missing_piece_in_one_line(piece):
    with pytest.raises(IsolationError) as caught:
        require(_standing(**{piece: "unshare: Not permitted"}), _reward("strict"))
    message = str(caught.value)
    assert f"without {piece} (against " in message
    assert "unshare: Not permitted" in message
    assert "\n" not in message
    assert ("best_effort" in message) == (piece != "limits")


def test_strict_is_content_without_the_second_line_of_defence():
    require(_standing(landlock="not there", seccomp="not there"), _reward("strict"))


def test_best_effort_takes_all_but_a_program_without_limits():
    weak = _standing(network="no", files="no", processes="no")
    require(weak, _reward("best_effort"))
    assert "missing: network (no), files (no)" in describe(weak)
    with pytest.raises(IsolationError, match="user other than root"):
        require(_standing(limits="no"), _reward("best_effort"))


PROBE = """
import pathlib, sys
from jigsaw_jax.reward.sandbox import cage, exchange, execution, kernel, landlock
from jigsaw_jax.reward.sandbox import probe
from jigsaw_jax.reward.sandbox import seccomp, view
from jigsaw_jax.reward.sandbox.limits import Limits

broken = set(sys.argv[1:])
for piece in broken & set(cage._FLAGS):
    cage._FLAGS[piece] = 0
if "landlock" in broken:
    landlock.restrict = lambda **_: None
if "seccomp" in broken:
    seccomp.restrict = lambda: None
kernel.prctl("subreaper", kernel.PR_SET_CHILD_SUBREAPER, 1)
place = cage.Cage(
    pieces=frozenset(),
    limits=Limits(cpu_s=2, memory_bytes=256 << 20, processes=4, file_bytes=1 << 20,
                  output_bytes=1 << 16),
    loader=pathlib.Path(execution.__file__).with_name("inside.py").read_text(),
    python=view.interpreter(),
    readable=view.readable(),
)
standing = probe.probe(place)
print(",".join(standing.held))
# A daemon without a process namespace is found by its parent's number.
import dataclasses
place = dataclasses.replace(place, pieces=frozenset(standing.held))
source = '''
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(60)
    os._exit(0)
'''
execution.execute(exchange.Program(source=source, wall_s=10.0), place)
print(execution._children())
"""


def _held(*broken):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *broken],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.stderr
    held, left = done.stdout.splitlines()
    assert left == "[]"
    return set(held.split(","))


@pytest.fixture(scope="module")
def whole():
    held = _held()
    if held != set(PIECES):
        pytest.skip(f"this machine has only {held}")
    return held


@pytest.mark.parametrize(
    ("broken", "missing"),
    [
        (("processes",), {"processes"}),
        # Sockets stay refused until the filter is gone, too.
        (("network",), set()),
        (("network", "seccomp", "landlock"), {"network", "seccomp"}),
    ],
)
def test_a_piece_without_effect_is_found_and_orphans_die_all_the_same(
    whole, broken, missing
):
    assert _held(*broken) == whole - missing


WEAK = """
import dataclasses, json, os, pathlib
from jigsaw_jax.reward.sandbox import cage, exchange, execution, kernel, probe, view
from jigsaw_jax.reward.sandbox.limits import Limits

def refuse(flags):
    raise OSError(1, "unshare: Operation not permitted")

kernel.unshare = refuse
kernel.prctl("subreaper", kernel.PR_SET_CHILD_SUBREAPER, 1)
place = cage.Cage(
    pieces=frozenset(),
    limits=Limits(cpu_s=2, memory_bytes=256 << 20, processes=4, file_bytes=1 << 20,
                  output_bytes=1 << 16),
    loader=pathlib.Path(execution.__file__).with_name("inside.py").read_text(),
    python=view.interpreter(),
    readable=view.readable(),
)
standing = probe.probe(place)
place = dataclasses.replace(place, pieces=frozenset(standing.held))
source = '''
import os, socket, time
def attempt(action):
    try: print("did", action())
    except OSError: print("refused")
attempt(lambda: open("file", "w").write("x"))
attempt(lambda: open("/etc/passwd").read(1))
attempt(lambda: open("/tmp/jigsaw-pwned", "w"))
attempt(lambda: socket.socket())
print(os.getcwd(), flush=True)
if not os.fork():
    os.setsid()
    time.sleep(60)
'''
outcome = execution.execute(exchange.Program(source=source, wall_s=10.0), place)
*said, directory = outcome.output.splitlines()
left = execution._children()
print(json.dumps([standing.held, said, left, os.path.exists(directory)]))
"""
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.mark.parametrize("user", [0, 65534], ids=["root", "nobody"])
def test_without_namespaces_the_second_line_still_holds(user):
    # Only root can be another user, for whom its own interpreter may be out of reach.
    if os.geteuid() or not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip("needs root and a system Python")
    done = subprocess.run(
        [SYSTEM_PYTHON, "-B", "-c", WEAK],
        cwd="/",
        env={"PYTHONPATH": str(ROOT)},
        user=user,
        group=user,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "ModuleNotFoundError" in done.stderr or "SyntaxError" in done.stderr:
        pytest.skip("that Python can't read this checkout")
    held, said, left, is_left = json.loads(done.stdout)
    if held != ["limits", "landlock", "seccomp"]:
        pytest.skip(f"this machine has only {held}")
    assert said == ["did 1", "refused", "refused", "refused"]
    assert (left, is_left) == ([], False)


def test_where_no_warden_can_start_that_is_said(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(IsolationError, match="warden must start"):
        Sandbox(limits_of(_reward("best_effort")))


def test_a_warden_that_is_gone_ends_its_worker(whole):
    assert whole
    sandbox = Sandbox(limits_of(_reward("strict")))
    sandbox._process.kill()
    with pytest.raises(SystemExit, match="warden is gone"):
        sandbox.run(Program(source="", wall_s=1.0))
    sandbox.close()


def test_a_warden_knows_no_environment_of_the_run(whole):
    # The fixture is there for machines where no warden works.
    assert whole
    code = (
        "import os\n"
        "os.environ['KEY'] = 'secret'\n"
        "from jigsaw_jax import settings\n"
        "from jigsaw_jax.reward.sandbox.client import Sandbox\n"
        "from jigsaw_jax.reward.sandbox.limits import limits_of\n"
        "sandbox = Sandbox(limits_of(settings.Reward()))\n"
        "print(open(f'/proc/{sandbox._process.pid}/environ').read())\n"
        "sandbox.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "PYTHONPATH" in done.stdout
    assert "secret" not in done.stdout
