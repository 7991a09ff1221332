import threading

import pytest

from jigsaw_jax import settings
from jigsaw_jax.data.source import open_source
from jigsaw_jax.data.tokenizer import open_tokenizer
from jigsaw_jax.records import FinishReason, Sample, SampleId, Score, Segment
from jigsaw_jax.runtime.evaluation import (
    Evaluator,
    completion_pieces,
    completion_text,
)
from tests.runtime.test_local import make_train


def completion(sample_id, tokens, version=0):
    return Sample(
        id=sample_id,
        attempt=0,
        segments=(
            Segment(
                tokens=tokens,
                is_sampled=True,
                logprobs=(0.0,) * len(tokens),
                versions=(version,) * len(tokens),
            ),
        ),
        finish_reason=FinishReason.STOP,
    )


def make_evaluator(submit, *, problems, samples):
    train = make_train()
    tokenizer = open_tokenizer(train.tokenizer)
    data = settings.Data(source="random_bytes", prompt_tokens=6, held_out=problems)
    evaluation = settings.Evaluation(samples=samples, k=(1, samples))
    held_out = open_source(
        data, pipeline="main", tokenizer=tokenizer, split="held_out", seed=0
    )
    train = settings.Train(
        updates=1,
        decoder=train.decoder,
        data=data,
        evaluation=evaluation,
        sampler=train.sampler,
        learner=train.learner,
    )
    return Evaluator(train, held_out, tokenizer, submit)


def test_pieces_keep_spaces_and_join_to_the_text_and_its_stop():
    tokenizer = open_tokenizer(
        settings.Tokenizer(
            kind="sentencepiece", path="configs/assets/arithmetic.model", chat=False
        )
    )
    tokens = (*tokenizer.encode("1 + 2 = 3"), tokenizer.eos_id)
    sample = completion(SampleId("p", 0, 0), tokens)
    assert completion_pieces(tokenizer, sample) == [*"1 + 2 = 3", "</s>"]
    assert completion_text(tokenizer, sample) == "1 + 2 = 3"


def test_an_evaluation_waits_for_no_score_and_ends_with_the_last():
    waiting, results = [], []
    evaluator = make_evaluator(
        lambda _, text, deliver: waiting.append((text, deliver)), problems=2, samples=2
    )
    receive = evaluator.begin(results.append)
    requests = evaluator.requests()
    # Versions 3 to 6, last request first: identity joins, never order.
    for version, request in enumerate(reversed(requests), start=3):
        receive(completion(request.id, (65 + request.id.sample,), version))
    assert [text for text, _ in waiting] == ["B", "A", "B", "A"]
    # The second problem: one passes, one hangs and is missing. The first: both pass.
    scores = [Score(value=1.0), Score(value=None), Score(value=1.5), Score(value=1.0)]
    for (_, deliver), score in zip(waiting[:3], scores[:3], strict=True):
        deliver(score)
    assert results == []
    waiting[3][1](scores[3])
    [result] = results
    assert result.accuracy == 0.75
    assert result.pass_at == {1: 0.75, 2: 1.0}
    assert (result.problems, result.missing) == (2, 1)
    assert (result.version_min, result.version_max) == (3, 6)


def test_scores_that_threads_bring_at_once_are_all_counted():
    threads, results = [], []
    barrier = threading.Barrier(40)

    def submit(_, text, deliver):
        def bring():
            barrier.wait()
            deliver(Score(value=float(text == "A")))

        threads.append(threading.Thread(target=bring))
        threads[-1].start()

    evaluator = make_evaluator(submit, problems=20, samples=2)
    receive = evaluator.begin(results.append)
    for request in evaluator.requests():
        receive(completion(request.id, (65 + request.id.sample,)))
    for thread in threads:
        thread.join()
    assert [result.accuracy for result in results] == [0.5]
    assert results[0].pass_at == pytest.approx({1: 0.5, 2: 1.0})
