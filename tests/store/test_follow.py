import json

from jigsaw_jax.store import follow
from jigsaw_jax.store.follow import Follower


def _append(path, text):
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _numbers(news):
    return [record["n"] for record in news.records]


def test_each_read_gives_what_is_new_and_half_a_line_is_left(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    assert follower.read() == ([], False)
    _append(path, '{"n": 1}\n{"n": 2}\n{"n"')
    assert _numbers(follower.read()) == [1, 2]
    assert _numbers(follower.read()) == []
    _append(path, ": 3}")
    assert _numbers(follower.read()) == []
    _append(path, '\n{"n": "é"}\n')
    assert _numbers(follower.read()) == [3, "é"]
    assert follower.damaged == 0


def test_a_long_log_is_read_in_parts_and_a_long_line_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "_READ_BYTES", 16)
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    _append(path, "".join(f'{{"n": {n}}}\n' for n in range(9)))
    _append(path, json.dumps({"n": "x" * 100}) + "\n")
    reads = []
    while (news := follower.read()).records:
        reads.append(_numbers(news))
    assert len(reads) > 4
    assert [n for read in reads for n in read] == [*range(9), "x" * 100]
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    first = follower.read()
    assert first.is_anew
    rest = follower.read()
    assert not rest.is_anew
    assert _numbers(first) + _numbers(rest) + _numbers(follower.read()) == [1, 2, 3]


def test_a_character_cut_in_two_is_read_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    line = json.dumps({"n": "é"}, ensure_ascii=False).encode() + b"\n"
    cut = line.index("é".encode()) + 1
    path.write_bytes(line[:cut])
    assert _numbers(follower.read()) == []
    path.write_bytes(line)
    assert _numbers(follower.read()) == ["é"]


def test_a_cut_file_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    _append(path, '{"n": 1}\n{"n": 2}\n')
    follower.read()
    path.write_text('{"n": 1}\n')
    news = follower.read()
    assert news.is_anew
    assert _numbers(news) == [1]
    _append(path, '{"n": 5}\n')
    assert follower.read() == ([{"n": 5}], False)


def test_a_file_cut_and_grown_beyond_what_was_read_is_noticed(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    _append(path, '{"n": 1}\n{"n": 2}\n')
    follower.read()
    with path.open("r+") as file:
        file.truncate(9)
        file.seek(9)
        file.write('{"n": 7}\n{"n": 8}\n')
    news = follower.read()
    assert news.is_anew
    assert _numbers(news) == [1, 7, 8]


def test_a_replaced_and_a_lost_file_begin_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    _append(path, '{"n": 1}\n')
    follower.read()
    other = tmp_path / "b"
    other.write_text('{"n": 1}\n{"n": 2}\n')
    other.rename(path)
    assert follower.read() == ([{"n": 1}, {"n": 2}], True)
    path.unlink()
    assert follower.read() == ([], True)
    assert follower.read() == ([], False)


def test_damaged_lines_are_passed_over_and_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    path.write_bytes(b'{"n": 1}\nnot json\n[2]\n\xff\xfe\n\n{"n": 3}\n')
    assert _numbers(follower.read()) == [1, 3]
    assert follower.damaged == 4
