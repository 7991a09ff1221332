"""The host loop: admission, identity of samples, versions, prefixes, cancellation."""

import dataclasses
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax.records import FinishReason, SampleId
from jigsaw_jax.sample import loop as loops
from jigsaw_jax.sample.loop import LEAVING, SampleLoop, SampleRequest, key_words
from tests.sample import tiny


@pytest.fixture(
    autouse=True,
    params=[{}, pytest.param(tiny.PAGES, marks=pytest.mark.slow)],
    ids=["slots", "pages"],
)
def _cache(request, monkeypatch):
    """Every test runs on a cache of slots and on one of pages."""
    sampler = dataclasses.replace(tiny.SAMPLER, **request.param)
    monkeypatch.setattr(tiny, "SAMPLER", sampler)


def _request(uid="p", sample=0, draw=0, attempt=0, prompt=(5, 9, 33), **settings):
    sample_id = SampleId(uid, draw, sample)
    return SampleRequest(
        id=sample_id,
        attempt=attempt,
        prompt_tokens=prompt,
        key_words=key_words(0, "main", sample_id),
        **{"new_tokens_max": 12, **settings},
    )


def _drain(loop):
    finished = []
    for _ in range(200):
        if loop.is_idle:
            return finished
        finished.extend(loop.step().finished)
    raise AssertionError("the loop must become idle, and does not")


def _loop(params=None, **engine):
    return SampleLoop(tiny.engine(**engine), params or tiny.params(), version=3)


def _counted(monkeypatch):
    """An engine that notes the prompts it prefills and the slots it fills."""
    engine = tiny.engine()
    prefills, inserts = [], []
    prefill, insert = engine.prefill_prompt, engine.insert_many

    def prefill_prompt(params, tokens):
        prefills.append(tuple(tokens))
        return prefill(params, tokens)

    def insert_many(prefix, state, requests):
        inserts.append([request.slot for request in requests])
        return insert(prefix, state, requests)

    monkeypatch.setattr(engine, "prefill_prompt", prefill_prompt)
    monkeypatch.setattr(engine, "insert_many", insert_many)
    return engine, prefills, inserts


def test_samples_hold_what_the_engine_drew_under_the_forward_logprobs():
    loop = _loop()
    loop.submit(_request(temperature=0.5, new_tokens_max=11))
    (sample,) = _drain(loop)
    assert sample.id == SampleId("p", 0, 0)
    (segment,) = sample.segments
    assert segment.is_sampled
    assert len(segment.tokens) == len(sample.entropies) == 11
    assert segment.versions == (3,) * 11
    assert sample.finish_reason is FinishReason.LENGTH
    expected = tiny.forward_logprobs(tiny.params(), (5, 9, 33), segment.tokens, 0.5)
    np.testing.assert_allclose(segment.logprobs, expected, atol=1e-5)


def test_more_requests_than_slots_all_end_once_with_the_bits_of_a_lone_run():
    loop = _loop()
    requests = [
        _request(uid=f"p{i % 5}", sample=i, prompt=(i % 5,) * (1 + i % 5), attempt=i,
                 new_tokens_max=1 + i % 12, temperature=(0.5, 1.0, 1.7)[i % 3])
        for i in range(23)
    ]  # fmt: skip
    for request in requests:
        loop.submit(request)
    finished = {sample.id: sample for sample in _drain(loop)}
    assert len(finished) == 23
    for request in requests[::4]:
        alone = _loop(steps_per_call=1)
        alone.submit(request)
        (sample,) = _drain(alone)
        assert sample == finished[request.id]
        assert sample.num_sampled == request.new_tokens_max


def test_requests_start_in_order_of_submission_and_a_freed_slot_is_refilled_at_once():
    loop = _loop()
    for i in range(7):
        # The first is done after one token, the others after several calls.
        loop.submit(_request(sample=i, new_tokens_max=1 if i == 0 else 12))
    assert loop.num_free == 0
    first, second = loop.step(), loop.step()
    assert [sample_id.sample for sample_id, _ in first.started] == [0, 1, 2, 3]
    assert [sample.id.sample for sample in first.finished] == [0]
    assert (first.num_active, first.num_tokens) == (4, 1 + 3 * 5)
    assert [sample_id.sample for sample_id, _ in second.started] == [4]
    assert second.num_active == 4


