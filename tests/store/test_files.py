import errno
import json

import pytest

from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError


def test_json_round_trips_and_leaves_no_temporary(tmp_path):
    files.write_json(tmp_path / "a" / "x.json", {"b": [1, None, "ä"]})
    assert files.read_json(tmp_path / "a" / "x.json") == {"b": [1, None, "ä"]}
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x.json"]


def test_the_old_file_stays_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_json(path, 1)

    def full(_fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*x\.json: No space left"):
        files.write_json(path, 2)
    assert json.loads(path.read_text()) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_missing_and_damaged_json_say_which_file(tmp_path):
    with pytest.raises(StoreError, match=r"cannot read .*none\.json"):
        files.read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(StoreError, match=r"bad\.json must hold JSON"):
        files.read_json(tmp_path / "bad.json")


def test_a_half_written_last_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":')
    assert list(files.read_lines(path)) == [{"a": 1}, {"a": 2}]
    assert files.whole_lines_size(path) == 16


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"a"\n{"a":3}\n')
    with pytest.raises(StoreError, match=r"line 2 of .*log\.jsonl"):
        list(files.read_lines(path))


def test_a_log_that_does_not_exist_is_empty(tmp_path):
    assert list(files.read_lines(tmp_path / "log.jsonl")) == []
    assert files.whole_lines_size(tmp_path / "log.jsonl") == 0
    assert files.cut(tmp_path / "log.jsonl", 0) == 0


def test_whole_lines_are_found_behind_a_long_torn_tail(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 200_000)
    assert files.whole_lines_size(path) == 3
    path.write_bytes(b"x" * 200_000)
    assert files.whole_lines_size(path) == 0


def test_cut_moves_every_byte_and_joins_earlier_cuts(tmp_path):
    path, rewound = tmp_path / "log.jsonl", tmp_path / "log.rewound.jsonl"
    path.write_bytes(b"1\n2\n3")
    assert files.cut(path, 2) == 3
    assert path.read_bytes() == b"1\n"
    assert rewound.read_bytes() == b"2\n3\n"
    path.write_bytes(b"1\n4\n")
    assert files.cut(path, 2) == 2
    assert rewound.read_bytes() == b"2\n3\n4\n"
    assert files.cut(path, 2) == 0
