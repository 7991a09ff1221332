"""The gcloud scripts against a stand-in for gcloud that logs and answers."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_until

# Each test starts a script or more, and each of these gcloud some twenty times.
pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / "launch" / "gcloud"
WHERE = ("--project", "P", "--zone", "Z")
SLICES = ("--sampler_type", "v5litepod-8", "--learner_type", "v5litepod-8")
LEARNER, SAMPLER = "jigsaw-run-learner-0", "jigsaw-run-sampler-0"
SERVING = "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI"
QUEUE = "compute tpus queued-resources"
# Starts its arguments with Ctrl-C heeded, even where the tests run with it ignored.
# (A function that Popen calls after a fork is refused in a process that runs JAX.)
HEEDING_CTRL_C = (
    "import os, signal, sys;"
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


class Cloud:
    """A pretended project; `run` starts a script in it."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = self.bin / "gcloud"
        stand_in = pathlib.Path(__file__).with_name("stand_in.py")
        program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I -S {stand_in} {folder} "$@"\n'
        )
        program.chmod(0o755)
        self.write(
            queued={},
            nodes={},
            quota={SERVING: {"Z": "16"}},
            types=["v5litepod-8", "v6e-4"],
            states={},
            later={},
            always={},
            ssh={"host.sh state": ["running", "ended 0"]},
            fail={},
        )

    def write(self, **parts):
        (self.folder / "world.json").write_text(json.dumps(parts))

    def world(self):
        return json.loads((self.folder / "world.json").read_text())

    def change(self, **parts):
        self.write(**self.world() | parts)

    def run(self, script, *words):
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [SCRIPTS / script, *WHERE, *words],
            env=os.environ | {"PATH": path, "JIGSAW_POLL_S": "0"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def up(self, *words):
        return self.run("up.sh", *(words or SLICES))

    def calls(self, piece=""):
        """Every call so far that holds `piece`, as one line each."""
        path = self.folder / "log.jsonl"
        rows = path.read_text().splitlines() if path.exists() else []
        lines = [" ".join(json.loads(row)) for row in rows]
        return [line for line in lines if piece in line]

    def forget(self):
        (self.folder / "log.jsonl").unlink(missing_ok=True)


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


def _names(lines, word=3):
    return [line.split()[word + 1] for line in lines]


def test_up_checks_then_asks_then_installs_then_starts_ray_head_first(cloud):
    done = cloud.up()
    assert done.returncode == 0, done.stderr
    kinds = [" ".join(line.split()[:4]) for line in cloud.calls()]
    first_create = kinds.index(f"{QUEUE} create")
    checks = {"compute tpus accelerator-types describe", "beta quotas info list"}
    assert checks <= set(kinds[:first_create])
    assert _names(cloud.calls(f"{QUEUE} create")) == [LEARNER, SAMPLER]
    rays = cloud.calls("host.sh ray")
    assert _names(rays) == [LEARNER, SAMPLER]
    address = cloud.world()["nodes"][LEARNER]["networkEndpoints"][0]["ipAddress"]
    assert all(f" {address} " in f"{line} " for line in rays)
    installs = [i for i, line in enumerate(cloud.calls()) if "host.sh install" in line]
    assert len(installs) == 2
    assert max(installs) < cloud.calls().index(rays[0])
    assert "down.sh" in done.stderr


def test_the_token_is_copied_as_a_file_and_stands_on_no_command_line(cloud):
    cloud.up()
    assert not cloud.calls("secret")
    copies = cloud.calls("auth_token")
    assert len(copies) == 3


def test_the_same_up_again_asks_for_nothing(cloud):
    cloud.up()
    before = cloud.world()["queued"]
    cloud.forget()
    done = cloud.up()
    assert done.returncode == 0, done.stderr
    assert not cloud.calls(" create ")
    assert not cloud.calls(" delete ")
    assert cloud.world()["queued"] == before


def test_many_slices_of_several_types_and_tiers(cloud):
    cloud.change(
        types=["v5litepod-16", "v6e-4", "v5litepod-8"],
        quota={
            "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI": {"Z": "16"},
            "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI": {"Z": "8", "Y": "0"},
        },
    )
    done = cloud.up(
        *("--sampler_type", "v5litepod-8,v6e-4", "--samplers", "2", "--tier=spot"),
        *("--learner_type", "v5litepod-16", "--learner_tier", "reserved"),
    )
    assert done.returncode == 0, done.stderr
    asked = cloud.calls(f"{QUEUE} create")
    assert [
        (line.split()[4][11:], "--spot" in line, "--reserved" in line) for line in asked
    ] == [
        ("learner-0", False, True),
        ("sampler-0", True, False),
        ("sampler-1", True, False),
        ("sampler-2", True, False),
        ("sampler-3", True, False),
    ]
    assert "v2-alpha-tpuv6e" in asked[2]
    assert "v2-alpha-tpuv5-lite" in asked[1]


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"Z": "15"}, "at least 16"), ({"Y": "64"}, "got 0"), ({}, "got 0")],
)
def test_too_little_quota_is_refused_before_anything_is_asked_for(cloud, limits, said):
    cloud.change(quota={SERVING: limits})
    done = cloud.up()
    assert done.returncode == 2
    assert said in done.stderr
    assert not cloud.calls(" create ")
    assert "cost money" not in done.stderr


