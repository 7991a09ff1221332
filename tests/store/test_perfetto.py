import json

from jigsaw_jax.store.journal import EventLog
from jigsaw_jax.store.perfetto import chrome_trace, export


def _write(path):
    log = EventLog(path, incarnation=1, at_s=1.0, unix_s=1001.0)
    log.interval("slot/10", "sample", 2.0, 2.5, uid="main/1", version=0)
    log.interval("slot/02", "sample", 2.0, 3.25, uid="main/2", version=0)
    log.interval("learner", "accumulate", 3.0, 4.0, update=0)
    log.mark("publish", "version", 4.5, version=1)
    log.close()


def test_the_trace_is_what_perfetto_reads(tmp_path):
    _write(tmp_path / "events.jsonl")
    assert export(tmp_path / "events.jsonl", tmp_path / "trace.json") == 5
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in trace if e["name"] == "thread_name"]
    assert names == ["process", "learner", "publish", "slot/02", "slot/10"]
    tid = {e["args"]["name"]: e["tid"] for e in trace if e["name"] == "thread_name"}
    spans = [e for e in trace if e["ph"] == "X"]
    assert spans[1] == {
        "name": "sample",
        "ph": "X",
        "pid": 1,
        "tid": tid["slot/02"],
        "ts": 1_000_000.0,
        "dur": 1_250_000.0,
        "args": {"uid": "main/2", "version": 0},
    }
    start, mark = [e for e in trace if e["ph"] == "i"]
    assert (start["ts"], start["args"]) == (0.0, {"incarnation": 1})
    assert (mark["ts"], mark["tid"]) == (3_500_000.0, tid["publish"])


def test_time_counts_from_the_start_of_the_first_process():
    events = [
        {"kind": "start", "incarnation": 1, "at_s": 1.0, "unix_s": 1001.0},
        {"kind": "mark", "track": "publish", "name": "v", "at_s": 2.0},
        {"kind": "start", "incarnation": 2, "at_s": 0.5, "unix_s": 1100.5},
        {"kind": "mark", "track": "publish", "name": "v", "at_s": 2.0},
    ]
    # The run starts at 1001 of the wall; the marks are at 1002 and 1102.
    times = [e["ts"] for e in chrome_trace(events) if e["name"] == "v"]
    assert times == [1_000_000.0, 101_000_000.0]
