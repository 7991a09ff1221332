"""Hostile programs in a real cage; every one of them must leave no trace."""

import contextlib
import os
import pathlib
import socket
import threading
import time

import psutil
import pytest

from jigsaw_jax.reward.sandbox.client import Sandbox, describe
from jigsaw_jax.reward.sandbox.exchange import Program
from jigsaw_jax.reward.sandbox.limits import Limits

SECRET = "an-api-key-of-the-run"
LIMITS = Limits(
    cpu_s=1,
    memory_bytes=256 << 20,
    processes=4,
    file_bytes=1 << 20,
    output_bytes=1 << 16,
)


@pytest.fixture(scope="module")
def sandbox():
    os.environ["JIGSAW_TEST_SECRET"] = SECRET
    sandbox = Sandbox(LIMITS)
    yield sandbox
    pid = sandbox._process.pid
    sandbox.close()
    del os.environ["JIGSAW_TEST_SECRET"]
    assert not psutil.pid_exists(pid)


@pytest.fixture
def run(sandbox):
    """Runs a program and checks that nothing of it is left."""
    if sandbox.standing.missing:
        pytest.skip(describe(sandbox.standing))

    def run(source, wall_s=10.0, **fields):
        outcome = sandbox.run(Program(source=source, wall_s=wall_s, **fields))
        assert psutil.Process(sandbox._process.pid).children(recursive=True) == []
        return outcome

    return run


def test_a_script_reads_its_input_and_prints(run):
    outcome = run("print(int(input()) ** 2)", stdin="12\n")
    assert (outcome.ending, outcome.code, outcome.output) == ("exit", 0, "144\n")


def test_a_script_is_main_and_sees_nothing_of_ours(run):
    outcome = run(
        "import os, sys\n"
        "print(__name__, sys.argv, dict(os.environ), sys.flags.no_site, sys.path[0])\n"
        "print(os.getcwd(), os.listdir(), os.getppid(), sorted(globals())[:3])\n"
    )
    first, second = outcome.output.splitlines()
    # The interpreter itself adds LC_CTYPE.
    variables = "{'PYTHONHASHSEED': '0', 'LC_CTYPE': 'C.UTF-8'}"
    assert first.startswith(f"__main__ ['program.py'] {variables} 1 /")
    assert second == "/box [] 1 ['__builtins__', '__doc__', '__loader__']"


def test_the_order_of_a_set_is_the_same_in_every_run(run):
    source = "print(set('abcdefghijklmnop'))"
    assert run(source).output == run(source).output


def test_an_expressions_value_comes_back_with_its_types(run):
    outcome = run(
        "print('noise')\ndef f(a, b): return (a + b, [None, True, 'x'], {1: 2.5}, {3})",
        statements="n = 2",
        expression="f(1, n)",
    )
    assert outcome.output == (
        '["tuple", [["int", 3], ["list", [null, true, ["str", "x"]]], '
        '["dict", [[["int", 1], ["float", 2.5]]]], ["set", [["int", 3]]]]]'
    )


def test_a_program_that_raises_has_a_code_and_no_value(run):
    assert run("1 / 0").code == 1
    outcome = run("def f(): raise SystemExit(0)", expression="f()")
    assert (outcome.code, outcome.output) == (0, "")
    assert run("import os; os._exit(0)", expression="f()").output == ""


