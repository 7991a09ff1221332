import itertools
import json
import os

from tests.bench import quiet


def test_what_was_busy_and_not_the_runs_own_was_others(tmp_path, monkeypatch):
    second = os.sysconf("SC_CLK_TCK")
    # Two seconds, three of a core's busy: one of a process that was there, half a one
    # of one that came.
    seconds = itertools.chain([10.0], itertools.repeat(12.0))
    busy = itertools.chain([7 * second], itertools.repeat(10 * second))
    ticks = itertools.chain(
        [{1: 5 * second}], itertools.repeat({1: 6 * second, 2: second // 2})
    )
    monkeypatch.setattr(quiet.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(quiet, "_busy", lambda: next(busy))
    monkeypatch.setattr(quiet, "_ticks", lambda _: next(ticks))
    monkeypatch.setattr(quiet, "_EVERY_S", 60.0)
    run_dir = tmp_path / "run"
    with quiet.watched(run_dir):
        pass
    assert quiet.told(run_dir) == "   others took 0.75 cores"
    monkeypatch.undo()
    # A run that is resumed has one figure for each of its processes.
    with quiet.watched(run_dir):
        pass
    assert len(json.loads(run_dir.with_suffix(".others.json").read_text())) == 2
    assert quiet.told(tmp_path / "other") == ""


def test_the_ticks_of_a_process_are_its_own_and_those_below_it():
    found = quiet._ticks(os.getpid())
    assert os.getpid() in found
    assert os.getppid() not in found