def test_a_group_is_prefilled_once_also_when_it_starts_in_pieces(monkeypatch):
    engine, prefills, inserts = _counted(monkeypatch)
    loop = SampleLoop(engine, tiny.params(), version=0)
    for uid, prompt in (("a", (1, 2)), ("b", (3, 4, 5))):
        for i in range(5):
            loop.submit(_request(uid=uid, sample=i, prompt=prompt))
    assert len(_drain(loop)) == 10
    assert prefills == [(1, 2), (3, 4, 5)]
    assert inserts[0] == [0, 1, 2, 3]


def test_a_group_of_16_has_distinct_completions_and_a_redraw_differs():
    params = jax.tree.map(jnp.zeros_like, tiny.params())
    loop = _loop(params)
    for draw in (0, 1):
        for i in range(16):
            loop.submit(_request(sample=i, draw=draw))
    tokens = {sample.id: sample.tokens for sample in _drain(loop)}
    assert len(set(tokens.values())) == 32


def test_another_worker_and_another_attempt_give_the_same_tokens():
    first, second = _loop(), _loop(slots=3, steps_per_call=2)
    second.submit(_request(uid="other", prompt=(1, 1, 1)))
    first.submit(_request(attempt=0))
    second.submit(_request(attempt=7))
    (a,) = _drain(first)
    b = next(s for s in _drain(second) if s.id.uid == "p")
    # Another number of slots is another batch height, whose products round apart.
    assert a.tokens == b.tokens
    np.testing.assert_allclose(
        a.segments[0].logprobs, b.segments[0].logprobs, atol=1e-5
    )
    assert b.attempt == 7


def test_each_token_carries_the_version_that_sampled_it():
    loop = _loop()
    loop.submit(_request())
    loop.step()
    loop.set_params(tiny.params(1), 4)
    (sample,) = _drain(loop)
    assert sample.segments[0].versions == (3,) * 5 + (4,) * 7
    assert (sample.version_min, sample.version_max) == (3, 4)


def test_a_swap_takes_effect_whole_between_two_calls():
    # Layers that add nothing and one embedding twice as long: version v says token v.
    base = jax.tree.map(jnp.zeros_like, tiny.params())

    def saying(token):
        table = jnp.ones_like(base["ends"]["embedding"]).at[token].set(2.0)
        norm = jnp.ones_like(base["ends"]["final_norm"])
        return {**base, "ends": {"embedding": table, "final_norm": norm}}

    loop = SampleLoop(tiny.engine(), saying(3), version=3)
    for i in range(6):
        loop.submit(_request(sample=i))
    finished = list(loop.step().finished)
    loop.set_params(saying(4), 4)
    finished += loop.step().finished
    loop.set_params(saying(5), 5)
    finished += _drain(loop)
    assert len(finished) == 6
    seen = {sample.segments[0].versions for sample in finished}
    assert (3,) * 5 + (4,) * 5 + (5,) * 2 in seen
    for sample in finished:
        assert sample.tokens == sample.segments[0].versions


def test_the_weights_before_a_swap_are_let_go_in_the_steps_behind_it():
    # Others have the fixture's own.
    params = jax.tree.map(jnp.copy, tiny.params())
    loop = SampleLoop(tiny.engine(), params, version=3)
    old = [weakref.ref(leaf) for leaf in jax.tree.leaves(params)]
    del params
    loop.submit(_request())
    loop.step()
    loop.set_params(tiny.params(1), 4)
    left = []
    for _ in range(2):
        left.append(sum(ref() is not None for ref in old))
        loop.step()
    assert left == [len(old), max(len(old) - LEAVING, 0)]
    assert len(old) <= 2 * LEAVING


def test_prefixes_of_other_weights_are_not_used():
    loop = _loop()
    loop.submit(_request(sample=0))
    _drain(loop)
    loop.set_params(tiny.params(1), 4)
    loop.submit(_request(sample=1))
    (after,) = _drain(loop)
    fresh = SampleLoop(tiny.engine(), tiny.params(1), version=4)
    fresh.submit(_request(sample=1))
    assert _drain(fresh) == [after]


