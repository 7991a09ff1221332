import math
import queue
import threading

import numpy as np
import pytest

from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.journal import EventLog


def _open(path, incarnation=1):
    return EventLog(path, incarnation=incarnation, at_s=2.0, unix_s=1e9)


def test_a_process_starts_with_its_incarnation_and_clock(tmp_path):
    path = tmp_path / "events.jsonl"
    for incarnation in (1, 2):
        log = _open(path, incarnation)
        log.interval("slot/03", "sample", 2.5, 3.5, uid="main/7", num_tokens=5)
        log.mark("publish", "version", 3.75, version=1)
        log.close()
        log.close()
    events = list(files.read_lines(path))
    assert [e["kind"] for e in events] == ["start", "interval", "mark"] * 2
    starts = [e for e in events if e["kind"] == "start"]
    assert [(e["incarnation"], e["at_s"], e["unix_s"]) for e in starts] == [
        (1, 2.0, 1e9),
        (2, 2.0, 1e9),
    ]
    assert events[1] == {
        "kind": "interval",
        "track": "slot/03",
        "name": "sample",
        "start_s": 2.5,
        "end_s": 3.5,
        "uid": "main/7",
        "num_tokens": 5,
    }
    assert events[2] == {
        "kind": "mark",
        "track": "publish",
        "name": "version",
        "at_s": 3.75,
        "version": 1,
    }


def test_fields_of_any_kind_are_there_as_json_has_them(tmp_path):
    log = _open(tmp_path / "events.jsonl")
    fields = {
        "text": 'quo"te, 100%s\n',
        "count": -3,
        "flag": True,
        "nothing": None,
        "share": 0.1,
        "rows": [[1, "a"]],
        "100%d": "ü",
    }
    log.interval('tra"ck%', "na%sme", 1.0, 2.25, **fields)
    rows = [("slot/1", 1.0, 2.0, "a", 0), ("b", 2.0, 3.0, "c", 1)]
    log.intervals("sample", ("uid", "draw"), rows)
    log.close()
    _, one, *many = files.read_lines(tmp_path / "events.jsonl")
    head = {"kind": "interval", "track": 'tra"ck%', "name": "na%sme"}
    assert one == head | {"start_s": 1.0, "end_s": 2.25} | fields
    assert type(one["flag"]) is bool
    assert [(e["track"], e["end_s"], e["uid"], e["draw"]) for e in many] == [
        ("slot/1", 2.0, "a", 0),
        ("b", 3.0, "c", 1),
    ]


def test_numbers_are_those_that_json_would_have_with_times_to_the_microsecond(tmp_path):
    log = _open(tmp_path / "events.jsonl")
    rng = np.random.default_rng(0)
    # From a clock that has run for up to a year.
    times = rng.uniform(0.0, 3e7, (2000, 2)).tolist()
    values = [*rng.normal(0.0, 1e6, 1000), *rng.integers(-(2**40), 2**40, 1000)]
    log.intervals(
        "sample",
        ("value",),
        [("a", *span, value) for span, value in zip(times, values, strict=True)],
    )
    log.close()
    _, *found = files.read_lines(tmp_path / "events.jsonl")
    assert [e["value"] for e in found] == [value.item() for value in values]
    assert [type(e["value"]) for e in found] == [float] * 1000 + [int] * 1000
    for event, (start_s, end_s) in zip(found, times, strict=True):
        # What is read is the float nearest to a decimal of six places, and half a
        # microsecond off at most, but for the rounding of a product of 3e13.
        for told_s, time_s in ((event["start_s"], start_s), (event["end_s"], end_s)):
            assert told_s == float(f"{told_s:.6f}")
            assert abs(told_s - time_s) <= 0.5e-6 + 4e-9


def test_what_is_no_number_or_no_text_can_be_read_again(tmp_path):
    log = _open(tmp_path / "events.jsonl")
    log.mark("a", "odd", 1.0, row="half \ud800", path=tmp_path)
    log.mark("a", "even", 2.0, share=math.nan, path=tmp_path)
    log.close()
    _, odd, even = files.read_lines(tmp_path / "events.jsonl")
    assert (odd["row"], odd["path"]) == ("half \ud800", str(tmp_path))
    assert (even["share"], even["path"]) == (None, str(tmp_path))


def test_every_event_of_every_thread_is_there_in_its_order(tmp_path):
    log = _open(tmp_path / "events.jsonl")

    def work(track):
        for index in range(500):
            log.mark(track, "event", float(index))

    threads = [threading.Thread(target=work, args=(f"slot/{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        log.flush()
    for thread in threads:
        thread.join()
    log.close()
    by_track = {}
    for event in files.read_lines(tmp_path / "events.jsonl"):
        if event["kind"] == "mark":
            by_track.setdefault(event["track"], []).append(event["at_s"])
    assert by_track == {f"slot/{i}": [float(n) for n in range(500)] for i in range(4)}


def test_what_a_full_disk_refuses_stays_queued_and_comes_later(tmp_path, monkeypatch):
    log = _open(tmp_path / "events.jsonl")
    log.flush()
    real = log._file

    class Full:
        def write(self, data):
            # A disk that fills up takes a part of the bytes first.
            if len(data) > 10:
                return real.write(data[:10])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "_file", Full())
    log.mark("publish", "version", 1.0)
    with pytest.raises(StoreError, match="No space left"):
        log.flush()
    monkeypatch.undo()
    log.mark("publish", "version", 2.0)
    log.close()
    events = list(files.read_lines(tmp_path / "events.jsonl"))
    assert [e["at_s"] for e in events if e["kind"] == "mark"] == [1.0, 2.0]


def test_a_directory_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(StoreError, match=r"cannot write .*events\.jsonl"):
        _open(tmp_path / "none" / "events.jsonl")


def test_what_its_thread_fails_of_is_told(tmp_path):
    told = queue.Queue()
    log = EventLog(
        tmp_path / "events.jsonl",
        incarnation=1,
        at_s=0.0,
        unix_s=0.0,
        on_failed=told.put,
    )

    class Unspeakable:
        def __str__(self):
            raise TypeError("has no text")

    log.mark("track", "name", 0.0, field=Unspeakable())
    assert isinstance(told.get(timeout=20.0), TypeError)
    log.close()
