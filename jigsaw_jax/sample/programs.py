"""The engine's device programs, as pure functions of parameters and decode state."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model
from jigsaw_jax.model import decode
from jigsaw_jax.model.paged import Paging, SlotPages
from jigsaw_jax.model.tiles import by_tile
from jigsaw_jax.objective import logprob
from jigsaw_jax.sample import cache, sampling
from jigsaw_jax.sample.state import (
    FREE,
    LENGTH,
    RUNNING,
    STOP,
    DecodeState,
    Slots,
    SlotSnapshot,
    StepResult,
)
from jigsaw_jax.settings import Decoder
from jigsaw_jax.types import Array, Float, Int, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What is fixed when the programs are compiled.

    Attributes:
      num_slots: of an empty state; a drained one has fewer.
      length: positions of a slot, the longest trajectory.
      num_steps: decode steps of one call.
      stop_tokens: ids that end a completion.
      kv_dtype: None, or "int8".
      paging: of a cache of pages; None has slots.
      is_drained: whether some states have fewer slots.
    """

    num_slots: int
    length: int
    num_steps: int
    stop_tokens: tuple[int, ...]
    kv_dtype: str | None = None
    paging: Paging | None = None
    is_drained: bool = False


def prefill(
    decoder: Decoder,
    limits: Limits,
    params: Params,
    tokens_T: Int[Array, " T"],
) -> cache.SlotCache:
    """One slot's cache with the tokens of a prompt, padding included."""
    layers = decode.prefill(
        decoder, params, tokens_T, kv_dtype=limits.kv_dtype, length=limits.length
    )
    # Pages behind the prompt are zeroed as they are written.
    length = limits.length if limits.paging is None else tokens_T.shape[0]
    return cache.padded(decoder, layers, length)


def insert(
    state: DecodeState,
    prefix: cache.SlotCache,
    numbers_B: Int[Array, " B"],
    where: Any,
    requests: Slots,
    num: Int[Array, ""],
) -> DecodeState:
    """The prefix in each of the first `num` of the numbered slots.

    `where` says, for each of them, where the cache has it: slot or page numbers.
    """
    parts = state.cache.parts(prefix)
    kept = jax.lax.fori_loop(0, num, lambda i, c: c.write(where[i], parts), state.cache)
    return DecodeState(cache=kept, slots=_put(state.slots, numbers_B, requests))


def generate(
    decoder: Decoder,
    limits: Limits,
    params: Params,
    state: DecodeState,
    num_steps: Int[Array, ""],
    tables: Any,
) -> tuple[DecodeState, StepResult]:
    """Up to `num_steps` decode steps; ends early when no slot runs.

    `tables` has each slot's page numbers, and is None for a cache of slots.
    """
    steps = jnp.arange(limits.num_steps)
    # A slot that stops never runs again within a call, so while it runs its position
    # at step i is its first plus i, and all uniforms can be made at once.
    positions_TB = state.slots.positions_B[None] + 1 + steps[:, None]
    uniforms_TB = sampling.uniforms(state.slots.keys_BX, positions_TB)

    to_logits = model.head(decoder, params)

    def is_going(carry: tuple) -> Array:
        step, state, _ = carry
        return (step < num_steps) & jnp.any(state.slots.reasons_B == RUNNING)

    def advance(carry: tuple) -> tuple:
        step, state, log = carry
        slots = state.slots
        at = SlotPages(tables, slots.positions_B, slots.reasons_B == RUNNING)
        hidden_BD, kept = state.cache.decode_step(params, slots.tokens_B, at)
        # Each device draws for its share of the slots, over the whole vocabulary: that
        # moves an eighth of eight devices' logits where gathering them moved all.
        logits_BV = meshes.constrain(to_logits(hidden_BD), "slots")
        drawn = sampling.draw(
            logits_BV,
            uniforms_TB[step],
            slots.temperatures_B,
            slots.top_ks_B,
            slots.top_ps_B,
        )
        if decoder.canonical_tile:
            drawn = _canonical(decoder, slots, logits_BV, drawn)
        row = (*drawn, slots.reasons_B == RUNNING)
        log = tuple(x.at[step].set(y) for x, y in zip(log, row, strict=True))
        slots = _advanced(limits, slots, drawn.tokens_B)
        return step + 1, DecodeState(cache=kept, slots=slots), log

    shape = (limits.num_steps, state.num_slots)
    dtypes = (jnp.int32, jnp.float32, jnp.float32, jnp.bool_)
    log = tuple(jnp.zeros(shape, dtype) for dtype in dtypes)
    start = (jnp.int32(0), state, log)
    _, state, log = jax.lax.while_loop(is_going, advance, start)
    tokens_TB, logprobs_TB, entropies_TB, valid_TB = log
    return state, StepResult(
        tokens_TB, logprobs_TB, entropies_TB, valid_TB, state.slots.reasons_B
    )