def test_running_slots_keep_their_cache_over_a_swap():
    loop = _loop()
    loop.submit(_request())
    loop.step()
    loop.set_params(tiny.params(1), 4)
    (mixed,) = _drain(loop)
    tokens = mixed.tokens
    # Under the new weights alone the same tokens have other logprobs.
    new = tiny.forward_logprobs(tiny.params(1), (5, 9, 33), tokens, 1.0)
    assert np.abs(np.array(mixed.segments[0].logprobs) - new)[5:].max() > 1e-3


def test_cancelling_frees_the_slot_and_leaves_the_others_alone():
    loop = _loop()
    for i in range(6):
        loop.submit(_request(sample=i))
    loop.step()
    loop.cancel(SampleId("p", 0, 1), attempt=9)
    loop.cancel(SampleId("p", 0, 1), attempt=0)
    loop.cancel(SampleId("p", 0, 5), attempt=0)
    report = loop.step()
    assert [sample_id.sample for sample_id, _ in report.started] == [4]
    finished = {s.id.sample: s for s in (*report.finished, *_drain(loop))}
    assert sorted(finished) == [0, 2, 3, 4]
    untouched = _loop()
    untouched.submit(_request(sample=2))
    assert _drain(untouched) == [finished[2]]


def test_an_attempt_cancelled_while_it_runs_can_be_tried_again():
    loop = _loop()
    loop.submit(_request(attempt=0))
    loop.submit(_request(sample=1))
    loop.step()
    loop.cancel(SampleId("p", 0, 0), 0)
    assert loop.step().num_tokens == 5
    loop.cancel(SampleId("p", 0, 1), 0)
    assert loop.is_idle
    assert loop.num_free == 4
    assert loop.step().num_active == 0
    loop.submit(_request(attempt=1))
    (sample,) = _drain(loop)
    assert sample.attempt == 1
    assert len(sample.tokens) == 12


def test_a_stop_token_ends_the_sample_is_kept_and_is_not_a_truncation():
    at = 3
    key = tiny.stopping((5, 9, 33), at)
    request = dataclasses.replace(_request(), key_words=key)
    loop = _loop()
    loop.submit(request)
    (whole,) = _drain(loop)
    for cap in (12, at + 1):
        stopping = _loop(stop_tokens=(60, tiny.STOP_TOKEN, -1))
        stopping.submit(dataclasses.replace(request, new_tokens_max=cap))
        (sample,) = _drain(stopping)
        assert sample.tokens == whole.tokens[: at + 1]
        assert sample.tokens[-1] == tiny.STOP_TOKEN
        assert sample.finish_reason is FinishReason.STOP
        assert not sample.is_truncated


def test_what_cannot_run_is_refused_when_it_is_submitted():
    loop = _loop()
    loop.submit(_request())
    with pytest.raises(ValueError, match="a second time"):
        loop.submit(_request())
    loop.step()
    with pytest.raises(ValueError, match="a second time"):
        loop.submit(_request())
    with pytest.raises(ValueError, match="must have 1 to 8 tokens"):
        loop.submit(_request(sample=1, prompt=(1,) * 9))
    for cap in (0, 13):
        with pytest.raises(ValueError, match="new_tokens_max must be 1 to"):
            loop.submit(_request(sample=1, new_tokens_max=cap))


def test_kept_prefixes_are_bounded(monkeypatch):
    engine, prefills, _ = _counted(monkeypatch)
    loop = SampleLoop(engine, tiny.params(), version=0)
    for i in range(loops.PREFIXES_MAX + 1):
        loop.submit(_request(uid=str(i), prompt=(i,), new_tokens_max=1))
    _drain(loop)
    loop.submit(_request(uid="last", prompt=(loops.PREFIXES_MAX,), new_tokens_max=1))
    loop.submit(_request(uid="first", prompt=(0,), new_tokens_max=1))
    _drain(loop)
    assert len(prefills) == loops.PREFIXES_MAX + 2
    assert prefills[-1] == (0,)


