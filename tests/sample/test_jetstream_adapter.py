"""JetStream's API by its recorded tables, and its two protocols without JetStream."""

import inspect
import itertools
import queue
import types

import jax
import numpy as np
import pytest

from jigsaw_jax.data.byte_tokenizer import ByteTokenizer
from jigsaw_jax.sample import jetstream_adapter
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.jetstream_tokenizer import NO_TOKEN
from jigsaw_jax.sample.result_tokens import ResultTokens
from tests.jetstream import api, served, stub

TOKENIZER = served.TOKENIZER
VERSIONS = {
    "ReleaseEngine": (api.RELEASE, api.RELEASE_CALLS),
    "MainEngine": (api.MAIN, api.MAIN_CALLS),
}


def _names(entries):
    return {name for name, entry in entries.items() if entry is not None}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_method_takes_the_recorded_parameters(version):
    table, _ = VERSIONS[version]
    engine = getattr(jetstream_adapter, version)
    for name in _names(table):
        required, optional = table[name]
        signature = inspect.signature(getattr(engine, name))
        signature.bind("self", **dict.fromkeys(required + optional))
        signature.bind("self", **dict.fromkeys(required))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_method_can_be_called_as_the_driver_does(version):
    table, calls = VERSIONS[version]
    engine = getattr(jetstream_adapter, version)
    assert set(calls) == _names(table)
    for name, (positional, by_keyword) in calls.items():
        signature = inspect.signature(getattr(engine, name))
        bound = signature.bind("self", *positional, **dict.fromkeys(by_keyword))
        # Positional arguments land on the parameters that the table names.
        required, _ = table[name]
        for parameter in positional:
            assert parameter in required
            assert bound.arguments[parameter] == parameter


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_property_is_one(version):
    table, _ = VERSIONS[version]
    engine = getattr(jetstream_adapter, version)
    for name in set(table) - _names(table):
        assert isinstance(inspect.getattr_static(engine, name), property)


def test_our_engine_has_the_shape_of_the_release_but_for_the_tokenizer():
    of_tokenizer = {"get_tokenizer", "build_tokenizer"}
    for name in set(api.RELEASE) - of_tokenizer:
        assert hasattr(Engine, name)
    fields = inspect.signature(ResultTokens).parameters
    assert tuple(fields) == api.RESULT_FIELDS


def test_absent_jetstream_is_named_when_an_engine_is_made(monkeypatch):
    module = stub.absent(monkeypatch)
    with pytest.raises(ImportError, match="google-jetstream must be importable"):
        module.ReleaseEngine(served.engine(), served.params(), TOKENIZER)


def test_a_longest_prompt_that_jetstream_has_no_padding_for_is_refused(monkeypatch):
    module = stub.adapter(monkeypatch, api.RELEASE)
    for buckets in [(8,), (16, 48)]:
        engine = served.engine(prompt_buckets=buckets)
        with pytest.raises(ValueError, match="must end in a power of two"):
            module.ReleaseEngine(engine, served.params(), TOKENIZER)


def _padded(request, size=32):
    tokens = np.zeros(size, np.int32)
    tokens[: len(request.prompt)] = request.prompt
    return {"padded_tokens": tokens, "true_length": len(request.prompt)}


def _decode(engine, params, state, slots):
    """Tokens of the slots until they are invalid, as the detokenize thread reads."""
    found = {slot: [] for slot in slots}
    for _ in range(served.SAMPLER.new_tokens_max + 1):
        state, result = engine.generate(params, state)
        for slot in slots:
            token, valid, _ = np.asarray(result.data)[slot].tolist()
            ends = engine.build_tokenizer(None).stop_tokens or {TOKENIZER.eos_id}
            if valid and token not in ends:
                found[slot].append(token)
            else:
                assert token in ends
    return state, found


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_driver_of_either_version_gets_what_our_loop_returns(monkeypatch, version):
    module = stub.adapter(monkeypatch, VERSIONS[version][0])
    ours = served.engine(served.stop_token(), prompt_buckets=(32,))
    engine = getattr(module, version)(ours, served.params(), TOKENIZER)
    requests = [r for r in served.requests() if r.max_tokens >= 12][:9]
    expected = served.by_our_loop(ours, requests)
    assert len({len(tokens) for tokens in expected}) > 1
    params, state = engine.load_params(), engine.init_decode_state()
    for start in range(0, len(requests), 4):
        batch = requests[start : start + 4]
        firsts = []
        for slot, request in enumerate(batch):
            prefix = engine.prefill(params=params, **_padded(request))
            if version == "MainEngine":
                prefix, first = prefix
                firsts.append(np.asarray(first.data)[0].tolist())
            # As to another engine, and what 0.2.2 does with a prefix thereafter.
            where = engine.get_prefix_destination_sharding()
            prefix = jax.device_put(prefix, where)
            state = engine.insert(prefix, state, slot=slot)
            jax.tree.map(lambda leaf: leaf.delete(), prefix)
        state, found = _decode(engine, params, state, range(len(batch)))
        for slot, (first, valid, length) in enumerate(firsts):
            assert (valid, length) == (1, 1)
            found[slot] = [t for t in [first, *found[slot]] if t != served.stop_token()]
        for slot in range(len(batch)):
            assert tuple(found[slot]) == expected[start + slot]


