from jigsaw_jax.records import (
    FinishReason,
    Prompt,
    Sample,
    SampleId,
    Score,
    Segment,
)
from jigsaw_jax.runtime.scoring import ScoringDesk


def prompt_of(uid):
    return Prompt(uid=uid, tokens=(1,), text="p", answer="2", task="t")


def sample_of(uid, index):
    segment = Segment(tokens=(5,), logprobs=(-1.0,), versions=(0,))
    return Sample(
        id=SampleId(uid, 0, index),
        attempt=0,
        segments=(segment,),
        finish_reason=FinishReason.STOP,
    )


def deal(num_groups, shuffled):
    got = {}
    desk = ScoringDesk(
        lambda _prompt, sample, receive: receive(Score(value=float(sample.id.sample))),
        lambda sample_id, attempt, score: got.update({(sample_id, attempt): score}),
        samples_per_group=4,
        shuffled=shuffled,
    )
    for group in range(num_groups):
        uid = f"u{group}"
        for index in range(4):
            desk.score(prompt_of(uid), sample_of(uid, index))
    return got


def test_each_score_goes_to_its_own_sample():
    got = deal(5, shuffled=False)
    assert len(got) == 20
    assert all(key[0].sample == score.value for key, score in got.items())


def test_shuffled_scores_stay_in_their_group_and_keep_no_relation_to_the_sample():
    got = deal(400, shuffled=True)
    assert len(got) == 1600
    for group in range(400):
        values = sorted(got[SampleId(f"u{group}", 0, i), 0].value for i in range(4))
        assert values == [0.0, 1.0, 2.0, 3.0]
    # A fair deal leaves a quarter in place; 4 standard errors are 0.05 (n = 1,600).
    in_place = sum(key[0].sample == score.value for key, score in got.items())
    assert abs(in_place / 1600 - 0.25) < 0.05


def test_the_deal_depends_on_the_group_alone():
    assert deal(5, shuffled=True) == deal(5, shuffled=True)