def test_a_paused_sample_goes_on_in_another_slot_with_the_bits_of_one_that_ran_on():
    requests = [_request(sample=i, new_tokens_max=12) for i in range(2)]
    whole = _loop()
    for request in requests:
        whole.submit(request)
    expected = {sample.id: sample.segments for sample in _drain(whole)}
    loop = _loop()
    for request in requests:
        loop.submit(request)
    loop.step()
    for request in requests:
        loop.pause(request.id, 0)
    assert loop.is_idle
    # Resumed the other way round, so that each takes the other's slot.
    for request in reversed(requests):
        loop.resume(request.id, 0)
    assert {sample.id: sample.segments for sample in _drain(loop)} == expected


def test_what_never_ran_can_pause_too_and_what_has_ended_can_not():
    loop = _loop()
    request = _request(new_tokens_max=3)
    loop.submit(request)
    loop.pause(request.id, 0)
    assert loop.is_idle
    loop.resume(request.id, 0)
    (sample,) = _drain(loop)
    assert len(sample.tokens) == 3
    loop.pause(request.id, 0)
    loop.resume(request.id, 0)
    assert loop.is_idle


def test_a_cancelled_pause_is_forgotten():
    loop = _loop()
    loop.submit(_request())
    loop.step()
    loop.pause(SampleId("p", 0, 0), 0)
    loop.cancel(SampleId("p", 0, 0), 0)
    loop.resume(SampleId("p", 0, 0), 0)
    assert loop.is_idle
    assert loop.num_free == loop._engine.max_concurrent_decodes


def _drained():
    settings = {"cache": "slots", "slots": 8, "slots_draining": (4,)}
    return SampleLoop(tiny.engine(**settings), tiny.params(), version=3)


def _undrained(monkeypatch, requests):
    """What the same programs sample where all slots go on."""
    with monkeypatch.context() as patch:
        patch.setattr(loops, "next_size", lambda _, num_slots, __: num_slots)
        loop = _drained()
        for request in requests:
            loop.submit(request)
        return {sample.id.sample: sample for sample in _drain(loop)}


def test_fewer_slots_take_over_as_they_are_enough_and_change_no_bit(monkeypatch):
    requests = [
        _request(uid=f"p{i % 3}", sample=i, new_tokens_max=1 + i * 5 % 12)
        for i in range(19)
    ]
    plain = _undrained(monkeypatch, requests)
    loop, drained, sizes = _drained(), [], []
    for request in requests:
        loop.submit(request)
    while not loop.is_idle:
        drained.extend(loop.step().finished)
        sizes.append(loop._state.num_slots)
    assert {sample.id.sample: sample for sample in drained} == plain
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1], loop.num_free) == (8, 4, 8)
    # One starts in the few slots; with six more there are all of them again.
    loop.submit(requests[2])
    loop.step()
    assert loop._state.num_slots == 4
    for request in requests[3:9]:
        loop.submit(request)
    again = {sample.id.sample: sample for sample in _drain(loop)}
    assert again == {i: plain[i] for i in range(2, 9)}


def test_a_drained_sample_can_be_cancelled_and_paused_in_its_new_slot(monkeypatch):
    requests = [_request(sample=i, new_tokens_max=12 if i > 4 else 1) for i in range(8)]
    plain, loop = _undrained(monkeypatch, requests), _drained()
    for request in requests:
        loop.submit(request)
    loop.step()
    assert loop.step().num_active == 3
    assert loop._state.num_slots == 4
    loop.cancel(SampleId("p", 0, 5), 0)
    loop.pause(SampleId("p", 0, 6), 0)
    loop.resume(SampleId("p", 0, 6), 0)
    ended = {sample.id.sample: sample for sample in _drain(loop)}
    assert ended == {i: plain[i] for i in (6, 7)}


def test_sizes_step_down_one_by_one_and_go_back_to_all():
    sampler = dataclasses.replace(
        tiny.SAMPLER, cache="slots", slots=32, slots_draining=(4, 8, 16)
    )
    size = loops.next_size
    assert [size(sampler, 32, n) for n in (32, 17, 16, 9, 3, 0)] == [
        32, 32, 16, 16, 16, 16,
    ]  # fmt: skip
    assert [size(sampler, 16, n) for n in (16, 8, 1, 17)] == [16, 8, 8, 32]
    assert [size(sampler, 4, n) for n in (0, 4, 5)] == [4, 4, 32]