FORKS = """
import os, time
count = 0
try:
    while count < 50:
        if not os.fork():
            time.sleep(30)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""


def test_forks_and_threads_are_counted(run):
    assert int(run(FORKS).output) == LIMITS.processes - 1
    threads = (
        "import threading\nn = 0\ntry:\n  while n < 50:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    n += 1\nexcept RuntimeError: print(n)\n"
    )
    assert int(run(threads).output) == LIMITS.processes - 1


def test_a_fork_bomb_ends_at_its_time_with_all_its_children(run):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
    assert run(bomb, wall_s=0.5).ending == "slow"


def test_a_daemon_does_not_outlive_its_program(run):
    daemon = (
        "import os, time\n"
        "if not os.fork():\n"
        "  os.setsid()\n"
        "  if not os.fork(): time.sleep(60)\n"
        "  os._exit(0)\n"
        "print('done')\n"
    )
    started_s = time.monotonic()
    assert run(daemon, wall_s=60.0).output == "done\n"
    assert time.monotonic() - started_s < 40.0


def test_memory_is_limited(run):
    outcome = run("x = bytearray(300 << 20)\nprint(len(x))")
    assert (outcome.code, outcome.output) == (1, "")
    assert run("x = bytearray(100 << 20)\nprint(len(x))").output == f"{100 << 20}\n"


def test_time_is_limited_on_the_wall_and_on_the_processor(run):
    outcome = run("import time\ntime.sleep(60)", wall_s=0.3)
    assert outcome.ending == "slow"
    assert 0.3 <= outcome.wall_s < 40.0
    assert run("while True: pass").ending == "slow"
    drops = "import os, time\nwhile True:\n  os.write(1, b'x')\n  time.sleep(0.001)"
    assert run(drops, wall_s=0.3).ending == "slow"
    closed = "import os, time\nos.close(1)\ntime.sleep(60)"
    assert run(closed, wall_s=0.3).ending == "slow"
    # The signal can be ignored, the kill a second later can't.
    limit = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU))"
    assert run(limit).output == "(1, 2)\n"


def test_a_flood_of_output_is_cut(run):
    assert run("while True: print('x' * 1000)").ending == "flood"
    assert run("import os\nos.write(2, b'x' * 10_000_000)\nprint(1)").output == "1\n"


def test_output_up_to_the_limit_is_whole(run):
    most = LIMITS.output_bytes
    assert len(run(f"print('x' * {most - 1})").output) == most
    assert run(f"print('x' * {most})").ending == "flood"


ATTEMPT = """
import os, pathlib, socket, ctypes
def attempt(action):
    try:
        print("did", action())
    except (OSError, AttributeError) as error:
        print("refused")
