import dataclasses
import json
import math
import queue

import numpy as np
import pytest

from jigsaw_jax.records import (
    FinishReason,
    Group,
    GroupId,
    Prompt,
    Sample,
    SampleId,
    Score,
    Segment,
)
from jigsaw_jax.store import files
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.rollouts import Logged, RolloutLog, rollout_rows


def _group():
    prompt = Prompt(uid="main/7/0", tokens=(1, 2), text="1+1=", answer="2", task="sum")
    asked = Segment(tokens=(5, 6), logprobs=(-0.25, -1.5), versions=(3, 4))
    told = Segment(tokens=(9,), logprobs=(), versions=(), is_sampled=False)
    samples = tuple(
        Sample(
            id=SampleId("main/7/0", 0, index),
            attempt=index,
            segments=(asked, told) if index else (asked,),
            finish_reason=FinishReason.LENGTH if index else FinishReason.STOP,
        )
        for index in range(2)
    )
    scores = (
        Score(value=1.0, parts={"task": 1.0}),
        Score(value=None, failure="timeout"),
    )
    return Group(
        id=GroupId("main/7/0", 0),
        order=4,
        prompt=prompt,
        samples=samples,
        scores=scores,
    )


def test_rows_hold_what_the_engine_and_the_reward_said():
    logged = Logged(_group(), advantages=[0.5, 0.0])
    rows = rollout_rows(logged, update=12, texts=["2", "3<b>"])
    assert rows[1] == {
        "update": 12,
        "uid": "main/7/0",
        "draw": 0,
        "sample": 1,
        "attempt": 1,
        "order": 4,
        "task": "sum",
        "prompt": "1+1=",
        "answer": "2",
        "text": "3<b>",
        "segments": [
            {
                "is_sampled": True,
                "tokens": [5, 6],
                "logprobs": [-0.25, -1.5],
                "versions": [3, 4],
            },
            {"is_sampled": False, "tokens": [9], "logprobs": [], "versions": []},
        ],
        "reward": None,
        "parts": {},
        "failure": "timeout",
        "finish": "length",
        "advantage": 0.0,
    }
    assert "dropped" not in rows[1]
    assert rows[0]["reward"] == 1.0
    assert rows[0]["finish"] == "stop"


def test_logprobs_are_written_to_six_places_and_what_is_no_number_as_null(tmp_path):
    rng = np.random.default_rng(0)
    logprobs = rng.normal(-3.0, 2.0, 2000).astype(np.float32)
    segment = Segment(
        tokens=(5,) * 2001,
        logprobs=(*logprobs.tolist(), math.nan),
        versions=(3,) * 2001,
    )
    group = _group()
    sample = dataclasses.replace(group.samples[0], segments=(segment,))
    group = dataclasses.replace(group, samples=(sample,), scores=group.scores[:1])
    log = RolloutLog(tmp_path)
    log.write(0, rollout_rows(Logged(group), update=0, texts=["half \ud800"]))
    log.close()
    (row,) = files.read_lines(tmp_path / "update-000000.jsonl")
    assert row["text"] == "half \ud800"
    *written, last = row["segments"][0]["logprobs"]
    # The float that is nearest to the decimal that `round` gives.
    assert written == [round(value, 6) for value in logprobs.tolist()]
    # As this row has text that JSON alone can spell.
    assert math.isnan(last)


def test_rows_of_a_dropped_group_say_why_and_have_no_advantage():
    logged = Logged(_group(), dropped="zero_variance")
    rows = rollout_rows(logged, update=12, texts=["2", "3"])
    assert [row["dropped"] for row in rows] == ["zero_variance"] * 2
    assert not any("advantage" in row for row in rows)


def test_what_was_dropped_before_an_update_stays_when_it_is_made_later(tmp_path):
    log = RolloutLog(tmp_path)
    log.write(3, [{"text": "dropped"}], is_trained=False)
    log.write(3, [{"text": "trained"}])
    log.close()
    assert "dropped" in (tmp_path / "update-000003.dropped.jsonl").read_text()
    assert "trained" in (tmp_path / "update-000003.jsonl").read_text()


def test_each_update_has_its_file_and_a_second_write_replaces_it(tmp_path):
    log = RolloutLog(tmp_path / "rollouts")
    log.write(12, [{"text": "old"}])
    log.write(12, [{"text": "a\nü"}, {"text": "b"}])
    log.write(13, [])
    log.close()
    assert sorted(p.name for p in (tmp_path / "rollouts").iterdir()) == [
        "update-000012.jsonl",
        "update-000013.jsonl",
    ]
    lines = (tmp_path / "rollouts" / "update-000012.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a\nü", "b"]


def test_a_failed_write_is_reported_at_once_and_at_the_next_call(tmp_path):
    (tmp_path / "rollouts").write_text("a file in the way")
    failed = queue.SimpleQueue()
    log = RolloutLog(tmp_path / "rollouts", on_failed=failed.put)
    log.write(0, [{}])
    assert isinstance(failed.get(timeout=10), StoreError)
    with pytest.raises(StoreError, match="cannot write"):
        log.close()
