"""What runs on a TPU VM's host, with stand-ins for gcloud, Ray and Python there."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_until

HOST = pathlib.Path(__file__).parents[2] / "launch" / "gcloud" / "host.sh"
# Copies as `gcloud storage rsync` does, between folders; gs:// is a folder here.
GCLOUD = """
import json, pathlib, re, shutil, sys
home = pathlib.Path(sys.argv[1])
words = sys.argv[2:]
with (home / "gcloud.log").open("a") as log:
    log.write(json.dumps(words) + "\\n")
def place(name):
    if name.startswith("gs://"):
        return home / "bucket" / name[5:].removesuffix("/**")
    return pathlib.Path(name)
if words[1] == "ls":
    if not place(words[2]).exists():
        sys.exit("ERROR: (gcloud.storage.ls) One or more URLs matched no objects.")
    sys.exit(0)
source, target = map(place, [word for word in words[2:] if word[:2] != "--"])
skip = next((w.split("=", 1)[1] for w in words if w.startswith("--exclude=")), "^$")
own = {p.relative_to(source) for p in source.rglob("*") if p.is_file()}
for name in sorted(own):
    if not re.match(skip, str(name)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)
if "--delete-unmatched-destination-objects" in words:
    for path in [p for p in target.rglob("*") if p.is_file()]:
        if path.relative_to(target) not in own:
            path.unlink()