def extend(
    decoder: Decoder,
    limits: Limits,
    params: Params,
    state: DecodeState,
    slot: Int[Array, ""],
    where: tuple[Array, Array],
    tokens_T: Int[Array, " T"],
    num_tokens: Int[Array, ""],
) -> DecodeState:
    """Appends `num_tokens` tokens to a slot and lets it run again.

    The token that the slot had still to feed goes first, and the last of the new ones
    takes its place. A slot without room for them and one more token ends by LENGTH.
    `where` says where the cache has the slot, to read and to write.
    """
    one = _take(state.slots, slot)
    fed_T = jnp.concatenate([one.tokens_B, tokens_T[:-1]])
    position = one.positions_B[0]
    old = state.cache.read(where[0])
    if limits.paging is not None:
        old = old.up_to(position)
    layers = decode.extend(decoder, params, fed_T, position, old.layers)
    positions_B = one.positions_B + num_tokens
    has_room = positions_B < limits.length - 1
    may_run = has_room & (one.sampled_B < one.caps_B)
    one = one._replace(
        tokens_B=jnp.where(has_room, tokens_T[num_tokens - 1], one.tokens_B),
        positions_B=jnp.where(has_room, positions_B, one.positions_B),
        reasons_B=jnp.where(may_run, RUNNING, LENGTH).astype(jnp.int32),
    )
    parts = state.cache.parts(dataclasses.replace(old, layers=layers))
    return DecodeState(
        cache=state.cache.write(where[1], parts),
        slots=_put(state.slots, slot[None], one),
    )


def extract(state: DecodeState, slot: Int[Array, ""], where: Any) -> SlotSnapshot:
    """A copy of one slot, which the cache has at `where`."""
    return SlotSnapshot(cache=state.cache.read(where), slots=_take(state.slots, slot))


def insert_snapshot(
    state: DecodeState, slot: Int[Array, ""], where: Any, snapshot: SlotSnapshot
) -> DecodeState:
    """The state with a slot replaced by what was extracted from another."""
    return DecodeState(
        cache=state.cache.write(where, state.cache.parts(snapshot.cache)),
        slots=_put(state.slots, slot[None], snapshot.slots),
    )


def resize(state: DecodeState, slots_C: Int[Array, " C"]) -> DecodeState:
    """A state of these slots in this order; a number that has no slot makes a free one.

    Only with a cache of slots.
    """
    assert isinstance(state.cache, cache.SlotCache)
    entries = jax.tree.map(
        lambda x: jnp.take(x, slots_C, axis=0, mode="fill", fill_value=FREE),
        state.slots,
    )
    return DecodeState(cache=state.cache.take(slots_C), slots=entries)


def release(state: DecodeState, reasons_B: Int[Array, " B"]) -> DecodeState:
    """The state with the slots' reasons replaced; FREE stops a slot."""
    return dataclasses.replace(state, slots=state.slots._replace(reasons_B=reasons_B))


def _canonical(
    decoder: Decoder, slots: Slots, logits_BV: Float[Array, "B V"], drawn: sampling.Draw
) -> sampling.Draw:
    """The draw with logprobs summed as the learner sums them."""
    is_plain_B = (slots.top_ks_B <= 0) & (slots.top_ps_B >= 1)
    is_greedy_B = slots.temperatures_B <= 0
    scale_B = jnp.where(is_greedy_B, 1.0, slots.temperatures_B)

    def one(_: None, *rows: Array) -> tuple[Array, Array]:
        return logprob.row_logprobs(*rows)

    logprobs_B, _ = by_tile(decoder, one, None, logits_BV, drawn.tokens_B, scale_B)
    kept_B = jnp.where(is_plain_B | is_greedy_B, logprobs_B, drawn.logprobs_B)
    return drawn._replace(logprobs_B=kept_B)


def _advanced(limits: Limits, slots: Slots, drawn_B: Int[Array, " B"]) -> Slots:
    """The slots after a decode step; a slot that does not run stays as it is."""
    is_running_B = slots.reasons_B == RUNNING
    step_B = is_running_B.astype(jnp.int32)
    positions_B = slots.positions_B + step_B
    sampled_B = slots.sampled_B + step_B
    stops_C = jnp.array(limits.stop_tokens, jnp.int32)
    is_stop_B = jnp.any(drawn_B[:, None] == stops_C[None], axis=-1)
    is_full_B = (sampled_B >= slots.caps_B) | (positions_B >= limits.length - 1)
    ended_B = jnp.where(is_stop_B, STOP, jnp.where(is_full_B, LENGTH, RUNNING))
    return slots._replace(
        tokens_B=jnp.where(is_running_B, drawn_B, slots.tokens_B),
        positions_B=positions_B,
        sampled_B=sampled_B,
        reasons_B=jnp.where(is_running_B, ended_B, slots.reasons_B),
    )


def _take(slots: Slots, slot: Int[Array, ""]) -> Slots:
    """The entries of one slot."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1), slots)


def _put(slots: Slots, numbers_B: Int[Array, " B"], entries: Slots) -> Slots:
    """The slots with some entries replaced; a number out of range is dropped."""
    return jax.tree.map(
        lambda x, y: x.at[numbers_B].set(y, mode="drop"), slots, entries
    )