@pytest.mark.slow
def test_samples_of_one_prompt_have_the_tokens_of_single_prefills(monkeypatch):
    module = stub.adapter(monkeypatch, api.MAIN)
    ours = served.engine(temperature=1.0, prompt_buckets=(32,))
    engine = module.MainEngine(ours, served.params(), TOKENIZER)
    params, request, slots = engine.load_params(), served.requests()[5], [3, 0, 2]
    prefix, first = engine.prefill_multisampling(
        params=params, **_padded(request), num_samples=3
    )
    assert first.samples_per_slot == 3
    state = engine.bulk_insert(prefix, engine.init_decode_state(), slots=slots)
    _, together = _decode(engine, params, state, slots)
    # The keys are numbered, so the same draws come again.
    engine._one_slot._served = itertools.count()
    state = engine.init_decode_state()
    for i, slot in enumerate(slots):
        prefix, single = engine.prefill(params=params, **_padded(request))
        assert np.asarray(single.data)[0, 0] == np.asarray(first.data)[i, 0]
        state = engine.insert(prefix, state, slot=slot, request_id="any")
        assert engine.free_resource(slot) is None
    assert _decode(engine, params, state, slots)[1] == together
    assert len(set(map(tuple, together.values()))) == 3
    assert (engine.use_chunked_prefill, engine.prefill_chunk_size) == (False, 32)


def test_what_a_client_can_send_becomes_a_prompt(monkeypatch):
    module = stub.adapter(monkeypatch, api.RELEASE)
    tokenizer = ByteTokenizer()
    engine = module.ReleaseEngine(served.engine(), served.params(), tokenizer)
    bos = tokenizer.bos_id

    def prompt(tokens, true_length):
        return engine._prompt(np.array(tokens), true_length)

    assert prompt([bos, 5, 6, 0], 3) == [bos, 5, 6]
    # A client that sent BOS too.
    assert prompt([bos, bos, 5, 0], 3) == [bos, 5]
    # Cut off at the front, but counted.
    assert prompt([5, 6, 7, 8], 9) == [5, 6, 7, 8]
    # No tokens, which NumPy makes floats.
    assert prompt([256.0, 0.0], 1) == [bos]
    assert prompt([0, 0], 0) == [tokenizer.pad_id]
    # A model without BOS.
    tokenizer.bos_id = None
    assert engine.build_tokenizer(None).bos_id == NO_TOKEN
    assert prompt([-1, 5, 6, 0], 3) == [5, 6]
    assert prompt([-1, 0], 1) == [tokenizer.pad_id]


def test_what_a_driver_never_passes_is_refused(monkeypatch):
    module = stub.adapter(monkeypatch, api.MAIN)
    engine = module.MainEngine(served.engine(), served.params(), TOKENIZER)
    padded = _padded(served.requests()[0])
    for name in ("existing_prefix", "sampler", "rng"):
        with pytest.raises(ValueError, match=f"{name} must be None, got 7"):
            engine.prefill_multisampling(params=None, **padded, **{name: 7})
    with pytest.raises(ValueError, match="sampler must be None, got 7"):
        engine.generate(None, engine.init_decode_state(), sampler=7)


def test_tokenizer_pads_and_stops_as_the_engine_does(monkeypatch):
    module = stub.adapter(monkeypatch, api.RELEASE)
    engine = served.engine(9)
    engine = module.ReleaseEngine(engine, served.params(), TOKENIZER)
    tokenizer = engine.build_tokenizer(engine.get_tokenizer())
    tokens, length = tokenizer.encode("ab", is_bos=True, max_prefill_length=16)
    assert (tokens[:4], length) == ([256, 97, 98, 0], 3)
    assert tokenizer.decode([98], is_streaming=True) == "b"
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.stop_tokens) == (0, 257, {9})


class _Driver:
    """Asserts, as JetStream's does, that a slot is in use."""

    def __init__(self, free_slots):
        self._generate_engines = [types.SimpleNamespace(max_concurrent_decodes=2)]
        self._generate_slots = [queue.Queue()]
        self._free_slots = free_slots
        self.starts = 0

    def _generate_thread(self, idx):
        self.starts += 1
        if self.starts == 3:
            return
        self._generate_slots[idx] = queue.Queue()
        for slot in range(self._free_slots):
            self._generate_slots[idx].put(slot)
        raise AssertionError("some slot must be in use")


def test_mended_release_starts_again_only_when_the_last_slot_was_freed():
    class Driver(_Driver):
        pass

    orchestrator = types.SimpleNamespace(Driver=Driver)
    jetstream_adapter.mend_release(orchestrator)
    driver = Driver(free_slots=2)
    driver._generate_thread(0)
    assert driver.starts == 3
    with pytest.raises(AssertionError, match="some slot must be in use"):
        Driver(free_slots=1)._generate_thread(0)


def test_mended_release_frees_the_arrays_of_a_prefix():
    orchestrator = types.SimpleNamespace(Driver=type("Driver", (_Driver,), {}))
    jetstream_adapter.mend_release(orchestrator)
    array = jax.numpy.ones(3)
    orchestrator.delete_pytree((array, np.ones(3), None))
    assert array.is_deleted()