def test_what_others_use_counts_against_the_quota(cloud):
    cloud.up()
    done = cloud.up("--name", "other", *SLICES)
    assert done.returncode == 2
    assert "16 in use and 16 for this job" in done.stderr


def test_a_quota_without_limit_and_one_that_is_not_checked(cloud):
    cloud.change(quota={SERVING: {"Z": "-1"}})
    assert cloud.up().returncode == 0
    cloud.change(fail={"beta quotas": 1})
    done = cloud.up("--name", "b", *SLICES)
    assert done.returncode == 2
    assert "--no_quota_check" in done.stderr
    done = cloud.up("--name", "b", "--no_quota_check", *SLICES)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--name", "My Job"), "--name must be"),
        (("--name", "a-"), "--name must be"),
        (("--sampler_type", "v5e-8"), "take v5litepod-8"),
        (("--sampler_type", "h100-8"), "--sampler_type must be v4-N"),
        (("--samplers", "0"), "--samplers must be from 1"),
        (("--tier", "cheap"), "_tier must be on_demand"),
        (("--zone", "a b"), "--zone must be a zone"),
        (("--zone", "--tier"), "--zone must be a zone"),
        (("--colour", "red"), "has no option --colour"),
        (("--no_quota_check=0",), "--no_quota_check must stand alone"),
        (("--wait_minutes", "08"), "--wait_minutes must be a number"),
        (("red",), "must begin with --"),
        (("--name",), "--name must have a value"),
        (("--sampler_type", "v6e-16"), "Z must offer v6e-16"),
    ],
)
def test_bad_names_are_refused_in_one_line(cloud, words, said):
    done = cloud.up(*SLICES, *words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not cloud.calls(" create ")


def test_a_standing_slice_of_another_type_or_owner_is_refused(cloud):
    cloud.up()
    done = cloud.up(*SLICES, "--sampler_type", "v6e-4", "--no_quota_check")
    assert done.returncode == 2
    assert "got a standing v5litepod-8" in done.stderr
    queued = cloud.world()["queued"]
    queued[SAMPLER]["tpu"]["nodeSpec"][0]["node"]["labels"] = {"team": "x"}
    cloud.change(queued=queued)
    done = cloud.up()
    assert done.returncode == 2
    assert "must be free or ours" in done.stderr


def test_a_request_that_is_preempted_while_up_waits_is_made_again(cloud):
    cloud.change(
        states={SAMPLER: ["PROVISIONING", "SUSPENDING", "SUSPENDED"]},
        later={SAMPLER: ["PROVISIONING", "ACTIVE"]},
    )
    done = cloud.up()
    assert done.returncode == 0, done.stderr
    assert _names(cloud.calls(f"{QUEUE} delete")) == [SAMPLER]
    assert _names(cloud.calls(f"{QUEUE} create")) == [LEARNER, SAMPLER, SAMPLER]


def test_a_request_that_always_fails_ends_up_and_says_what_stands(cloud):
    cloud.change(always={SAMPLER: ["PROVISIONING", "FAILED"]})
    done = cloud.up()
    assert done.returncode == 1
    assert len(cloud.calls(f"create {SAMPLER}")) == 4
    assert "queued-resources describe" in done.stderr
    assert "down.sh" in done.stderr


def test_up_stops_waiting_and_leaves_the_requests(cloud):
    cloud.change(always={SAMPLER: ["WAITING_FOR_RESOURCES"]})
    done = cloud.up("--wait_minutes", "0", *SLICES)
    assert done.returncode == 3
    assert SAMPLER in cloud.world()["queued"]
    assert "cost money" in done.stderr


def test_a_failing_create_stops_up_and_still_tells_of_the_cost(cloud):
    cloud.change(fail={f"create {SAMPLER}": 1})
    done = cloud.up()
    assert done.returncode == 1
    assert "cost money" in done.stderr
    assert not cloud.calls("host.sh")


def test_a_host_that_does_not_answer_at_first_is_tried_again(cloud):
    cloud.change(fail={"host.sh install": 2})
    assert cloud.up().returncode == 0
    cloud.change(fail={f"ssh {SAMPLER}": 99})
    assert cloud.up().returncode == 1


def test_run_passes_words_with_spaces_and_quotes_through_the_remote_shell(cloud):
    cloud.up()
    odd = 'Data.template = "it\'s {prompt} $HOME `x`\\n"'
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--set", odd, "--set=A=1")
    assert done.returncode == 0, done.stderr
    (start,) = cloud.calls("host.sh start")
    command = start.split("--command=")[1].split(" --quiet")[0]
    heard = subprocess.run(
        ["bash", "-c", command.replace("bash host.sh", "printf '%s\\0'")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[:-1]
    words = ["--gin", "configs/demo.gin", "--set", odd, "--set", "A=1"]
    assert heard == ["start", "demo", "", "60", *words]


def test_run_needs_slices_a_known_file_and_a_bucket_that_exists(cloud):
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 2
    assert "up.sh" in done.stderr
    for gin in ("/etc/passwd", "configs/../x.gin", "configs/none.gin"):
        assert cloud.run("run.sh", "--gin", gin).returncode == 2
    cloud.up()
    cloud.change(fail={"storage buckets describe": 1})
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--bucket", "gs://bb-x/y")
    assert done.returncode == 2
    assert "gcloud storage buckets create gs://bb-x" in done.stderr


def test_a_preempted_sampler_is_asked_for_again_and_joins_the_running_run(cloud):
    cloud.up()
    cloud.forget()
    cloud.change(
        states={SAMPLER: ["ACTIVE", "ACTIVE", "SUSPENDED"]},
        later={SAMPLER: ["PROVISIONING", "ACTIVE"]},
        ssh={"host.sh state": [*["running"] * 6, "ended 0"]},
    )
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 0, done.stderr
    assert _names(cloud.calls(f"{QUEUE} create")) == [SAMPLER]
    assert len(cloud.calls("host.sh start")) == 1
    assert _names(cloud.calls("host.sh ray")) == [LEARNER, SAMPLER, SAMPLER]


def test_a_preempted_head_comes_back_all_join_it_and_the_run_starts_again(cloud):
    cloud.up()
    cloud.forget()
    cloud.change(
        states={LEARNER: ["ACTIVE", "ACTIVE", "SUSPENDED"]},
        later={LEARNER: ["PROVISIONING", "ACTIVE"]},
        ssh={"host.sh state": ["running", "running", "ended 0"]},
    )
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--bucket", "bb-x")
    assert done.returncode == 0, done.stderr
    starts = cloud.calls("host.sh start")
    assert len(starts) == 2
    assert all("gs://bb-x/demo" in line for line in starts)
    assert _names(cloud.calls("host.sh ray")) == [LEARNER, SAMPLER] * 2
    # Nobody asks a head that is not there.
    gone = cloud.calls().index(cloud.calls(f"{QUEUE} delete")[0])
    again = cloud.calls().index(cloud.calls("host.sh ray")[2])
    assert not [line for line in cloud.calls()[gone:again] if "host.sh state" in line]


def test_run_watches_one_that_runs_already_and_installs_nothing(cloud):
    cloud.up()
    cloud.forget()
    head = subprocess.check_output(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], text=True
    ).strip()
    cloud.change(
        ssh={"host.sh state": ["running", "running", "ended 0"], "busy": [head]}
    )
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 0, done.stderr
    assert not cloud.calls("host.sh start")
    assert not cloud.calls("host.sh install")


def test_a_run_that_fails_is_started_again_but_not_for_ever(cloud):
    cloud.up()
    cloud.change(ssh={"host.sh state": ["ended 1"]})
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--restarts", "2")
    assert done.returncode == 1
    assert len(cloud.calls("host.sh start")) == 3
    cloud.change(ssh={"host.sh state": ["ended 2"]})
    cloud.forget()
    assert cloud.run("run.sh", "--gin", "configs/demo.gin").returncode == 1
    assert len(cloud.calls("host.sh start")) == 1


def test_up_leaves_the_revision_of_a_run_under_way(cloud):
    cloud.up()
    before = subprocess.check_output(
        ["git", "-C", ROOT, "rev-parse", "HEAD~1"], text=True
    ).strip()
    cloud.change(
        ssh={"busy": [before]},
        quota={SERVING: {"Z": "24"}},
    )
    cloud.forget()
    done = cloud.up("--samplers", "2", *SLICES)
    assert done.returncode == 0, done.stderr
    installs = cloud.calls("host.sh install")
    assert len(installs) == 3
    assert all(before in line for line in installs)


def test_up_that_can_t_ask_whether_a_run_is_under_way_installs_nothing(cloud):
    cloud.up()
    cloud.change(ssh={"busy": ["FAIL"]})
    cloud.forget()
    done = cloud.up()
    assert done.returncode == 2
    assert "whether a run is under way" in done.stderr
    assert not cloud.calls("host.sh install")


def test_a_run_that_fails_has_ray_again_before_it_is_started_again(cloud):
    cloud.up()
    cloud.change(ssh={"host.sh state": ["running", "none", "ended 0"]})
    cloud.forget()
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 0, done.stderr
    assert _kinds(cloud) == ["ray", "ray", "start"] * 2


def test_hosts_are_looked_after_while_a_run_goes_on_and_its_restarts_come_back(cloud):
    cloud.up()
    calm = ["running"] * 20
    states = ["ended 1", *calm, "ended 1", *calm, "ended 1", "ended 0"]
    cloud.change(ssh={"host.sh state": states, "host.sh progress": ["7", "8"]})
    cloud.forget()
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--restarts", "1")
    assert done.returncode == 0, done.stderr
    # One that ends again and again at the same update does not go on for ever.
    again = {"host.sh state": states, "host.sh progress": ["7", "7"]}
    kinds = _kinds(cloud)
    calm = ["ray", "ray"]
    assert kinds == [*calm, "start"] * 2 + [*calm, *calm, "start"] * 2
    cloud.change(ssh=again)
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--restarts", "1")
    assert done.returncode == 1


def test_one_slice_that_can_t_be_reached_holds_up_no_other(cloud):
    cloud.up()
    joins = f"host.sh ray {SAMPLER}"
    cloud.change(ssh={"host.sh state": ["ended 1", "ended 0"], joins: ["", "FAIL"]})
    cloud.forget()
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 0, done.stderr
    assert "not every slice could be looked after" in done.stderr
    assert len(cloud.calls("host.sh start")) == 2


def _kinds(cloud):
    """Slices told to join, and runs told to start, in that order."""
    return [
        line.split("host.sh ")[1].split()[0]
        for line in cloud.calls("host.sh ")
        if " ray " in line or " start " in line
    ]


def test_a_run_that_its_own_preemption_ends_is_not_taken_for_stopped(cloud):
    cloud.up()
    # The host says that it has ended, and is gone when it is asked again.
    cloud.change(
        states={LEARNER: ["ACTIVE", "ACTIVE", "SUSPENDED"]},
        later={LEARNER: ["PROVISIONING", "ACTIVE"]},
        ssh={"host.sh state": ["ended 143", "running", "ended 143"]},
    )
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--bucket", "bb-x")
    assert done.returncode == 130, done.stderr
    assert len(cloud.calls("host.sh start")) == 2
    assert len(cloud.calls("host.sh state")) == 4
    assert "cost money" in done.stderr


def test_a_request_that_does_not_get_through_does_not_end_the_watching(cloud):
    cloud.up()
    cloud.change(
        states={SAMPLER: ["ACTIVE", "ACTIVE", "SUSPENDED"]},
        later={SAMPLER: ["PROVISIONING", "ACTIVE"]},
        ssh={"host.sh state": [*["running"] * 8, "ended 0"]},
        fail={f"create {SAMPLER}": 2},
    )
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 0, done.stderr
    assert "could not be asked for; trying again" in done.stderr
    assert _names(cloud.calls("host.sh ray"))[-1] == SAMPLER


def test_failures_count_only_while_they_follow_each_other(cloud):
    cloud.up()
    once = ["FAILED", "PROVISIONING"]
    cloud.change(
        states={SAMPLER: ["ACTIVE", "ACTIVE", "FAILED"]},
        always={SAMPLER: ["ACTIVE", *once[:1]]},
        ssh={"host.sh state": [*["running"] * 12, "ended 0"]},
    )
    done = cloud.run("run.sh", "--gin", "configs/demo.gin")
    assert done.returncode == 0, done.stderr
    assert len(cloud.calls(f"create {SAMPLER}")) > 4


def test_a_request_that_may_lapse_is_not_made_again(cloud):
    cloud.change(always={SAMPLER: ["WAITING_FOR_RESOURCES", "FAILED"]})
    done = cloud.up("--valid_until", "6h", *SLICES)
    assert done.returncode != 0
    assert len(cloud.calls(f"create {SAMPLER}")) == 1
    assert "--valid_until=6h" in done.stderr
    assert "cost money" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_an_install_ends_all_and_tries_nothing_again(cloud, number):
    slow, begun = cloud.bin / "gcloud", cloud.bin / "begun"
    install = f"*install*) echo >> {begun}; sleep 5; exit 1 ;;"
    slow.write_text(
        slow.read_text().replace("exec", f'case "$*" in {install} esac\nexec')
    )
    script = subprocess.Popen(
        [sys.executable, "-c", HEEDING_CTRL_C, SCRIPTS / "up.sh", *WHERE, *SLICES],
        env=os.environ
        | {"PATH": f"{cloud.bin}:{os.environ['PATH']}", "JIGSAW_POLL_S": "0"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: begun.exists() and begun.read_text() == "\n\n", 60.0)
    # A terminal sends it to all that run there; `kill` to one process.
    if number == signal.SIGINT:
        os.killpg(script.pid, number)
    else:
        script.send_signal(number)
    # The pipe closes when the last process of the script has ended.
    _, said = script.communicate(timeout=30)
    assert script.returncode == 128 + number
    assert "cost money" in said
    assert "try 1 of 5" not in said
    assert len(cloud.calls(" scp ")) == 2


def test_then_down_ends_the_slices_of_a_run_that_ended_well(cloud):
    cloud.up()
    done = cloud.run("run.sh", "--gin", "configs/demo.gin", "--then_down")
    assert "cost money" not in done.stderr
    assert cloud.world()["queued"] == {}
    assert cloud.world()["nodes"] == {}


def test_down_removes_all_and_only_what_is_ours(cloud):
    cloud.change(quota={SERVING: {"Z": "999"}})
    cloud.up("--samplers", "2", *SLICES)
    cloud.up("--name", "run-2", *SLICES)
    world = cloud.world()
    # Of ours: a VM whose queued resource is gone.
    del world["queued"]["jigsaw-run-sampler-1"]
    # Not ours: our name without our label, and another's label on another's name.
    foreign = json.loads(json.dumps(world["queued"][SAMPLER]))
    foreign["name"] = "projects/P/locations/Z/queuedResources/jigsaw-run-sampler-7"
    foreign["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
    world["queued"]["jigsaw-run-sampler-7"] = foreign
    theirs = world["nodes"][SAMPLER] | {"name": "projects/P/locations/Z/nodes/theirs"}
    world["nodes"]["theirs"] = theirs
    cloud.write(**world)
    done = cloud.run("down.sh")
    assert done.returncode == 0, done.stderr
    assert set(cloud.world()["queued"]) == {
        "jigsaw-run-2-learner-0",
        "jigsaw-run-2-sampler-0",
        "jigsaw-run-sampler-7",
    }
    assert set(cloud.world()["nodes"]) == {
        "jigsaw-run-2-learner-0",
        "jigsaw-run-2-sampler-0",
        "theirs",
    }
    assert "jigsaw-run-sampler-7 has our name but not our label" in done.stderr
    assert "nothing of the job 'run' is left" in done.stderr


def test_down_tries_again_and_says_what_remains(cloud):
    cloud.up()
    cloud.change(fail={f"delete {SAMPLER}": 3})
    done = cloud.run("down.sh")
    assert done.returncode == 0, done.stderr
    assert len(cloud.calls(f"{QUEUE} delete {SAMPLER}")) == 4
    cloud.up()
    cloud.change(fail={f"delete {SAMPLER}": 9999})
    done = cloud.run("down.sh", "--looks", "3")
    assert done.returncode == 1
    assert "STILL THERE" in done.stderr
    assert f"{SAMPLER} ACTIVE" in done.stderr
    assert LEARNER not in done.stderr.split("STILL THERE")[1]


def test_down_lets_runs_end_first_and_asks_nothing_where_nothing_is(cloud):
    cloud.up()
    done = cloud.run("down.sh")
    lines = cloud.calls()
    stop = lines.index(cloud.calls("host.sh stop")[0])
    assert stop < lines.index(cloud.calls(" delete ")[0])
    cloud.up()
    cloud.forget()
    cloud.run("down.sh", "--now")
    assert not cloud.calls("host.sh stop")
    assert cloud.calls(" delete ")
    cloud.forget()
    done = cloud.run("down.sh")
    assert done.returncode == 0
    assert not cloud.calls(" delete ")


def test_status_shows_what_stands_and_since_when(cloud):
    assert "nothing of the job 'run' stands" in cloud.run("status.sh").stdout
    cloud.up()
    shown = cloud.run("status.sh", "--run", "demo").stdout
    for name in (LEARNER, SAMPLER):
        assert f"{name}  v5litepod-8  on_demand  ACTIVE" in shown
        assert f"{name}  v5litepod-8  VM READY  costs since 2026-11-30T01:00:00Z" in (
            shown
        )
    assert shown.endswith("running\n")


def test_no_connection_asks_a_question_and_iap_reaches_all_of_them(cloud):
    done = cloud.up(*SLICES, "--internal_ips")
    assert done.returncode == 0, done.stderr
    reach = [line for line in cloud.calls() if " ssh " in line or " scp " in line]
    assert len(reach) >= 8
    assert all("--quiet --tunnel-through-iap" in line for line in reach)
    assert all("--internal-ips" in line for line in cloud.calls(f"{QUEUE} create"))


def test_logs_asks_the_head(cloud):
    cloud.run("logs.sh", "--run", "demo", "--lines", "7", "--follow")
    (line,) = cloud.calls()
    assert f"ssh {LEARNER} --worker=0 --command=bash host.sh log demo 7 follow" in line
    cloud.forget()
    cloud.run("logs.sh")
    assert "host.sh log '' 100" in cloud.calls()[0]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("up.sh", SLICES),
        ("run.sh", ("--gin", "configs/demo.gin", "--bucket", "bb-x", "--then_down")),
        ("status.sh", ("--run", "demo")),
        ("logs.sh", ()),
        ("down.sh", ()),
    ],
)
def test_a_dry_run_prints_the_calls_of_a_real_one_and_makes_none(cloud, script, words):
    if script != "up.sh":
        cloud.up()
        cloud.forget()
    dry = cloud.run(script, *words, "--dry_run")
    assert dry.returncode == 0, dry.stderr
    assert not cloud.calls()
    printed = [line for line in dry.stdout.splitlines() if not line.startswith("# ")]
    assert all(line.startswith("gcloud ") for line in printed)
    cloud.run(script, *words)

    def kinds(lines):
        found = [" ".join(line.split()[:5]) for line in lines]
        found = [re.sub(r"/\S*/", "", line) for line in found]
        # How often it looks, and which of two hosts answers first, is chance.
        return {line for line in found if " list " not in line}

    assert kinds(shlex.join(shlex.split(line)[1:]) for line in printed) == (
        kinds(cloud.calls())
    )


def test_a_dry_run_needs_no_checkout(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "launch", copy / "launch")
    words = [copy / "launch/gcloud/up.sh", *WHERE, *SLICES, "--dry_run"]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "host.sh install HEAD" in done.stdout


def test_every_script_has_help():
    for script in ("up.sh", "run.sh", "logs.sh", "status.sh", "down.sh"):
        done = subprocess.run(
            [SCRIPTS / script, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert f"launch/gcloud/{script} --project P --zone Z" in done.stdout