"""


def refused(run, *actions, setup=""):
    """Whether every action is refused."""
    calls = "".join(f"attempt(lambda: {action})\n" for action in actions)
    outcome = run(ATTEMPT + setup + calls)
    assert outcome.output == "refused\n" * len(actions), outcome
    return True


def test_nothing_outside_of_its_directory_can_be_written(run, tmp_path):
    os.chmod(tmp_path, 0o777)
    places = ["/tmp/jigsaw-pwned", os.path.expanduser("~/jigsaw-pwned")]
    places += [str(tmp_path / "pwned"), "/jigsaw-pwned", "/usr/jigsaw-pwned"]
    places += ["/dev/shm/jigsaw-pwned", str(pathlib.Path.cwd() / "jigsaw-pwned")]
    assert refused(run, *(f"open({place!r}, 'w').write('x')" for place in places))
    assert not [place for place in places if os.path.exists(place)]


def test_its_directory_is_writable_small_and_empty_each_time(run):
    write = "open('a', 'w').write('x' * 1000)\nprint(open('a').read(3))\n"
    assert run(write).output == "xxx\n"
    assert run("import os\nprint(os.listdir())").output == "[]\n"
    fill = (
        "n = 0\ntry:\n  while n < 50:\n"
        "    open(f'{n}', 'wb', buffering=0).write(bytes(200_000))\n    n += 1\n"
        "except OSError: pass\nprint(n)\n"
    )
    # 1 MB holds five files of 200 kB; the last write may have been cut short.
    assert int(run(fill).output) in (5, 6)


def test_nothing_but_the_interpreter_can_be_read(run, tmp_path):
    (tmp_path / "answers.jsonl").write_text("42")
    for path in [tmp_path, *tmp_path.parents][:-1]:
        if path.owner() == pathlib.Path.home().owner() and path != pathlib.Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o555)
    inside = (f"open({str(tmp_path / 'answers.jsonl')!r}).read()", "os.listdir('/tmp')")
    link = f"os.symlink({str(tmp_path / 'answers.jsonl')!r}, 'link')\n"
    others = ("open('link').read()", "open('/etc/passwd').read()", "os.listdir('/')")
    assert refused(run, *inside, *others, setup=link)


def test_nobodys_environment_can_be_read(run):
    source = (
        "import glob, os\n"
        "texts = [repr(dict(os.environ))]\n"
        "for path in ['/proc/self/environ', *glob.glob('/proc/*/environ')]:\n"
        "  try: texts.append(open(path).read())\n"
        "  except OSError: pass\n"
        "print(texts)\n"
    )
    output = run(source).output
    assert "PYTHONHASHSEED" in output
    assert SECRET not in output


def test_there_is_no_network(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refused(
            run,
            f"socket.create_connection(('127.0.0.1', {port}), 2)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_UNIX)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        )


def test_nobody_else_can_be_signalled(run, sandbox):
    kills = [f"os.kill({pid}, 9)" for pid in (os.getpid(), sandbox._process.pid)]
    # Its parent is the first process of its namespace, which no signal from there ends.
    kill_parent = "try: os.kill(os.getppid(), 9)\nexcept OSError: pass\n"
    assert refused(run, *kills, setup=kill_parent)
    # All that it may signal is itself.
    run("import os\nos.kill(-1, 9)\n")
    assert run("print(1)").output == "1\n"


def test_the_kernels_riskier_calls_are_refused(run):
    libc = (
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(name, *words):\n"
        "  if getattr(libc, name)(*words) < 0: raise OSError(ctypes.get_errno())\n"
    )
    assert refused(
        run,
        "call('unshare', 0x10000000)",
        "call('mount', b'none', b'/box', b'tmpfs', 0, None)",
        "call('ptrace', 16, 1, 0, 0)",
        "call('shmget', 0, 4096, 0o1600)",
        "call('memfd_create', b'x', 0)",
        "call('syscall', 425, 1, 0)",
        "call('chroot', b'.')",
        "os.setuid(0)",
        "os.mknod('device', 0o020666, 0x0101)",
        setup=libc,
    )


def test_only_the_three_standard_descriptors_are_open(run):
    source = (
        "import os\n"
        "def is_open(n):\n"
        "  try: return os.fstat(n) is not None\n"
        "  except OSError: return False\n"
        "print([n for n in range(4000) if is_open(n)])\n"
    )
    assert run(source).output == "[0, 1, 2]\n"


def test_a_huge_input_may_be_left_unread(run):
    outcome = run("print('ok')", stdin="9" * 8_000_000)
    assert (outcome.code, outcome.output) == (0, "ok\n")
    outcome = run("import sys\nprint(len(sys.stdin.read()))", stdin="9" * 8_000_000)
    assert outcome.output == "8000000\n"


def test_garbage_is_only_garbage(run):
    assert run("import os\nos.write(1, bytes(range(256)))").output == "".join(
        map(chr, range(256))
    )
    assert run("print('\\ud800')").code == 1
    for source in ("\x00", "\ud800", "\u202e)(", "(" * 5000, "é" * 3, ""):
        assert run(source).code == (1 if source else 0)


def test_replacing_stdout_replaces_nothing(run):
    outcome = run("import io, sys\nsys.stdout = io.StringIO()\nprint('9')")
    assert (outcome.code, outcome.output) == (0, "")
    closing = "import os\nos.close(1)\nos.close(0)\nos.dup2(2, 1)"
    assert run(closing).output == ""


def test_a_program_ends_with_a_warden_that_is_killed(run):
    assert run("print(1)").code == 0
    sandbox = Sandbox(LIMITS)
    sleeper = Program(source="import time\ntime.sleep(60)", wall_s=60.0)

    def sleep():
        with contextlib.suppress(SystemExit):
            sandbox.run(sleeper)

    thread = threading.Thread(target=sleep)
    thread.start()
    warden = psutil.Process(sandbox._process.pid)
    deadline_s = time.monotonic() + 20
    # Its supervisor, the namespace's first process, and the program itself.
    while len(family := warden.children(recursive=True)) < 3:
        assert time.monotonic() < deadline_s
        thread.join(0.02)
    sandbox._process.kill()
    thread.join(20)
    sandbox.close()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
