import collections
import json
import statistics

import pytest

from jigsaw_jax import config
from jigsaw_jax.simulation import outcome, overrides
from tests.bench import fidelity

pytestmark = pytest.mark.slow

FEW = (fidelity.SEEN, "sync", "strict_2")
COSTS = {
    "Costs.decode_s": 0.004,
    "Costs.prefill_token_s": 1e-4,
    "Costs.accumulate_s": 0.02,
    "Costs.gradient_s": 0.45,
    "Costs.step_s": 0.05,
    "Costs.publish_s": 0.1,
    "Costs.checkpoint_s": 0.05,
    "Costs.write_s": 0.4,
    "Costs.write_held": 0.7,
    "Costs.write_lost": 0.5,
    "Costs.report_s": 0.008,
    "Workload.length_mean": 50.0,
    "Workload.prompt_tokens": 8,
    "Simulation.rounds": 3,
}


def test_the_middle_of_every_runs_turns_is_that_of_all():
    for turns in (2, 4):
        places = collections.defaultdict(list)
        for place, name in enumerate(fidelity.order(turns)):
            places[name].append(place)
        assert {name: len(own) for name, own in places.items()} == {
            name: turns + (name == fidelity.SEEN) for name in fidelity.RUNS
        }
        assert len({statistics.fmean(own) for own in places.values()}) == 1


def write_run(folder, name, changes):
    """A run directory as the bench's processes leave it, from a simulation."""
    bindings = fidelity.sets(name, 3)
    loaded = config.load(["configs/bench/overlap.gin"], bindings)
    train = overrides.apply(loaded.train, {**COSTS, **changes})
    _, trace = outcome.simulate(train, 0, keeps_events=True)
    calls, slots = train.sampler.steps_per_call, train.sampler.slots
    decode_s = calls * train.simulation.costs.decode_s
    last_s = max(event["end_s"] for event in trace.events)
    # A simulation skips the engine's own calls.
    events = [
        {
            "kind": "interval",
            "track": "sampler",
            "name": "decode",
            "start_s": last_s + i,
            "end_s": last_s + i + decode_s,
            "active": slots,
            "tokens": slots * calls,
        }
        for i in range(5)
    ]
    path = folder / name
    path.mkdir()
    (path / "config.gin").write_text(loaded.operative)
    start = {"kind": "start", "incarnation": 1, "at_s": 0.0, "unix_s": 50.0}
    lines = [json.dumps(event) + "\n" for event in [start, *trace.events, *events]]
    (path / "events.jsonl").write_text("".join(lines))


def test_only_a_run_of_the_costs_that_were_fitted_is_predicted(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(fidelity, "RUNS", {name: fidelity.RUNS[name] for name in FEW})
    for name in FEW:
        write_run(tmp_path, name, {})
    assert fidelity.check(tmp_path) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in FEW)
    (tmp_path / "sync").rename(tmp_path / "as_it_was")
    write_run(tmp_path, "sync", {"Costs.gradient_s": 0.6})
    assert fidelity.check(tmp_path) == 1
    assert "at most 10%" in capsys.readouterr().out
