"""Print how fast the sampler of Tunix draws what `bench/tiny_qwen3*.gin` draw.

    python -m venv peer && peer/bin/pip install google-tunix
    peer/bin/python tests/bench/peer_sampler.py

The closest peer that runs on a CPU: one batch to its longest completion, without
refilling. The same model shape with random weights, prompts of 32 tokens; even: 32
completions of 64 tokens; uneven: 8 stop tokens of 512, so geometric lengths with mean
64, cut at 256, 128 completions at once or 32 at a time. Nothing of this package is
imported, and the environment is one of its own: Tunix asks for other versions.
"""

import importlib
import statistics
import time
from typing import Any

import jax
import numpy as np

PROMPT, VOCABULARY, STOPS = 32, 512, list(range(504, 512))


class Characters:
    """A token a character, as a tokenizer that Tunix takes."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        """Something to print."""
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        """Never drawn upon."""
        return 1

    def eos_id(self) -> int:
        """Replaced by the stop tokens of each call."""
        return STOPS[-1]

    def pad_id(self) -> int:
        """Fills up."""
        return 0


def sampler_of(cache_size: int) -> Any:
    """Tunix's sampler on a random model of `bench/tiny_qwen3.gin`'s shape."""
    qwen3 = importlib.import_module("tunix.models.qwen3.model")
    sampler = importlib.import_module("tunix.generate.sampler")
    nnx = importlib.import_module("flax.nnx")
    shape = {"num_layers": 4, "num_kv_heads": 2, "head_dim": 32}
    config = qwen3.ModelConfig(
        vocab_size=VOCABULARY,
        embed_dim=128,
        hidden_dim=512,
        num_heads=4,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
        **shape,
    )
    cache = sampler.CacheConfig(cache_size=cache_size, **shape)
    return sampler.Sampler(qwen3.Qwen3(config, rngs=nnx.Rngs(0)), Characters(), cache)


def draw(sampler: Any, rows: int, new: int, stops: list[int]) -> tuple[int, float]:
    """(tokens, seconds) of one batch, logprobs included."""
    rng = np.random.default_rng(rows)
    letters = rng.integers(97, 123, (rows, PROMPT - 1))
    texts = ["".join(map(chr, row)) for row in letters]
    start = time.perf_counter()
    found = sampler(
        texts,
        max_generation_steps=new,
        max_prompt_length=PROMPT,
        return_logprobs=True,
        temperature=1.0,
        top_p=1.0,
        eos_tokens=stops,
        seed=int(time.time_ns() % 2**31),
    )
    return sum(len(tokens) for tokens in found.tokens), time.perf_counter() - start


def main() -> None:
    """Warm up, then print tokens a second: the median of five."""
    print(f"jax {jax.__version__}")
    # No such token: every completion has all its 64.
    even, uneven = sampler_of(PROMPT + 65), sampler_of(PROMPT + 257)
    ways = {
        "even, 32 at a time": (even, 32, 64, [VOCABULARY]),
        "uneven, 128 at once": (uneven, 128, 256, STOPS),
        "uneven, 32 at a time": (uneven, 32, 256, STOPS),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(6):
        for name, way in ways.items():
            tokens, seconds = draw(*way)
            rates[name].append(tokens / seconds)
    for name, found in rates.items():
        # The first compiles.
        median = statistics.median(found[1:])
        print(
            f"{name}: {median:,.0f} tokens/s ({min(found[1:]):,.0f} to "
            f"{max(found[1:]):,.0f})"
        )


if __name__ == "__main__":
    main()
