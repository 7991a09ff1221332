"""What the engine keeps on device, and what it hands to its callers."""

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax.sample.cache import Cache, SlotCache
from jigsaw_jax.sample.pages import PageTable
from jigsaw_jax.types import Array, Bool, Float, Int, UInt32

# Why a slot does not run, or that it does.
FREE, RUNNING, STOP, LENGTH = 0, 1, 2, 3


class Slots(NamedTuple):
    """One entry a slot.

    tokens_B: the token to feed next; not yet in the cache.
    positions_B: its absolute position.
    sampled_B: how many new tokens it has sampled.
    caps_B: how many it may sample.
    reasons_B: FREE, RUNNING, STOP or LENGTH.
    top_ks_B: 0 is off.
    temperatures_B: 0 is greedy.
    top_ps_B: 1 is off.
    keys_BX: the two words of the sample's key.
    """

    tokens_B: Int[Array, " B"]
    positions_B: Int[Array, " B"]
    sampled_B: Int[Array, " B"]
    caps_B: Int[Array, " B"]
    reasons_B: Int[Array, " B"]
    top_ks_B: Int[Array, " B"]
    temperatures_B: Float[Array, " B"]
    top_ps_B: Float[Array, " B"]
    keys_BX: UInt32[Array, "B X"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("cache", "slots"),
    meta_fields=(),
    drop_fields=("pages",),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeState:
    """All that a decode step transforms; donated to every call that returns one.

    Attributes:
      cache: keys and values.
      slots: an entry a slot.
      pages: whose the pages are, on the host; it goes from a state to the next, and
        no device program sees it. None with a cache of slots.
    """

    cache: Cache
    slots: Slots
    pages: PageTable | None = None

    @property
    def num_slots(self) -> int:
        """B."""
        return self.slots.tokens_B.shape[0]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("cache", "slots"), meta_fields=()
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotSnapshot:
    """One slot taken out whole: a copy on device that `device_get` may offload."""

    cache: SlotCache
    slots: Slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
    """A prompt's keys and values.

    Its last token is fed again by the first decode step of each slot the prefix goes
    to, so every slot samples its own first token and N new tokens cost N steps.

    Attributes:
      cache: one slot; nothing attends to what is behind the prompt.
      last_token: the token to feed first.
      position: its absolute position.
      name: of this very prefix; slots that take it share its pages. None shares none.
    """

    cache: SlotCache
    last_token: int
    position: int
    name: Hashable | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotRequest:
    """How one slot samples.

    Attributes:
      slot: which.
      key_words: see `records.key_words`.
      temperature: 0 is greedy.
      top_k: 0 keeps all.
      top_p: 1 keeps all.
      new_tokens_max: cap on sampled tokens, the stop token included.
    """

    slot: int
    key_words: tuple[int, int]
    new_tokens_max: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class StepResult(NamedTuple):
    """What some decode steps sampled, on device, or on the host.

    tokens_TB: by step and slot.
    logprobs_TB: of each token under the distribution it was drawn from.
    entropies_TB: of that distribution, in nats.
    valid_TB: whether the slot sampled a token in the step.
    reasons_B: FREE, RUNNING, STOP or LENGTH, after the last step.
    """

    tokens_TB: Int[Array | np.ndarray, "T B"]
    logprobs_TB: Float[Array | np.ndarray, "T B"]
    entropies_TB: Float[Array | np.ndarray, "T B"]
    valid_TB: Bool[Array | np.ndarray, "T B"]
    reasons_B: Int[Array | np.ndarray, " B"]

    @property
    def done(self) -> Bool[Array | np.ndarray, " B"]:
        """Slots that do not run."""
        return self.reasons_B != RUNNING


def empty(cache: Cache, num_slots: int) -> DecodeState:
    """A state whose slots are all free."""

    def full(value: int, dtype: type) -> Array:
        return jnp.full((num_slots,), value, dtype)

    slots = Slots(
        tokens_B=full(0, jnp.int32),
        positions_B=full(0, jnp.int32),
        sampled_B=full(0, jnp.int32),
        caps_B=full(0, jnp.int32),
        reasons_B=full(FREE, jnp.int32),
        top_ks_B=full(0, jnp.int32),
        temperatures_B=full(1, jnp.float32),
        top_ps_B=full(1, jnp.float32),
        keys_BX=jnp.zeros((num_slots, 2), jnp.uint32),
    )
    return DecodeState(cache=cache, slots=slots)


def with_pages(new_state: DecodeState, pages: PageTable | None) -> DecodeState:
    """A program's state with the host's part, which no program sees."""
    return dataclasses.replace(new_state, pages=pages)


def tokens_of(slots: Slots, slot: int) -> int:
    """Tokens that a slot may come to hold under its cap; waits for the device."""
    columns = (slots.positions_B, slots.caps_B, slots.sampled_B)
    position, cap, sampled = (int(np.asarray(column)[slot]) for column in columns)
    return position + cap - sampled


def batch_requests(
    prefix: Prefix, requests: Sequence[SlotRequest], num_slots: int
) -> tuple[np.ndarray, Slots]:
    """Slot numbers and entries of the requests, padded to `num_slots` of them.

    Args:
      prefix: what all of them take.
      requests: one a slot.
      num_slots: of the state; also the slot number of a padded entry, which a scatter
        drops.

    Returns:
      The numbers and the entries.

    Raises:
      ValueError: a slot is out of range or named twice, or a cap is below 1.
    """
    named = [request.slot for request in requests]
    if len(set(named)) < len(named) or not set(named) <= set(range(num_slots)):
        raise ValueError(f"slots must differ and be below {num_slots}, got {named}")
    for request in requests:
        if request.new_tokens_max < 1:
            raise ValueError(
                f"new_tokens_max must be at least 1, got {request.new_tokens_max!r}"
            )
    missing = num_slots - len(requests)
    numbers = named + [num_slots] * missing

    def column(values: list, dtype: type) -> Any:
        return np.array(values + values[:1] * missing, dtype)

    slots = Slots(
        tokens_B=column([prefix.last_token] * len(requests), np.int32),
        positions_B=column([prefix.position] * len(requests), np.int32),
        sampled_B=column([0] * len(requests), np.int32),
        caps_B=column([r.new_tokens_max for r in requests], np.int32),
        reasons_B=column([RUNNING] * len(requests), np.int32),
        top_ks_B=column([r.top_k for r in requests], np.int32),
        temperatures_B=column([r.temperature for r in requests], np.float32),
        top_ps_B=column([r.top_p for r in requests], np.float32),
        keys_BX=column([r.key_words for r in requests], np.uint32),
    )
    return np.array(numbers, np.int32), slots
