"""Whose the pages are, and that a cache of pages gives a cache of slots' bits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jigsaw_jax import mesh as meshes
from jigsaw_jax import settings as settings_of
from jigsaw_jax.records import SampleId
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest, key_words
from jigsaw_jax.sample.pages import PageTable
from jigsaw_jax.sample.state import SlotRequest
from tests.sample import tiny

PROMPT = (5, 9, 33, 2, 17, 8, 1)


def _num_free(state):
    assert state.pages is not None
    return state.pages.num_free


def _table(num_pages=20, replicas=1, num_slots=4):
    return PageTable(
        num_slots=num_slots,
        pages_per_slot=5,
        page_size=4,
        num_pages=num_pages + replicas,
        replicas=replicas,
    )


def test_a_group_shares_the_pages_that_its_prompt_fills():
    table = _table()
    # Nine prompt tokens before the one that is fed again: two full pages; 14 in all
    # are four pages.
    first = table.take(0, 14, prefix="a", num_shared=9)
    second = table.take(1, 14, prefix="a", num_shared=9)
    assert table.num_free == 20 - 2 - 2 * 2
    shared = table.tables_BO[0, :2].tolist()
    assert table.tables_BO[1, :2].tolist() == shared
    assert len({*table.tables_BO[0, :4], *table.tables_BO[1, 2:4]}) == 6
    # The first writes all four, the second only its own; 21 is no page.
    assert first.tolist() == [*table.tables_BO[0, :4], 21]
    assert second.tolist() == [21, 21, *table.tables_BO[1, 2:4], 21]
    assert (table.tables_BO[:2, 4] == 0).all()
    table.give_back(0)
    assert table.tables_BO[1, :2].tolist() == shared
    assert table.num_free == 20 - 4
    table.give_back(1)
    assert table.num_free == 20


def test_a_full_page_of_the_prompt_is_not_shared_where_its_last_token_is_fed_again():
    table = _table()
    # The prompt has 8 tokens: 7 lie before the one that each slot feeds again.
    table.take(0, 9, prefix="a", num_shared=7)
    table.take(1, 9, prefix="a", num_shared=7)
    assert table.num_free == 20 - 1 - 2 * 2


def test_requests_are_placed_while_pages_last_and_never_beyond():
    table = _table(num_pages=9)
    # Shared 2 and own 2, then 2 each: 4, 6, 8, and the fourth would need 10.
    assert table.place([0, 1, 2, 3], "a", 9, [14] * 4) == [0, 1, 2]
    for slot in (0, 1, 2):
        table.take(slot, 14, prefix="a", num_shared=9)
    assert table.place([3], "a", 9, [14]) == []
    assert table.place([3], "a", 9, [12]) == [3]
    with pytest.raises(ValueError, match="must leave 2 pages free, got 1"):
        table.take(3, 14, prefix="a", num_shared=9)
    # Another prefix has nothing to share.
    assert table.place([3], "b", 9, [12]) == []


def test_a_group_stays_on_the_replica_that_has_its_prompt():
    table = _table(num_pages=20, replicas=2)
    slots = table.place([0, 1, 2, 3], "a", 9, [14] * 3)
    assert slots == [0, 1, 2]
    for slot in slots:
        table.take(slot, 14, prefix="a", num_shared=9)
    # Slot 2 is the other replica's, whose pages start at 11.
    assert table.tables_BO[0].max() < 11 <= table.tables_BO[2].min()
    assert table.num_free == 20 - 6 - 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "grow", "give_back"]),
            st.integers(0, 5),
            st.integers(1, 24),
            st.sampled_from(["a", "b", None]),
            st.integers(0, 24),
        ),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_page_is_lost_or_written_by_two(steps):
    table = _table(num_pages=24, replicas=2, num_slots=6)
    shared_by = {"a": 9, "b": 4, None: 0}
    for name, slot, tokens, prefix, more in steps:
        try:
            if name == "take":
                shared = shared_by[prefix]
                tokens = max(tokens, shared + 1)
                if prefix and table.place([slot], prefix, shared, [tokens]) != [slot]:
                    table.give_back(slot)
                    if table.place([slot], prefix, shared, [tokens]) != [slot]:
                        continue
                table.take(slot, tokens, prefix=prefix, num_shared=shared)
            elif name == "grow":
                table.grow(slot, more)
            else:
                table.give_back(slot)
        except ValueError:
            continue
        own = [page for pages in table._own.values() for page in pages]
        shared = [page for kept in table._shared.values() for page in kept.pages]
        free = [page for pages in table._free for page in pages]
        # 24 pages but for the zero page of each replica, 0 and 13.
        assert sorted(own + shared + free) == [*range(1, 13), *range(14, 26)]
        assert sum(s.users for s in table._shared.values()) == len(table._prefix_of)
        for other in range(6):
            is_first = other < 3
            row = table.tables_BO[other]
            assert ((row < 13) == is_first).all()
            num_shared, num = table._extent(other) if other in table._own else (0, 0)
            assert row[num_shared:num].tolist() == table._own.get(other, [])
            assert (row[num:] == (0 if is_first else 13)).all()


def _engine(**changes):
    return tiny.engine(**{**tiny.PAGES, **changes})


def _group(engine, params, caps=(12, 5, 9)):
    prefix = engine.prefill_prompt(params, PROMPT)
    requests = [
        SlotRequest(slot=slot, key_words=(slot, 9), new_tokens_max=cap)
        for slot, cap in enumerate(caps)
    ]
    state = engine.insert_many(prefix, engine.init_decode_state(), requests)
    return prefix, state


@pytest.mark.parametrize(
    "page_size",
    [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4, 64))],
)
def test_pages_give_the_bits_of_slots_whatever_their_size(page_size):
    params = tiny.params()
    found = []
    for engine in (tiny.engine(), _engine(page_size=page_size)):
        _, state = _group(engine, params)
        found.append(tiny.run(engine, params, state, range(3))[1])
    assert found[0] == found[1]


def test_a_later_sibling_shares_pages_that_its_brothers_are_decoding_behind():
    engine, params = _engine(num_pages=16), tiny.params()
    prefix, state = _group(engine, params)
    free = _num_free(state)
    state, _ = engine.generate_steps(params, state)
    request = SlotRequest(slot=3, key_words=(3, 9), new_tokens_max=5)
    state = engine.insert_many(prefix, state, [request])
    # 6 tokens lie before the one fed again: one page is shared of three.
    assert _num_free(state) == free - 2
    _, found, _ = tiny.run(engine, params, state, [3])
    alone = tiny.sample(tiny.engine(), params, PROMPT, key=(3, 9), new_tokens_max=5)
    assert found[3] == alone[:3]


def test_pages_given_to_others_are_not_written_by_a_slot_that_has_ended():
    engine, params = _engine(num_pages=5), tiny.params()
    alone = tiny.sample(engine, params, (3, 4), key=(7, 7))
    state = engine.init_decode_state()
    prefix = engine.prefill_prompt(params, PROMPT)
    request = SlotRequest(slot=0, key_words=(0, 9), new_tokens_max=2)
    state = engine.insert_many(prefix, state, [request])
    state, result = engine.generate_steps(params, state)
    assert result.done.all()
    engine.forget(state, 0)
    prefix = engine.prefill_prompt(params, (3, 4))
    request = SlotRequest(slot=1, key_words=(7, 7), new_tokens_max=12)
    state = engine.insert_many(prefix, state, [request])
    state, found, _ = tiny.run(engine, params, state, [1])
    assert found[1] == alone[:3]
    with pytest.raises(ValueError, match="slot 0 must hold a sequence"):
        engine.extend(params, state, 0, (1,))


def test_an_observation_takes_further_pages_that_hold_nothing_of_their_last_owner():
    engine, params = _engine(num_pages=5), tiny.params()
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    prefix = engine.prefill_prompt(broken, (1,) * 8)
    request = SlotRequest(slot=0, key_words=(0, 9), new_tokens_max=12)
    state = engine.insert_many(prefix, engine.init_decode_state(), [request])
    state, _ = engine.generate_steps(broken, state)
    state = engine.release(state, 0)
    prefix = engine.prefill_prompt(params, (5, 9))
    request = SlotRequest(slot=1, key_words=(7, 7), new_tokens_max=2)
    state = engine.insert_many(prefix, state, [request])
    assert _num_free(state) == 4
    state = engine.extend(params, state, 1, (11, 12, 13))
    assert _num_free(state) == 3
    _, found, _ = tiny.run(engine, params, state, [1])
    fresh = tiny.sample(
        tiny.engine(), params, (5, 9, 11, 12, 13), key=(7, 7), new_tokens_max=2
    )
    assert found[1][0] == fresh[0]
    np.testing.assert_allclose(found[1][1], fresh[1], atol=1e-5)


def test_a_slot_moves_from_slots_to_pages_bit_for_bit():
    params, whole = tiny.params(), tiny.sample(tiny.engine(), tiny.params(), PROMPT)
    first, second = tiny.engine(), _engine()
    prefix = first.prefill_prompt(params, PROMPT)
    request = SlotRequest(slot=0, key_words=(1, 2), new_tokens_max=12)
    state = first.insert_many(prefix, first.init_decode_state(), [request])
    state, result = first.generate_steps(params, state)
    snapshot = jax.device_get(first.extract(state, 0))
    state = second.insert_snapshot(second.init_decode_state(), 3, snapshot)
    assert _num_free(state) == 20 - 5
    _, found, _ = tiny.run(second, params, state, [3])
    assert result.tokens_TB[:, 0].tolist() + found[3][0] == whole[0]
    assert result.logprobs_TB[:, 0].tolist() + found[3][1] == whole[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cache", [pytest.param("slots", marks=pytest.mark.slow), "pages"]
)
def test_int8_bends_logprobs_a_little_and_moves_with_its_slot(cache):
    params, key = tiny.params(), (1, 2)
    changes = tiny.PAGES if cache == "pages" else {}
    engine = tiny.engine(kv_dtype="int8", **changes)
    found = tiny.sample(engine, params, PROMPT, key)
    exact = tiny.forward_logprobs(params, PROMPT, found[0], 1.0)
    error = np.abs(np.array(found[1]) - exact)
    # A step of int8 is 0.8 % of a head's largest value.
    assert 1e-5 < error.max() < 0.1
    prefix = engine.prefill_prompt(params, PROMPT)
    request = SlotRequest(slot=0, key_words=key, new_tokens_max=12)
    state = engine.insert_many(prefix, engine.init_decode_state(), [request])
    state, result = engine.generate_steps(params, state)
    snapshot = jax.device_get(engine.extract(state, 0))
    state = engine.insert_snapshot(state, 2, snapshot)
    state = engine.release(state, 0)
    _, moved, _ = tiny.run(engine, params, state, [2])
    assert result.logprobs_TB[:, 0].tolist() + moved[2][1] == found[1]
    plain = tiny.sample(tiny.engine(kv_dtype="int8"), params, PROMPT, key)
    assert found == plain


@pytest.mark.slow
def test_an_observation_is_quantised_too():
    params = tiny.params()
    found = []
    for changes in ({}, tiny.PAGES):
        engine = tiny.engine(kv_dtype="int8", **changes)
        prefix = engine.prefill_prompt(params, (5, 9))
        request = SlotRequest(slot=1, key_words=(7, 7), new_tokens_max=6)
        state = engine.insert_many(prefix, engine.init_decode_state(), [request])
        state, first = engine.generate_steps(params, state)
        state = engine.extend(params, state, 1, (11, 12, 13))
        _, rest, _ = tiny.run(engine, params, state, [1])
        found.append((first.tokens_TB[:, 1].tolist(), rest[1]))
    assert found[0] == found[1]
    tokens = [*found[0][0], 11, 12, 13, *found[0][1][0]]
    exact = tiny.forward_logprobs(params, (5, 9), tokens, 1.0)[8:]
    np.testing.assert_allclose(found[0][1][1], exact, atol=0.1)


def _sampled(engine, params=None, num=14):
    loop = SampleLoop(engine, params or tiny.params(), version=0)
    for i in range(num):
        sample_id = SampleId(f"p{i // 3}", 0, i)
        loop.submit(
            SampleRequest(
                id=sample_id,
                attempt=0,
                prompt_tokens=(i // 3 + 1,) * (1 + i // 3),
                key_words=key_words(0, "main", sample_id),
                new_tokens_max=1 + 5 * i % 12,
            )
        )
    finished, most = [], 0
    for _ in range(300):
        if loop.is_idle:
            assert loop._state.pages is None or not loop._state.pages._own
            return {sample.id: sample for sample in finished}, most
        report = loop.step()
        finished += report.finished
        most = max(most, report.num_active)
    raise AssertionError("the loop must become idle, and does not")


@pytest.mark.slow
def test_few_pages_delay_samples_and_neither_lose_nor_change_any():
    plenty, most = _sampled(tiny.engine())
    scarce, fewer = _sampled(_engine(num_pages=6))
    assert scarce == plenty
    assert len(scarce) == 14
    assert fewer < most == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "tensor"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_replicas_give_the_tokens_of_one_device(data, tensor, scan):
    mesh = meshes.sampler_mesh(
        settings_of.Mesh(sampler_data=data, sampler_tensor=tensor, shared=True),
        jax.devices(),
    )
    decoder = dataclasses.replace(tiny.DECODER, scan_layers=scan)
    params = tiny.model.stack(tiny.params()) if scan else tiny.params()
    sampler = dataclasses.replace(tiny.SAMPLER, **tiny.PAGES)
    engine = Engine(decoder, sampler, mesh, stop_tokens=())
    placed = engine.load_params(params)
    expected, _ = _sampled(tiny.engine())
    found, _ = _sampled(engine, placed)
    for sample_id, sample in expected.items():
        other = found[sample_id]
        assert other.tokens == sample.tokens
        for mine, theirs in zip(sample.segments, other.segments, strict=True):
            np.testing.assert_allclose(theirs.logprobs, mine.logprobs, atol=1e-5)
    # A moved slot crosses the replicas.
    prefix = engine.prefill_prompt(placed, PROMPT)
    request = SlotRequest(slot=0, key_words=(1, 2), new_tokens_max=12)
    state = engine.insert_many(prefix, engine.init_decode_state(), [request])
    state, result = engine.generate_steps(placed, state)
    snapshot = jax.device_get(engine.extract(state, 0))
    state = engine.insert_snapshot(state, 3, snapshot)
    state = engine.release(state, 0)
    _, moved, _ = tiny.run(engine, placed, state, [3])
    whole = tiny.sample(tiny.engine(), tiny.params(), PROMPT)
    assert result.tokens_TB[:, 0].tolist() + moved[3][0] == whole[0]
