"""Our logits and greedy continuations beside the stored ones."""

import dataclasses
import functools
import json
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import model
from jigsaw_jax.model import decode
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder
from jigsaw_jax.settings import Decoder
from tests.parity import cases

# On logits of size 10 a float32 has steps of 1e-6; ours are sums of 64 to 100 terms
# through 2 to 7 layers.
LOGITS_MAX = 2e-5
ROW = 512
# Scanned layers compile faster; both ways are covered.
UNROLLED = ("llama2", "gemma2", "qwen3_moe")


class Case(NamedTuple):
    """One model with what transformers says of it."""

    decoder: Decoder
    params: dict
    tokens: np.ndarray
    logits: np.ndarray
    greedy: np.ndarray


def described(name: str) -> dict:
    """The model's config.json and its tensors' shapes, as transformers saves them."""
    with np.load(cases.GOLDEN / f"{name}.npz") as golden:
        return json.loads(str(golden["described"]))


def load(name: str, folder: pathlib.Path) -> Case:
    """The case, its weights written to `folder` and read back by the importer."""
    with np.load(cases.GOLDEN / f"{name}.npz") as golden:
        logits, greedy = golden["logits"], golden["greedy"]
    saved = described(name)
    cases.write_folder(folder / name, name, saved["shapes"], saved["config"])
    found = Folder(folder / name)
    decoder = dataclasses.replace(found.decoder, scan_layers=name not in UNROLLED)
    return Case(
        decoder, load_folder(found, decoder), cases.tokens(name), logits, greedy
    )


@functools.partial(jax.jit, static_argnums=0)
def _row_logits(decoder, params, tokens_BT, positions_BT, segments_BT):
    hidden = model.forward(decoder, params, tokens_BT, positions_BT, segments_BT)
    return model.logits(decoder, params, hidden)


def logit_differences(case: Case) -> dict[str, float]:
    """Largest difference at the kept places: alone in a padded row, and packed."""
    length, before = len(case.tokens), 150
    found = {}
    for name, start in (("padded", 0), ("left padded", 77), ("packed", before)):
        tokens, segments = np.full(ROW, 7), np.zeros(ROW, int)
        positions = np.zeros(ROW, int)
        if name == "packed":
            tokens[:before] = case.tokens[::-1][:before]
            segments[:before], positions[:before] = 1, np.arange(before)
        here = slice(start, start + length)
        tokens[here], segments[here] = case.tokens, 2
        positions[here] = np.arange(length)
        rows = (tokens[None], positions[None], segments[None])
        logits = _row_logits(case.decoder, case.params, *rows)[0]
        ours = np.asarray(logits)[start + np.array(cases.PLACES)]
        found[name] = float(np.abs(ours - case.logits).max())
    return found


@functools.partial(jax.jit, static_argnums=0)
def _continue(decoder, params, prompt_T):
    """Greedy tokens after the prompt, through the cache as the sampler has it."""
    size = prompt_T.shape[0]
    cache = decode.empty_cache(decoder, 1, size + cases.NEW_TOKENS)
    cache = decode.extend(decoder, params, prompt_T[:-1], jnp.int32(0), cache)

    def step(carry, position):
        token_B, cache = carry
        hidden_BD, cache = decode.decode_step(
            decoder, params, token_B, position[None], cache
        )
        logits_BV = model.logits(decoder, params, hidden_BD)
        token_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        return (token_B, cache), token_B[0]

    positions = jnp.arange(size - 1, size - 1 + cases.NEW_TOKENS)
    return jax.lax.scan(step, (prompt_T[-1:], cache), positions)[1]


def greedy_agreement(case: Case) -> int:
    """Tokens of the continuation that agree before the first that does not."""
    prompt = jnp.asarray(case.tokens[: cases.PROMPT_TOKENS], jnp.int32)
    ours = np.asarray(_continue(case.decoder, case.params, prompt))
    differ = np.flatnonzero(ours != case.greedy)
    return int(differ[0]) if differ.size else len(case.greedy)