"""
# Stands for `python -m jigsaw_jax.main`: makes a run folder, goes on, ends on SIGTERM.
MAIN = """
import json, pathlib, signal, sys, time
words = sys.argv[sys.argv.index("jigsaw_jax.main") + 1:]
run = pathlib.Path(words[words.index("--run_dir") + 1])
before = (run / "metrics.jsonl").read_text() if run.exists() else ""
(run / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
(run / "checkpoints" / "saving-2").mkdir(exist_ok=True)
(run / "checkpoints" / "saving-2" / "half").write_text("x")
(run / "config.gin").write_text("a")
(run / "run.lock").write_text("{}")
(run / "metrics.jsonl").write_text(before + "line\\n")
(run / "checkpoints" / "step-1" / "whole").write_text("x")
(run / "words.json").write_text(json.dumps(words))
code = int(words[words.index("--code") + 1]) if "--code" in words else None
def stop(*_):
    (run / "checkpoints" / "step-2").mkdir()
    (run / "checkpoints" / "step-2" / "whole").write_text("x")
    # As main does: it has ended well, and says that it is not done.
    (run / "summary.json").write_text(json.dumps({"is_stopped": True}))
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
if code is None:
    time.sleep(60)
sys.exit(code)
"""


class Host:
    """A home folder with stand-ins; `run` calls host.sh in it."""

    def __init__(self, home):
        self.home = home
        self.package = home / "jigsaw_jax"
        (home / ".ray").mkdir()
        (home / "gcloud.py").write_text(GCLOUD)
        (home / "main.py").write_text(MAIN)
        python = f'exec {sys.executable} -I -S {home}/main.py "$@"'
        self.program("jigsaw_jax/.venv/bin/python", python)
        self.program("jigsaw_jax/.venv/bin/ray", f'echo "$@" >> {home}/ray.log')
        self.program("bin/hostname", "echo 10.0.0.5 172.17.0.1")
        self.program("bin/pgrep", f"test -e {home}/$2")
        # The second of three hosts.
        self.program(
            "bin/curl",
            'case "$*" in *endpoints) echo u:u:10.0.0.4,u:u:10.0.0.5,u:u:10.0.0.6 ;; '
            "*number) echo 1 ;; esac",
        )
        self.program(
            "bin/gcloud", f'exec {sys.executable} -I -S {home}/gcloud.py {home} "$@"'
        )
        (home / "host.sh").write_text(HOST.read_text())

    def program(self, name, line):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def run(self, *words, stop_s="60"):
        environment = os.environ | {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin{os.pathsep}{os.environ['PATH']}",
            "JIGSAW_POLL_S": "0",
            "JIGSAW_STOP_S": stop_s,
        }
        return subprocess.run(
            ["bash", HOST, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def state(self):
        return self.run("state", "demo").stdout.strip()

    def wait(self, state):
        wait_until(lambda: self.state() == state, 120.0)

    def bucket(self):
        folder = self.home / "bucket" / "b" / "demo"
        return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def host(tmp_path):
    one = Host(tmp_path)
    yield one
    one.run("stop")


@pytest.mark.slow
def test_a_run_is_started_once_stopped_and_copied(host):
    assert host.state() == "none"
    words = ("demo", "gs://b/demo", "1", "--set", "a = 'b c'")
    assert host.run("start", *words).returncode == 0
    assert host.state() == "running"
    assert "runs already" in host.run("start", *words).stderr
    run = host.package / "runs" / "demo"
    wait_until(lambda: "checkpoints/step-1/whole" in host.bucket(), 120.0)
    assert json.loads((run / "words.json").read_text()) == [
        *("--set", "a = 'b c'", "--run_dir", str(run), "--cluster", "auto")
    ]
    host.run("stop")
    assert host.state() == "ended 143"
    assert host.run("states").stdout == "demo ended 143\n"
    # What it saved on its way out is in the bucket, half a checkpoint is not.
    assert host.bucket() == {
        "config.gin",
        "metrics.jsonl",
        "run.lock",
        "summary.json",
        "words.json",
        "checkpoints/step-1/whole",
        "checkpoints/step-2/whole",
    }


@pytest.mark.slow
def test_a_new_host_goes_on_from_the_bucket_and_never_empties_it(host):
    kept = host.home / "bucket" / "b" / "demo"
    (kept / "checkpoints" / "step-9").mkdir(parents=True)
    (kept / "checkpoints" / "step-9" / "whole").write_text("x")
    (kept / "config.gin").write_text("a")
    (kept / "metrics.jsonl").write_text("old\n")
    host.run("start", "demo", "gs://b/demo", "1", "--code", "0")
    host.wait("ended 0")
    run = host.package / "runs" / "demo"
    assert (run / "metrics.jsonl").read_text() == "old\nline\n"
    assert "checkpoints/step-9/whole" in host.bucket()


@pytest.mark.slow
def test_a_checkpoint_that_goes_while_it_is_copied_is_not_copied_in_part(host):
    host.program("bin/cp", 'case "$1" in -al) exit 1 ;; esac; exec /bin/cp "$@"')
    host.run("start", "demo", "gs://b/demo", "1", "--code", "0")
    host.wait("ended 1")
    assert host.bucket() == set()
    assert "is on this host alone" in host.run("log", "demo", "5").stdout


@pytest.mark.parametrize("broken", ["ls", "rsync"])
def test_a_bucket_that_can_t_be_read_is_not_taken_for_empty(host, broken):
    kept = host.home / "bucket" / "b" / "demo"
    kept.mkdir(parents=True)
    (kept / "config.gin").write_text("a")
    (kept / "metrics.jsonl").write_text("old\n")
    whole = (host.home / "bin" / "gcloud").read_text()
    # `rsync` breaks off when it has copied a file.
    host.program(
        "bin/gcloud",
        f'if [ "$2" = {broken} ]; then echo "ERROR: (gcloud) no route" >&2; '
        'if [ "$2" = rsync ]; then echo a > "$5/config.gin"; fi; exit 1; fi\n'
        + whole.partition("\n")[2],
    )
    host.run("start", "demo", "gs://b/demo", "1", "--code", "0")
    host.wait("ended 1")
    assert host.bucket() == {"config.gin", "metrics.jsonl"}
    assert not (host.package / "runs" / "demo" / "words.json").exists()
    (host.home / "bin" / "gcloud").write_text(whole)
    host.run("start", "demo", "gs://b/demo", "1", "--code", "0")
    host.wait("ended 0")
    run = host.package / "runs" / "demo"
    assert (run / "metrics.jsonl").read_text() == "old\nline\n"


def test_another_process_with_a_run_s_number_is_not_the_run(host):
    runs = host.package / "runs"
    runs.mkdir()
    (runs / "demo.pid").write_text(f"{os.getpid()}\n")
    assert host.state() == "none"


@pytest.mark.slow
def test_a_run_that_hangs_does_not_keep_the_slices(host):
    deaf = MAIN.replace("signal.signal(signal.SIGTERM, stop)", "")
    deaf = deaf.replace(
        "import json", "import signal; signal.signal(15, 1)\nimport json"
    )
    (host.home / "main.py").write_text(deaf)
    host.run("start", "demo", "", "1")
    (host.package / ".installed").write_text("r1\n")
    assert host.run("busy").stdout == "r1\n"
    host.wait("running")
    done = host.run("stop", stop_s="2")
    assert done.returncode == 1
    assert "did not end" in done.stderr
    main = host.package / "runs" / "demo.pid"
    os.killpg(int(main.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_the_log_of_the_last_run_is_shown_where_none_is_named(host):
    assert "no run was started" in host.run("log", "", "5").stderr
    runs = host.package / "runs"
    runs.mkdir()
    for name, at_s in (("a", 10), ("b", 30), ("c", 20)):
        (runs / f"{name}.log").write_text(f"of {name}\n")
        os.utime(runs / f"{name}.log", (at_s, at_s))
    assert host.run("log", "", "5").stdout == "of b\n"


@pytest.mark.slow
def test_a_copy_holds_logs_before_checkpoints_and_deletes_last(host):
    host.run("start", "demo", "gs://b/demo", "600", "--code", "3")
    host.wait("ended 3")
    rows = (host.home / "gcloud.log").read_text().splitlines()
    calls = [json.loads(row) for row in rows]
    copies = [call for call in calls if call[1] == "rsync"][-3:]
    assert "--exclude=^checkpoints/.*" in copies[0]
    assert not [word for word in copies[1] if "delete" in word or "exclude" in word]
    assert "--delete-unmatched-destination-objects" in copies[2]


@pytest.mark.slow
def test_a_run_that_can_t_be_copied_does_not_end_well(host):
    host.program("bin/gcloud", "echo matched no objects; exit 1")
    host.run("start", "demo", "gs://b/demo", "1", "--code", "0")
    host.wait("ended 1")
    log = host.run("log", "demo", "5").stdout
    assert "is on this host alone" in log


@pytest.mark.parametrize(
    ("head", "first"),
    [
        ("10.0.0.5", "--head --port=6379 --dashboard-host=127.0.0.1 --no-monitor"),
        ("10.0.0.9", "--address=10.0.0.9:6379"),
    ],
)
def test_ray_binds_to_the_private_address_and_starts_once(host, head, first):
    (host.home / ".ray" / "auth_token").write_text("t")
    assert host.run("ray", "s-0", "sampler", head).returncode == 0
    started = (host.home / "ray.log").read_text().splitlines()[-1]
    assert started == (
        f"start {first} --node-ip-address=10.0.0.5 --disable-usage-stats "
        '--resources={"jigsaw_sampler": 1, "jigsaw_slice:s-0": 3, "jigsaw_host": 2}'
    )
    assert (host.home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    (host.home / "raylet").touch()
    assert "Ray runs here" in host.run("ray", "s-0", "sampler", head).stderr
    # A new head that got the address of the old one has another token.
    (host.home / ".ray" / "auth_token").write_text("t2")
    assert "Ray runs here" not in host.run("ray", "s-0", "sampler", head).stderr
    # A head with another address is another cluster.
    host.run("ray", "s-0", "sampler", "10.0.0.7")
    last = (host.home / "ray.log").read_text().splitlines()[-1]
    assert "--address=10.0.0.7:6379" in last


def test_a_run_s_progress_is_the_updates_it_has_made(host):
    done = host.run("progress", "demo")
    assert (done.stdout.strip(), done.stderr) == ("0", "")
    run = host.package / "runs" / "demo"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}\n{}\n")
    assert host.run("progress", "demo").stdout.strip() == "2"


def test_a_token_lasts_as_long_as_the_head_s_ray(host):
    token = host.home / ".ray" / "auth_token"
    host.program("jigsaw_jax/.venv/bin/python", "date +%N")
    found = set()
    for there in ("", "raylet gcs_server", "gcs_server raylet", "raylet", "gcs_server"):
        for name in ("raylet", "gcs_server"):
            (host.home / name).unlink(missing_ok=True)
        for name in there.split():
            (host.home / name).touch()
        assert host.run("token").returncode == 0
        found.add(token.read_text())
    # Who joined the Ray that has died must join anew, though the address is the same.
    assert len(found) == 3
    assert token.stat().st_mode & 0o777 == 0o600


def test_ray_gives_up_where_no_head_answers(host):
    (host.home / ".ray" / "auth_token").write_text("t")
    host.program("jigsaw_jax/.venv/bin/ray", "exit 1")
    done = host.run("ray", "s-0", "sampler", "10.0.0.9")
    assert done.returncode == 1
    assert "has no tokens" in done.stderr
    assert not (host.home / ".ray" / "joined").exists()


def test_ray_does_not_start_where_the_slice_is_not_known(host):
    (host.home / ".ray" / "auth_token").write_text("t")
    host.program("bin/curl", "exit 22")
    done = host.run("ray", "s-0", "sampler", "10.0.0.5")
    assert done.returncode == 1
    assert "must say which hosts" in done.stderr
    assert (
        not (host.home / "ray.log").exists()
        or "start" not in (host.home / "ray.log").read_text()
    )


def test_a_revision_is_installed_once(host):
    source = host.home / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text("x")
    (host.package / "runs").mkdir()
    (host.package / "of_another_revision.py").touch()
    archive = host.home / "jigsaw_jax.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", source, "."], check=True)
    host.program("jigsaw_jax/.venv/bin/python", f'echo "$@" >> {host.home}/pip.log')
    for revision in ("a1", "a1", "b2"):
        assert host.run("install", revision).returncode == 0
    assert not (host.package / "of_another_revision.py").exists()
    assert (host.package / "runs").exists()
    assert host.run("busy").stdout == ""
    installed = (host.home / "pip.log").read_text().splitlines()
    assert installed == [f"-m pip install --quiet -e {host.package}[tpu,cluster]"] * 2
    assert (host.package / ".installed").read_text() == "b2\n"
    assert (host.package / "pyproject.toml").exists()


def test_an_install_that_broke_off_is_not_taken_for_done(host):
    subprocess.run(
        ["tar", "-czf", host.home / "jigsaw_jax.tar.gz", "-T", "/dev/null"], check=True
    )
    host.program("jigsaw_jax/.venv/bin/python", f'echo "$@" >> {host.home}/pip.log')
    assert host.run("install", "a1").returncode == 0
    host.program("jigsaw_jax/.venv/bin/python", "exit 1")
    assert host.run("install", "b2").returncode != 0
    host.program("jigsaw_jax/.venv/bin/python", f'echo "$@" >> {host.home}/pip.log')
    # What lies there is b2's.
    assert host.run("install", "a1").returncode == 0
    assert len((host.home / "pip.log").read_text().splitlines()) == 2
