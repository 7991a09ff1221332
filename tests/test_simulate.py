import json
import pathlib
import runpy
import subprocess
import sys

import pytest

from jigsaw_jax import config, simulate
from tests.simulation.make_train import make, shell_of
from tests.simulation.test_recorded import decode, write

ROOT = pathlib.Path(__file__).parents[1]
TINY = [
    "--gin",
    str(ROOT / "configs/bench/tiny_qwen3.gin"),
    *("--set", "Workload.length_mean = 20"),
    *("--set", "Simulation.seeds = 2"),
    *("--width", "200"),
]
TABLE = str(ROOT / "configs/sim/rolloutpipe_table.gin")


def test_a_run_without_policies_is_compared_under_the_standard_ones(capsys):
    assert simulate.main(TINY) == 0
    said = capsys.readouterr().out
    for policy in simulate.POLICIES:
        assert policy in said
    for label in ("round s", "first dispatch s", "trainer waits", "of the bound"):
        assert label in said


def test_a_sweep_makes_a_table_of_every_choice(capsys, tmp_path):
    path = tmp_path / "out.json"
    sweep = ["--sweep", "R=8,16", "--sweep", "ADMISSION=fifo,frontier_strict"]
    assert simulate.main([*TINY, *sweep, "--json", str(path)]) == 0
    assert "R=16 ADMISSION=frontier_strict" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert len(found) == 4
    rounds = [found[f"R={r} ADMISSION=fifo"]["run"]["mean"] for r in (8, 16)]
    assert rounds[0]["round_s"] < rounds[1]["round_s"]


def test_costs_of_a_run_are_said_and_taken_for_another(capsys, tmp_path):
    seen = make(Pipeline__groups_per_round=8, Costs__group_s=300.0, Costs__step_s=7.0)
    events = shell_of(seen, keeps_events=True).run().events
    last_s = max(event["end_s"] for event in events)
    events += [decode(last_s + t, 4, 2.0, 64) for t in range(4)]
    path = write(tmp_path, events)
    assert simulate.main([*TINY, "--fit", path, "--sweep", "MODE=sync,stream"]) == 0
    said = capsys.readouterr().out
    # Calls of 16 steps, which this configuration has.
    assert "decode step: 125.000 ms" in said
    assert "300000.00 ms a group" in said
    assert "step 7000.0 ms" in said
    assert "MODE=stream" in said


def test_a_report_page_is_drawn_for_each_policy(capsys, tmp_path):
    sweep = ["--sweep", "MODE=sync,stream"]
    assert simulate.main([*TINY, *sweep, "--report", str(tmp_path)]) == 0
    pages = sorted(tmp_path.glob("*/report.html"))
    assert [page.parent.name for page in pages] == ["MODE=stream_run", "MODE=sync_run"]
    assert all(str(page) in capsys.readouterr().out for page in pages[:1])
    assert "sim/0" in pages[0].read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "RR=3"], "RR must be a setting of the run"),
        (["--sweep", "R=8", "--sweep", "Pipeline.groups_per_round=16"], "once"),
        (["--json", "nowhere/out.json"], "in a directory that exists"),
        (
            ["--set", 'Fleet.pools = {"a": {"workers": 1.5}}'],
            "Fleet.pools['a']['workers'] must be int",
        ),
        (
            ["--set", 'Simulation.bounds = {"x": {"round_s": "within"}}'],
            "must name policies of Simulation.policies (none), got 'x'",
        ),
        (
            [
                *("--set", 'Simulation.policies = {"run": {}}'),
                *("--set", 'Simulation.published = {"any": {"run": {"speed": 1.0}}}'),
            ],
            "must be of one of round_s, train_end_s",
        ),
        (
            [
                *("--set", 'Simulation.policies = {"run": {}}'),
                *(
                    "--set",
                    'Simulation.published = {"any": {"run": {"round_s": (2.0, 1.0)}}}',
                ),
            ],
            "must be (low, high), got (2.0, 1.0)",
        ),
        (["--sweep", "R"], "--sweep must be NAME=VALUE,VALUE"),
        (["--sweep", "U=3"], "must be a multiple of Pipeline.groups_per_update"),
        (["--set", "Workload.flat_rat = 1"], "did you mean Workload.flat_rate?"),
        (["--set", 'Costs.trains = "round"'], "Pipeline.mode must be 'sync' where"),
        (["--recommend"], "Costs.source must be 'analytic' or 'plan'"),
        (["--replay", "nowhere"], "must be the directory of a run"),
        (["--fit", "nowhere"], "must be the directory of a run"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(options, message, capsys):
    assert simulate.main([*TINY, *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_missed_bound_is_named_and_is_exit_code_1(capsys):
    published = '{"any": {"run": {"train_end_s": 1.0}}}'
    options = [
        *("--set", f"Simulation.published = {published}"),
        *("--set", 'Simulation.policies = {"run": {}}'),
        *("--set", 'Simulation.bounds = {"run": {"train_end_s": "within"}}'),
    ]
    assert simulate.main([*TINY, *options]) == 1
    said = capsys.readouterr().out
    assert "run: train_end_s must be within 1" in said
    assert "0 of 1 bounds met" in said


def test_the_papers_file_holds_what_the_fitting_script_prints(capsys):
    runpy.run_path(str(ROOT / "scripts/fit_rolloutpipe.py"), run_name="__main__")
    said = capsys.readouterr().out
    train = config.load([TABLE]).train
    assert f"length_sigma = {train.simulation.workload.length_sigma} " in said
    for name, values in train.simulation.scenarios.items():
        task, _ = name.split(" ")
        (line,) = [line for line in said.splitlines() if line.startswith(task)]
        assert f"decode_sequence_s = {values['Costs.decode_sequence_s']:.4e};" in line
        assert f"group_s = {values['Costs.group_s']:.3f} " in line


@pytest.mark.slow
def test_the_papers_file_has_all_twelve_settings_and_meets_every_bound():
    # In a process of its own: checking every call's types makes it twenty times slower.
    command = [sys.executable, "-m", "jigsaw_jax.simulate"]
    options = ["--gin", TABLE, "--width", "200"]
    done = subprocess.run(
        command + options, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert said.count("LSAT-AR R=32") == said.count("OlyPhys R=96") > 3
    assert "41 of 41 bounds met" in said
    assert "not published" in said
