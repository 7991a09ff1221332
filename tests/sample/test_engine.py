"""The engine: what a token depends on, caps and stops, and moving slots about."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import settings
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.state import LENGTH, RUNNING, STOP, SlotRequest
from jigsaw_jax.sample.warm_up import warm_up
from tests.sample import tiny

PROMPT = (5, 9, 33, 2, 17)


@pytest.fixture(
    autouse=True,
    params=[{}, pytest.param(tiny.PAGES, marks=pytest.mark.slow)],
    ids=["slots", "pages"],
)
def _cache(request, monkeypatch):
    """Every test runs on a cache of slots and on one of pages."""
    sampler = dataclasses.replace(tiny.SAMPLER, **request.param)
    monkeypatch.setattr(tiny, "SAMPLER", sampler)


def _insert(engine, params, state, prompt, **request):
    prefix = engine.prefill_prompt(params, prompt)
    request = {"key_words": (1, 2), "new_tokens_max": 12, **request}
    return engine.insert_many(prefix, state, [SlotRequest(**request)])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_those_of_the_forward_pass_whatever_the_padding(temperature):
    engine, params = tiny.engine(), tiny.params()
    for length in (1, 2, 4, 5, 8):
        prompt = (PROMPT * 2)[:length]
        tokens, logprobs, _, _ = tiny.sample(
            engine, params, prompt, key=(length, 3), temperature=temperature
        )
        assert len(set(tokens)) > 3
        for pad_to in (24, 31):
            expected = tiny.forward_logprobs(
                params, prompt, tokens, temperature, pad_to
            )
            np.testing.assert_allclose(logprobs, expected, atol=1e-5)


def test_same_draw_gives_the_same_bits_in_any_slot_among_any_neighbours():
    engine, params = tiny.engine(), tiny.params()
    alone = tiny.sample(engine, params, PROMPT)
    for slot in (1, 2, 3):
        state = engine.init_decode_state()
        # A neighbour with a filter starts 5 steps before, another stops early.
        before, after = (slot + 1) % 4, (slot + 2) % 4
        state = _insert(engine, params, state, (1, 2), slot=before, top_k=3)
        state, _ = engine.generate_steps(params, state)
        state = _insert(
            engine, params, state, (7,) * 8, slot=after, new_tokens_max=2, top_p=0.5
        )
        state = _insert(engine, params, state, PROMPT, slot=slot)
        _, found, result = tiny.run(engine, params, state, [slot])
        assert (*found[slot], result.reasons_B[slot]) == alone


def test_same_draw_gives_the_same_bits_however_many_steps_a_call_has():
    params = tiny.params()
    first, second = (
        tiny.sample(tiny.engine(steps_per_call=steps), params, PROMPT)
        for steps in (1, 5)
    )
    assert first == second


def test_key_and_position_decide_the_token():
    engine, params = tiny.engine(), jax.tree.map(jnp.zeros_like, tiny.params())
    # Zero weights make every distribution uniform, so only the key is left.
    first = tiny.sample(engine, params, PROMPT, key=(1, 2))[0]
    assert first != tiny.sample(engine, params, PROMPT, key=(1, 3))[0]
    assert first != tiny.sample(engine, params, PROMPT, key=(2, 2))[0]
    assert len(set(first)) > 8
    # One token more in the prompt moves every position by one.
    shifted = tiny.sample(engine, params, (*PROMPT, 1), key=(1, 2))[0]
    assert shifted[:-1] == first[1:]


def test_one_prefix_in_many_slots_samples_as_many_completions():
    engine, params = tiny.engine(), tiny.params()
    prefix = engine.prefill_prompt(params, PROMPT)
    requests = [
        SlotRequest(slot=slot, key_words=(slot, 9), new_tokens_max=12)
        for slot in (3, 1, 0)
    ]
    state = engine.insert_many(prefix, engine.init_decode_state(), requests)
    _, found, _ = tiny.run(engine, params, state, [0, 1, 3])
    assert len({tuple(tokens) for tokens, _, _ in found.values()}) == 3
    for slot, columns in found.items():
        alone = tiny.sample(engine, params, PROMPT, key=(slot, 9))
        assert columns == alone[:3]


@pytest.mark.parametrize("cap", [1, 4, 5, 12])
def test_a_cap_gives_exactly_that_many_tokens_and_logprobs(cap):
    engine, params = tiny.engine(), tiny.params()
    tokens, logprobs, entropies, reason = tiny.sample(
        engine, params, PROMPT, new_tokens_max=cap
    )
    assert len(tokens) == len(logprobs) == len(entropies) == cap
    assert reason == LENGTH


def test_the_longest_trajectory_fills_the_slot_exactly():
    engine, params = tiny.engine(), tiny.params()
    tokens, *_, reason = tiny.sample(engine, params, (3,) * 8, new_tokens_max=99)
    assert len(tokens) == 12
    assert reason == LENGTH


def test_a_stop_token_ends_a_completion_also_at_the_cap():
    params = tiny.params()
    at = 4
    key = tiny.stopping(PROMPT, at)
    tokens, logprobs, *_ = tiny.sample(tiny.engine(), params, PROMPT, key)
    engine = tiny.engine(stop_tokens=(60, tiny.STOP_TOKEN, -1))
    for cap in (12, at + 1):
        stopped = tiny.sample(engine, params, PROMPT, key, new_tokens_max=cap)
        assert stopped[0] == tokens[: at + 1]
        assert stopped[1] == logprobs[: at + 1]
        assert stopped[-1] == STOP
    assert tiny.sample(engine, params, PROMPT, key, new_tokens_max=at)[-1] == LENGTH


def test_filters_and_temperatures_are_per_slot():
    engine, params = tiny.engine(), tiny.params()
    prefix = engine.prefill_prompt(params, PROMPT)
    settings_of = [
        {"temperature": 0.0},
        {"top_k": 1},
        {"temperature": 1.7},
        {"top_p": 1e-6, "temperature": 0.5},
    ]
    requests = [
        SlotRequest(slot=i, key_words=(4, 4), new_tokens_max=12, **s)
        for i, s in enumerate(settings_of)
    ]
    state = engine.insert_many(prefix, engine.init_decode_state(), requests)
    _, found, _ = tiny.run(engine, params, state, range(4))
    greedy = found[0][0]
    assert found[1][0] == found[3][0] == greedy != found[2][0]
    # A kept set of one token has probability 1, and a greedy token its full one.
    np.testing.assert_allclose(found[1][1], 0, atol=1e-6)
    expected = tiny.forward_logprobs(params, PROMPT, greedy, 1.0)
    np.testing.assert_allclose(found[0][1], expected, atol=1e-5)


def test_an_extracted_slot_goes_on_elsewhere_bit_for_bit():
    engine, params = tiny.engine(), tiny.params()
    whole = tiny.sample(engine, params, PROMPT)
    state = engine.init_decode_state()
    state = _insert(engine, params, state, PROMPT, slot=0)
    state, result = engine.generate_steps(params, state)
    snapshot = jax.device_get(engine.extract(state, 0))
    state = engine.release(state, 0)
    state = _insert(engine, params, state, (1, 2, 3), slot=0)
    state = engine.insert_snapshot(state, 2, snapshot)
    _, found, after = tiny.run(engine, params, state, [2])
    first = result.tokens_TB[:, 0].tolist()
    assert first + found[2][0] == whole[0]
    assert result.logprobs_TB[:, 0].tolist() + found[2][1] == whole[1]
    assert after.reasons_B[2] == whole[-1]


def test_extending_a_stopped_slot_equals_a_fresh_run_of_the_longer_prompt():
    params = tiny.params()
    engine = tiny.engine(stop_tokens=(60, tiny.STOP_TOKEN, -1))
    key = tiny.stopping((5, 9), 2)
    observed = (11, 12, 13)
    state = engine.init_decode_state()
    state = _insert(engine, params, state, (5, 9), slot=1, key_words=key)
    state, before, result = tiny.run(engine, params, state, [1])
    assert result.reasons_B[1] == STOP
    state = engine.extend(params, state, 1, observed)
    _, found, _ = tiny.run(engine, params, state, [1])
    # The key and the positions are equal too, so the tokens are the same ones.
    prompt = (5, 9, *before[1][0], *observed)
    fresh = tiny.sample(tiny.engine(), params, prompt, key)
    kept = len(found[1][0])
    assert kept >= 1
    assert found[1][0] == fresh[0][:kept]
    np.testing.assert_allclose(found[1][1], fresh[1][:kept], atol=1e-5)


def test_extending_keeps_the_total_cap():
    engine, params = tiny.engine(), tiny.params()
    state = engine.init_decode_state()
    state = _insert(engine, params, state, PROMPT, slot=0, new_tokens_max=7)
    state, result = engine.generate_steps(params, state)
    assert result.reasons_B[0] == RUNNING
    state = engine.extend(params, state, 0, (1, 2))
    state, found, result = tiny.run(engine, params, state, [0])
    assert len(found[0][0]) == 7 - 5
    assert result.reasons_B[0] == LENGTH
    # There is room, but the cap is used up.
    state = engine.extend(params, state, 0, (3,))
    state, result = engine.generate_steps(params, state)
    assert result.reasons_B[0] == LENGTH
    assert not result.valid_TB.any()


def test_a_slot_without_room_for_an_observation_keeps_what_it_has():
    engine, params = tiny.engine(), tiny.params()
    state = engine.init_decode_state()
    state = _insert(engine, params, state, (3,) * 8, slot=0)
    state, _ = engine.generate_steps(params, state)
    state, _ = engine.generate_steps(params, state)
    before = jax.device_get(engine.extract(state, 0).slots)
    assert before.positions_B == 7 + 10
    state = engine.extend(params, state, 0, (1, 2))
    after = jax.device_get(engine.extract(state, 0).slots)
    assert after.reasons_B == LENGTH
    assert after.positions_B == before.positions_B
    assert after.tokens_B == before.tokens_B


def test_nothing_compiles_after_warm_up():
    engine = Engine(tiny.DECODER, tiny.SAMPLER, None, stop_tokens=(3,))
    warm_up(engine, engine.load_params(tiny.params()))
    warm = engine.num_compilations()
    assert warm > 0
    state = engine.init_decode_state()
    for seed, length in enumerate((1, 3, 4, 5, 8)):
        params = engine.load_params(tiny.params(seed % 2))
        state = _insert(engine, params, state, (2,) * length, slot=seed % 4, top_k=seed)
        state, _ = engine.generate_steps(params, state)
        state = engine.extend(params, state, seed % 4, (4,) * (8 - length or 1))
        snapshot = jax.device_get(engine.extract(state, seed % 4))
        state = engine.insert_snapshot(state, 3, snapshot)
        state = engine.release(state, 3)
    assert engine.num_compilations() == warm


def test_a_slots_last_owner_leaves_nothing_behind_not_even_nan():
    engine, params = tiny.engine(), tiny.params()
    clean = tiny.sample(engine, params, PROMPT)
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    state = engine.init_decode_state()
    state = _insert(engine, broken, state, (1,) * 8, slot=0)
    state, _ = engine.generate_steps(broken, state)
    state = engine.release(state, 0)
    state = _insert(engine, params, state, PROMPT, slot=0)
    _, found, _ = tiny.run(engine, params, state, [0])
    assert found[0] == clean[:3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "unroll"),
    [(False, False), (True, True), pytest.param(True, False, marks=pytest.mark.slow)],
)
def test_a_sharded_engine_gives_the_greedy_tokens_of_one_device(scan, unroll):
    params = tiny.params()
    expected = tiny.sample(tiny.engine(), params, PROMPT, temperature=0.0)
    mesh = meshes.sampler_mesh(
        settings.Mesh(sampler_tensor=2, shared=True), jax.devices()
    )
    decoder = dataclasses.replace(tiny.DECODER, scan_layers=scan)
    if scan:
        params = tiny.model.stack(params)
    sampler = dataclasses.replace(tiny.SAMPLER, unroll_layers=unroll)
    engine = Engine(decoder, sampler, mesh, stop_tokens=())
    placed = engine.load_params(params)
    assert len(jax.tree.leaves(placed)[0].sharding.device_set) == 2
    found = tiny.sample(engine, placed, PROMPT, temperature=0.0)
    assert found[0] == expected[0]
    for i in (1, 2):
        np.testing.assert_allclose(found[i], expected[i], atol=1e-5)


def test_jetstreams_methods_serve_a_prompt():
    engine, params = tiny.engine(), tiny.params()
    state = engine.init_decode_state()
    padded = jnp.asarray([*PROMPT, 0, 0, 0], jnp.int32)
    prefix = engine.prefill(params=params, padded_tokens=padded, true_length=5)
    state = engine.insert(prefix, state, slot=2)
    for length in (1, 2, 3):
        state, result = engine.generate(params, state)
        assert result.data.shape == (4, 3)
        result = result.convert_to_numpy()
        mine, other = (result.get_result_at_slot(slot) for slot in (2, 0))
        assert (mine.valid, other.valid) == (1, 0)
        assert (mine.lengths, other.lengths) == (length, 0)
        assert 0 <= mine.tokens[0, 0] < 62
    assert (engine.max_concurrent_decodes, engine.samples_per_slot) == (4, 1)
    assert engine.max_prefill_length == 8
    assert engine.colocated_cpus is None
    with pytest.raises(ValueError, match="existing_prefix must be None"):
        engine.prefill(
            params=params, existing_prefix=prefix, padded_tokens=padded, true_length=5
        )


def test_what_does_not_fit_is_refused():
    engine, params = tiny.engine(), tiny.params()
    with pytest.raises(ValueError, match="prompt must have 1 to 8 tokens"):
        engine.prefill_prompt(params, ())
    with pytest.raises(ValueError, match="prompt must have 1 to 8 tokens"):
        engine.prefill_prompt(params, (1,) * 9)
    prefix = engine.prefill_prompt(params, PROMPT)
    state = engine.init_decode_state()
    for slots in ((0, 0), (4,), (-1,)):
        with pytest.raises(ValueError, match="slots must differ and be below 4"):
            engine.insert_many(
                prefix,
                state,
                [
                    SlotRequest(slot=s, key_words=(0, 0), new_tokens_max=1)
                    for s in slots
                ],
            )


def test_loading_casts_matrices_once_and_keeps_norms():
    decoder = dataclasses.replace(tiny.DECODER, dtype="bfloat16")
    loaded = Engine(decoder, tiny.SAMPLER, None, stop_tokens=()).load_params(
        tiny.params()
    )
    layer = loaded["layers"]["000"]
    assert layer["query"].dtype == loaded["ends"]["embedding"].dtype == jnp.bfloat16
    assert (
        layer["query_norm"].dtype == loaded["ends"]["final_norm"].dtype == jnp.float32
    )
