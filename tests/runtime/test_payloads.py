import pytest

from jigsaw_jax.records import (
    FinishReason,
    GroupId,
    Prompt,
    Sample,
    SampleId,
    Score,
    Segment,
)
from jigsaw_jax.runtime.payloads import Payloads

PROMPT = Prompt(uid="u", tokens=(1,), text="p", answer="2", task="t")


def make_sample(index, attempt=0, token=5):
    segment = Segment(tokens=(token,), logprobs=(-1.0,), versions=(0,))
    return Sample(
        id=SampleId("u", 0, index),
        attempt=attempt,
        segments=(segment,),
        finish_reason=FinishReason.STOP,
    )


def test_a_group_joins_samples_and_scores_by_index_whatever_their_order():
    payloads = Payloads(3)
    payloads.add_prompts([PROMPT])
    for index in (2, 0, 1):
        payloads.add_sample(make_sample(index, token=10 + index))
        payloads.add_score(SampleId("u", 0, index), 0, Score(value=float(index)))
    group = payloads.group(GroupId("u", 0), 7)
    assert [sample.tokens for sample in group.samples] == [(10,), (11,), (12,)]
    assert [score.value for score in group.scores] == [0.0, 1.0, 2.0]
    assert (group.order, group.prompt) == (7, PROMPT)


def test_a_late_completion_of_an_old_attempt_does_not_replace_the_scored_one():
    payloads = Payloads(1)
    payloads.add_prompts([PROMPT])
    payloads.add_sample(make_sample(0, attempt=1, token=21))
    payloads.add_score(SampleId("u", 0, 0), 1, Score(value=1.0))
    payloads.add_sample(make_sample(0, attempt=0, token=20))
    payloads.add_score(SampleId("u", 0, 0), 0, Score(value=0.0))
    group = payloads.group(GroupId("u", 0), 0)
    assert group.samples[0].tokens == (21,)
    assert group.scores[0].value == 1.0


def test_a_group_is_complete_when_each_sample_has_a_score_even_a_failed_one():
    payloads = Payloads(2)
    payloads.add_prompts([PROMPT])
    assert not payloads.is_complete(GroupId("u", 0))
    for index in (1, 0):
        payloads.add_sample(make_sample(index))
        assert payloads.sample(SampleId("u", 0, index), 0) == make_sample(index)
        assert not payloads.is_complete(GroupId("u", 0))
        failed = Score(value=None, failure="timeout")
        payloads.add_score(SampleId("u", 0, index), 0, failed)
    assert payloads.is_complete(GroupId("u", 0))


def test_what_arrives_after_the_group_has_ended_is_let_go():
    payloads = Payloads(1)
    payloads.add_prompts([PROMPT])
    payloads.add_sample(make_sample(0))
    payloads.free([GroupId("u", 0)])
    payloads.add_sample(make_sample(0))
    payloads.add_score(SampleId("u", 0, 0), 0, Score(value=1.0))
    assert payloads.num_open() == 0
    with pytest.raises(KeyError):
        payloads.prompt("u")


def test_another_draw_keeps_the_prompt():
    payloads = Payloads(1)
    payloads.add_prompts([PROMPT])
    payloads.add_sample(make_sample(0))
    payloads.free([GroupId("u", 0)], keep_prompts=True)
    assert payloads.prompt("u") is PROMPT
