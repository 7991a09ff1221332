"""A tiny policy to serve, and what our own loop says to the same requests."""

import collections
import dataclasses
import functools

import numpy as np

from jigsaw_jax import model
from jigsaw_jax.data import byte_tokenizer
from jigsaw_jax.data.byte_tokenizer import ByteTokenizer
from jigsaw_jax.records import SampleId
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest
from jigsaw_jax.settings import Sampler
from tests.sample import tiny

# More tokens than the byte tokenizer has.
DECODER = dataclasses.replace(tiny.DECODER, vocab_size=320)
SAMPLER = Sampler(
    slots=4,
    prompt_buckets=(16, 32),
    new_tokens_max=12,
    steps_per_call=5,
    temperature=0.0,
)
TOKENIZER = ByteTokenizer()
BOS = byte_tokenizer.BOS
PROMPT_LENGTHS = (1, 2, 3, 7, 15, 16, 17, 24, 31, 32)


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt, BOS included, and a cap on its completion."""

    prompt: tuple[int, ...]
    max_tokens: int


@functools.cache
def params():
    return model.init_params(DECODER, 3)


@functools.cache
def engine(*stop_tokens, **changes):
    sampler = dataclasses.replace(SAMPLER, **changes)
    return Engine(DECODER, sampler, None, stop_tokens=stop_tokens)


def requests(num=24, seed=0):
    """Prompts of several lengths; caps below, at and above the engine's own."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(num):
        length = PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)]
        words = rng.integers(0, 256, length - 1).tolist()
        cap = (12, 5, 100, 1)[i % 4]
        found.append(Request((BOS, *words), cap))
    return found


def by_our_loop(engine, requests):
    """Greedy completions of our own loop, without the stop token that ends them."""
    loop = SampleLoop(engine, engine.load_params(params()), 1)
    ids = [SampleId(f"prompt {i}", 0, 0) for i in range(len(requests))]
    for i, (sample_id, request) in enumerate(zip(ids, requests, strict=True)):
        cap = min(request.max_tokens, engine.sampler.new_tokens_max)
        loop.submit(
            SampleRequest(
                id=sample_id,
                attempt=0,
                prompt_tokens=request.prompt,
                key_words=(0, i),
                new_tokens_max=cap,
                temperature=0.0,
            )
        )
    found = {}
    while not loop.is_idle:
        for sample in loop.step().finished:
            (segment,) = sample.segments
            tokens = segment.tokens
            ends = tokens[-1] in engine.stop_tokens
            found[sample.id] = tokens[:-1] if ends else tokens
    return [found[sample_id] for sample_id in ids]


@functools.cache
def stop_token():
    """A token that ends some of the completions of `requests`, not all, not at once."""
    free = by_our_loop(engine(prompt_buckets=(32,)), requests())
    counts = collections.Counter(token for tokens in free for token in set(tokens[1:]))
    token, count = counts.most_common(1)[0]
    assert 2 <= count < len(free)
    return token
