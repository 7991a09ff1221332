"""A tiny policy whose tokens vary, and short ways to run it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import model
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.state import SlotRequest
from jigsaw_jax.settings import Sampler
from tests.model.families import QWEN3

DECODER = dataclasses.replace(QWEN3, init_scale=0.2)
SAMPLER = Sampler(slots=4, prompt_buckets=(4, 8), new_tokens_max=12, steps_per_call=5)


@functools.cache
def params(seed=0):
    return model.init_params(DECODER, seed)


# Two pages hold a longest prompt, five a longest trajectory.
PAGES = {"cache": "pages", "page_size": 4}


def engine(stop_tokens=(), **changes):
    return _engine(dataclasses.replace(SAMPLER, **changes), stop_tokens)


@functools.cache
def _engine(sampler, stop_tokens):
    return Engine(DECODER, sampler, None, stop_tokens=stop_tokens)


def run(engine, params, state, slots):
    """Decodes until nothing runs; (tokens, logprobs, entropies) of each slot."""
    found = {slot: ([], [], []) for slot in slots}
    for _ in range(100):
        state, result = engine.generate_steps(params, state)
        for slot, columns in found.items():
            is_valid = result.valid_TB[:, slot]
            for column, values in zip(columns, result, strict=False):
                column.extend(values[is_valid, slot].tolist())
        if result.done.all():
            return state, found, result
    raise AssertionError("the slots must stop, and do not")


def sample(engine, params, prompt, key=(1, 2), slot=0, **settings):
    """One completion in an engine that is otherwise empty."""
    state = engine.init_decode_state()
    request = SlotRequest(
        slot=slot, key_words=key, **{"new_tokens_max": 12, **settings}
    )
    prefix = engine.prefill_prompt(params, prompt)
    state = engine.insert_many(prefix, state, [request])
    _, found, result = run(engine, params, state, [slot])
    return (*found[slot], int(result.reasons_B[slot]))


STOP_TOKEN = 3


@functools.cache
def stopping(prompt, at):
    """A key whose completion has its first STOP_TOKEN at index `at`."""
    for word in range(1000):
        tokens = sample(engine(), params(), prompt, key=(word, 7))[0]
        if STOP_TOKEN in tokens and tokens.index(STOP_TOKEN) == at:
            return word, 7
    raise AssertionError("one of 1000 completions must stop there, and none does")


@functools.partial(jax.jit, static_argnums=0)
def _all_logits(decoder, params, tokens):
    where = jnp.arange(tokens.shape[1])[None]
    hidden = model.forward(decoder, params, tokens, where, jnp.ones_like(tokens))
    return model.logits(decoder, params, hidden)


def forward_logprobs(params, prompt, tokens, temperature, pad_to=24):
    """Logprobs of a completion by the forward pass over prompt and completion."""
    sequence = np.zeros(pad_to, np.int32)
    sequence[: len(prompt) + len(tokens)] = [*prompt, *tokens]
    logits = _all_logits(DECODER, params, sequence[None])[0]
    logprobs = jax.nn.log_softmax(logits / temperature)
    places = np.arange(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return np.asarray(logprobs)[places, tokens]
