import json

from jigsaw_jax.store.browser import (
    TEXT_MAX,
    group_rows,
    newest_groups,
    shown_groups,
)


def _row(update, uid, sample, **more):
    return {
        "update": update,
        "uid": uid,
        "draw": 0,
        "sample": sample,
        "task": "sum",
        "prompt": "1+1=",
        "answer": "2",
        "text": "2",
        "segments": [
            {
                "is_sampled": True,
                "tokens": [5, 6],
                "logprobs": [-0.123456, -2.0],
                "versions": [3, 4],
            },
            {"is_sampled": False, "tokens": [9], "logprobs": [], "versions": []},
        ],
        "reward": 1.0,
        "parts": {"task": 1.0},
        "failure": None,
        "finish": "stop",
    } | more


def _write(directory, update, rows):
    directory.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / f"update-{update:06d}.jsonl").write_text(text)


def test_members_are_joined_to_groups_and_observed_tokens_have_no_logprob():
    rows = [_row(1, "a", 0), _row(1, "b", 0), _row(1, "a", 1, reward=None)]
    groups = group_rows(rows)
    assert [(g["uid"], len(g["members"])) for g in groups] == [("a", 2), ("b", 1)]
    member = groups[0]["members"][1]
    assert member["reward"] is None
    assert member["num"] == 2
    assert member["versions"] == [3, 4]
    assert member["ids"] == [5, 6, 9]
    assert member["logprobs"] == [-0.123, -2.0, None]


def test_long_text_is_cut_and_says_how_much():
    row = _row(1, "a", 0, text="x" * (TEXT_MAX + 7))
    text = group_rows([row])[0]["members"][0]["text"]
    assert text == "x" * TEXT_MAX + " [7 more characters]"


def test_the_size_is_bounded_and_what_is_left_out_is_counted(tmp_path):
    for update in range(4):
        _write(tmp_path, update, [_row(update, f"u{i}", 0) for i in range(10)])
    everything = shown_groups(tmp_path, bytes_max=1_000_000)
    assert len(everything["groups"]) == 40
    assert everything["groups_cut"] == 0
    some = shown_groups(tmp_path, bytes_max=6_000)
    assert len(json.dumps(some["groups"])) < 7_000
    assert some["updates"] == [0, 1, 2, 3]
    assert len(some["groups"]) + some["groups_cut"] == 40


def test_some_dropped_groups_are_shown_beside_the_trained_ones(tmp_path):
    rows = [_row(0, f"t{i}", 0) for i in range(50)]
    rows += [_row(0, f"d{i}", 0, dropped="zero_variance") for i in range(2)]
    _write(tmp_path, 0, rows)
    _write(tmp_path, 1, [])
    (tmp_path / "update-000001.jsonl").rename(tmp_path / "update-000001.dropped.jsonl")
    shown = shown_groups(tmp_path, bytes_max=1_000_000)
    uids = [group["uid"] for group in shown["groups"]]
    assert uids[:9] == ["t0", "t1", "t2", "d0", "t3", "t4", "t5", "d1", "t6"]
    assert shown["groups"][3]["dropped"] == "zero_variance"
    assert shown["groups"][0]["dropped"] is None
    assert shown["updates_total"] == 2


def test_a_run_without_rollouts_shows_none(tmp_path):
    shown = shown_groups(tmp_path / "none", bytes_max=100)
    assert shown == {"groups": [], "updates": [], "updates_total": 0, "groups_cut": 0}


def test_the_newest_groups_are_those_of_the_last_updates(tmp_path):
    assert newest_groups(tmp_path, updates=2, bytes_max=1000) == {
        "groups": [],
        "updates": [],
    }
    for update in (1, 2, 10):
        rows = [_row(update, f"u{update}", sample) for sample in range(2)]
        path = tmp_path / f"update-{update:06d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = newest_groups(tmp_path, updates=2, bytes_max=100_000)
    assert found["updates"] == [2, 10]
    assert [len(group["members"]) for group in found["groups"]] == [2, 2]
