"""The sampling engine: JetStream's Engine methods, and beside them what RL needs.

    prefill_prompt ──> Prefix ──insert_many──> slots ──generate_steps──> StepResult
                                               │   ^
                                   extract     v   │  insert_snapshot, extend
                                             SlotSnapshot

A slot is FREE until an insert makes it RUNNING. A decode step feeds each running slot
its pending token and samples the next one; the slot ends by STOP or LENGTH and keeps
its cache, so that `extend` can revive it, until another insert takes it over. The
decode state is donated: after a call that returns a state, the old one is gone.

A token depends on (weights, the sequence before it, key, position) alone: not on the
slot, its neighbours, when it came in or how many steps one call has. The batch height
is fixed because the rows of a matrix product change with it.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Lowered

from jigsaw_jax import mesh as meshes
from jigsaw_jax.sample import state
from jigsaw_jax.sample.compiled import Compiled, limits_of, unrolled
from jigsaw_jax.sample.result_tokens import ResultTokens
from jigsaw_jax.sample.state import (
    FREE,
    DecodeState,
    Prefix,
    SlotRequest,
    SlotSnapshot,
    StepResult,
)
from jigsaw_jax.settings import Decoder, Sampler
from jigsaw_jax.types import Params


class Engine:
    """Compiled programs over a fixed number of slots; holds no weights, no sequence.

    Args:
      decoder: the policy's shape.
      sampler: slots, buckets, caps and the defaults of JetStream's `insert`.
      mesh: devices with an axis "tensor"; None takes the first device.
      stop_tokens: ids that end a completion; negative ones are ignored.
      pad_token: fills a prompt up to its bucket.
    """

    def __init__(
        self,
        decoder: Decoder,
        sampler: Sampler,
        mesh: jax.sharding.Mesh | None,
        *,
        stop_tokens: tuple[int, ...],
        pad_token: int = 0,
    ) -> None:
        self.decoder = decoder = unrolled(decoder, sampler)
        self.sampler = sampler
        self._mesh = mesh or jax.sharding.Mesh(
            np.array(jax.devices()[:1]).reshape(1, 1, 1), meshes.AXES
        )
        self._pad_token = pad_token
        self._limits = limits_of(decoder, sampler, self._mesh, stop_tokens)
        self._programs = Compiled(decoder, self._limits, self._mesh)
        self._served = itertools.count()

    # JetStream's Engine, version 0.2.2.

    @property
    def max_concurrent_decodes(self) -> int:
        """Slots."""
        return self._limits.num_slots

    @property
    def samples_per_slot(self) -> int:
        """Always 1: a group's completions take one slot each."""
        return 1

    @property
    def max_prefill_length(self) -> int:
        """Tokens of the longest prompt."""
        return self.sampler.prompt_buckets[-1]

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """Devices that the engine runs on."""
        return self._mesh

    @property
    def colocated_cpus(self) -> None:
        """None: the host works through `device_get`."""
        return None

    def get_prefix_destination_sharding(self) -> Any:
        """How the cache of a prefix lies on the mesh."""
        return self._programs.of_prefix

    def load_params(self, params: Params) -> Params:
        """Weights as the decode loop wants them, on its mesh; `params` stay valid.

        Subtrees can be loaded alone.
        """
        ready = self.prepare_params(params)
        return meshes.place(ready, self._programs.params_sharding(ready))

    def prepare_params(self, params: Params) -> Params:
        """The same before they are placed, so that no more than needed is moved.

        Matrices are cast to the compute type once, as every layer would on use; norms
        are used in float32 and keep their type. Stacked layers are taken apart where
        `Sampler.unroll_layers` says so.
        """
        return self._programs.prepare(params)

    def init_decode_state(self) -> DecodeState:
        """A state whose slots are all free."""
        return state.with_pages(self._programs.empty(), self._programs.page_table())

    def prefill(
        self,
        *,
        params: Params,
        existing_prefix: Prefix | None = None,
        padded_tokens: Any,
        true_length: int,
    ) -> Prefix:
        """The prefix of `true_length` tokens that the caller has padded."""
        if existing_prefix is not None:
            raise ValueError(
                f"existing_prefix must be None, got {existing_prefix!r}; use `extend`"
            )
        tokens = np.asarray(padded_tokens, np.int32)
        return Prefix(
            cache=self._programs.prefill(params, tokens),
            last_token=int(tokens[true_length - 1]),
            position=true_length - 1,
            name=object(),
        )

    def insert(
        self, prefix: Prefix, decode_state: DecodeState, slot: int
    ) -> DecodeState:
        """The prefix in one slot, sampled by the defaults of `Sampler`."""
        request = SlotRequest(
            slot=slot,
            key_words=(0, next(self._served)),
            temperature=self.sampler.temperature,
            top_k=self.sampler.top_k,
            top_p=self.sampler.top_p,
            new_tokens_max=self.sampler.new_tokens_max,
        )
        return self.insert_many(prefix, decode_state, [request])

    def generate(
        self, params: Params, decode_state: DecodeState
    ) -> tuple[DecodeState, ResultTokens]:
        """One decode step."""
        new_state, result = self._generate(params, decode_state, 1)
        columns = (result.tokens_TB[0], result.valid_TB[0], new_state.slots.sampled_B)
        data = jnp.stack([column.astype(jnp.int32) for column in columns], axis=1)
        return new_state, ResultTokens(data=data)

    # What RL needs beside it.

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        return self._limits.stop_tokens

    def prefill_prompt(self, params: Params, tokens: Sequence[int]) -> Prefix:
        """The prefix of a prompt; its last token is left to the slots' first step.

        Args:
          params: as `load_params` returned them.
          tokens: of the prompt.

        Returns:
          The prefix, for `insert_many`.

        Raises:
          ValueError: the prompt is empty or longer than the largest bucket.
        """
        return self.prefill(
            params=params,
            padded_tokens=self._to_bucket("prompt", tokens),
            true_length=len(tokens),
        )

    def insert_many(
        self, prefix: Prefix, decode_state: DecodeState, requests: Sequence[SlotRequest]
    ) -> DecodeState:
        """One prefix in several slots, in one device call.

        Args:
          prefix: of the prompt.
          decode_state: donated.
          requests: one a slot; whatever the slot held is lost.

        Returns:
          The new state.

        Raises:
          ValueError: a slot is out of range or named twice, a cap is below 1, or there
            are too few pages (`place` finds slots that have them).
        """
        num_slots = decode_state.num_slots
        numbers, entries = state.batch_requests(prefix, requests, num_slots)
        pages, where = decode_state.pages, numbers
        if pages is not None:
            rows = [
                pages.take(
                    request.slot,
                    prefix.position + request.new_tokens_max,
                    prefix=prefix.name,
                    num_shared=prefix.position,
                )
                for request in requests
            ]
            where = np.stack(rows + rows[:1] * (num_slots - len(rows)))
        new_state = self._programs.insert(
            decode_state, prefix.cache, numbers, where, entries, np.int32(len(requests))
        )
        return state.with_pages(new_state, pages)

    def place(
        self,
        decode_state: DecodeState,
        free: Sequence[int],
        tokens: Sequence[int],
        prefix: Prefix | None = None,
    ) -> list[int]:
        """Slots for requests, as many of the first as there is room for.

        Args:
          decode_state: unchanged.
          free: slots to choose from, released or forgotten.
          tokens: that each request may come to hold: the prefix's position plus its
            cap, or `state.tokens_of` an extracted slot.
          prefix: what all of them take; None where they are extracted slots.

        Returns:
          Slots for `insert_many` or `insert_snapshot`.
        """
        pages = decode_state.pages
        if pages is None:
            return list(free[: len(tokens)])
        name, num = (prefix.name, prefix.position) if prefix else (None, 0)
        return pages.place(free, name, num, tokens)

    def generate_steps(
        self, params: Params, decode_state: DecodeState
    ) -> tuple[DecodeState, StepResult]:
        """`Sampler.steps_per_call` steps, fewer when no slot runs any more."""
        steps = self._limits.num_steps
        new_state, result = self._generate(params, decode_state, steps)
        return new_state, jax.device_get(result)

    def _generate(
        self, params: Params, decode_state: DecodeState, num_steps: int
    ) -> tuple[DecodeState, StepResult]:
        pages = decode_state.pages
        # A copy: a program on the CPU may read the host's array where it lies.
        tables = None if pages is None else pages.tables_BO.copy()
        new_state, result = self._programs.generate(
            params, decode_state, np.int32(num_steps), tables
        )
        return state.with_pages(new_state, pages), result

    def extend(
        self,
        params: Params,
        decode_state: DecodeState,
        slot: int,
        tokens: Sequence[int],
    ) -> DecodeState:
        """Appends observed tokens to a slot and lets it run again, cap unchanged.

        A slot without room for them and one sampled token ends by LENGTH instead.

        Args:
          params: as `load_params` returned them.
          decode_state: donated.
          slot: of a trajectory that runs or has ended.
          tokens: the observation.

        Returns:
          The new state.

        Raises:
          ValueError: no tokens, or more than the largest bucket; or a slot whose pages
            are forgotten, or too few free pages for the tokens and the slot's cap.
        """
        padded = self._to_bucket("observation", tokens)
        num, pages = len(tokens), decode_state.pages
        where: Any = (np.int32(slot), np.int32(slot))
        if pages is not None:
            needed = state.tokens_of(decode_state.slots, slot) + num
            written = pages.grow(slot, needed)
            where = (pages.tables_BO[slot].copy(), written)
        new_state = self._programs.extend(
            params, decode_state, np.int32(slot), where, padded, np.int32(num)
        )
        return state.with_pages(new_state, pages)

    def extract(self, decode_state: DecodeState, slot: int) -> SlotSnapshot:
        """A copy of a slot, for a pause, the host's memory or another engine."""
        pages = decode_state.pages
        where = np.int32(slot) if pages is None else pages.tables_BO[slot].copy()
        return self._programs.extract(decode_state, np.int32(slot), where)

    def insert_snapshot(
        self, decode_state: DecodeState, slot: int, snapshot: SlotSnapshot
    ) -> DecodeState:
        """The slot goes on as the extracted one would have.

        Args:
          decode_state: donated.
          slot: whatever it held is lost.
          snapshot: of `extract`; its pages are the slot's own.

        Returns:
          The new state.

        Raises:
          ValueError: there are too few pages for the sequence up to its cap.
        """
        pages, where = decode_state.pages, np.int32(slot)
        if pages is not None:
            where = pages.take(slot, state.tokens_of(snapshot.slots, 0))
        # One from the host is placed first: as an argument it would compile anew.
        placed = meshes.place(snapshot, self._programs.of_slot)
        new_state = self._programs.restore(decode_state, np.int32(slot), where, placed)
        return state.with_pages(new_state, pages)

    def release(self, decode_state: DecodeState, *slots: int) -> DecodeState:
        """Stops slots at once; what they held is lost."""
        reasons = np.array(decode_state.slots.reasons_B)
        reasons[list(slots)] = FREE
        pages = decode_state.pages
        self.forget(decode_state, *slots)
        return state.with_pages(self._programs.release(decode_state, reasons), pages)

    def forget(self, decode_state: DecodeState, *slots: int) -> None:
        """Gives the pages of slots that have ended to others, without a device call."""
        if decode_state.pages is not None:
            for slot in slots:
                decode_state.pages.give_back(slot)

    def resized(
        self, decode_state: DecodeState, slots: Sequence[int], num_slots: int
    ) -> DecodeState:
        """A state of `num_slots` slots: these first, in their order, then free ones.

        Only with a cache of slots; the numbers are `Sampler.slots_draining` and
        `Sampler.slots`. The old state is unchanged.
        """
        missing = [decode_state.num_slots] * (num_slots - len(slots))
        taken = np.array([*slots, *missing], np.int32)
        return self._programs.resize(decode_state, taken)

    def lower(self) -> dict[str, Lowered]:
        """`generate_steps` and the longest prefill, lowered from shapes alone."""
        return self._programs.lower(self.max_prefill_length)

    def num_compilations(self) -> int:
        """Programs compiled so far, one for each shape they were called with."""
        return self._programs.count()

    def _to_bucket(self, name: str, tokens: Sequence[int]) -> np.ndarray:
        """Tokens padded to the smallest bucket that holds them."""
        buckets = self.sampler.prompt_buckets
        if not 1 <= len(tokens) <= buckets[-1]:
            raise ValueError(
                f"{name} must have 1 to {buckets[-1]} tokens (the last of "
                f"Sampler.prompt_buckets), got {len(tokens)}"
            )
        size = next(bucket for bucket in buckets if bucket >= len(tokens))
        padded = np.full(size, self._pad_token, np.int32)
        padded[: len(tokens)] = tokens
        return padded
