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

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model
from jigsaw_jax.sample import programs, state
from jigsaw_jax.sample.programs import Limits
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
        self.decoder = decoder
        self.sampler = sampler
        self._mesh = mesh or jax.sharding.Mesh(
            np.array(jax.devices()[:1]).reshape(1, 1, 1), meshes.AXES
        )
        self._pad_token = pad_token
        self._limits = Limits(
            num_slots=sampler.slots,
            length=sampler.length_max,
            num_steps=sampler.steps_per_call,
            stop_tokens=tuple(token for token in stop_tokens if token >= 0),
        )
        self._served = itertools.count()
        self._compile()

    def _compile(self) -> None:
        """Wraps the programs; what they return lies as the decode state does."""
        shapes = jax.eval_shape(self._empty_state)
        of_state = self._state_sharding(shapes)
        of_all = meshes.replicated(self._mesh)

        def program(function: Callable, out: Any, *, donate: str | None) -> Any:
            placed = meshes.on_mesh(self._mesh, function)
            return jax.jit(placed, out_shardings=out, donate_argnames=donate)

        bound = functools.partial
        generate = bound(programs.generate, self.decoder, self._limits)
        prefill = bound(programs.prefill, self.decoder, self._limits)
        extend = bound(programs.extend, self.decoder)
        self._of_slot = SlotSnapshot(cache=of_state.cache, slots=of_state.slots)
        self._empty = program(self._empty_state, of_state, donate=None)
        self._prefill = program(prefill, of_state.cache, donate=None)
        self._insert = program(programs.insert, of_state, donate="state")
        self._generate = program(generate, (of_state, of_all), donate="state")
        self._extend = program(extend, of_state, donate="state")
        self._extract = program(programs.extract, self._of_slot, donate=None)
        self._restore = program(programs.insert_snapshot, of_state, donate="state")
        self._release = program(programs.release, of_state, donate="state")

    def _empty_state(self) -> DecodeState:
        return state.empty(self.decoder, self._limits.num_slots, self._limits.length)

    def _state_sharding(self, shapes: DecodeState) -> DecodeState:
        """Key-value heads over "tensor" where they divide; all else on every device."""
        heads = meshes.partition_spec(
            self._mesh, ("kv_heads",), (self.decoder.num_kv_heads,)
        )
        head_dim = shapes.cache.slot_dim + 1
        spec = PartitionSpec(*[None] * head_dim, *heads)
        of_cache = NamedSharding(self._mesh, spec)
        of_slots = meshes.replicated(self._mesh)
        return DecodeState(
            cache=jax.tree.map(lambda _: of_cache, shapes.cache),
            slots=jax.tree.map(lambda _: of_slots, shapes.slots),
        )

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
        return self._state_sharding(jax.eval_shape(self._empty_state)).cache

    def load_params(self, params: Params) -> Params:
        """Weights placed and cast as the decode loop wants them; `params` stay valid.

        Matrices are cast to the compute type once, as every layer would on use; norms
        are used in float32 and keep their type. Subtrees can be loaded alone.
        """
        placed = jax.device_put(params, self._params_sharding(params))

        def cast(leaf: jax.Array, dtype: Any) -> jax.Array:
            # A cast to the same type would still be a call for each leaf.
            return leaf if leaf.dtype == dtype else leaf.astype(dtype)

        return jax.tree.map(cast, placed, self._dtypes(placed))

    def _params_sharding(self, params: Params) -> Any:
        return meshes.sharding_tree(self._mesh, self._axes(params), params)

    def _axes(self, params: Params) -> Any:
        axes = model.logical_axes(self.decoder)
        return {name: axes[name] for name in params}

    def _dtypes(self, params: Params) -> Any:
        """Of each leaf as the decode loop reads it."""

        def one(leaf: Any, names: tuple[str, ...]) -> Any:
            is_norm = len(set(names) - {"layers"}) == 1
            return leaf.dtype if is_norm else jnp.dtype(self.decoder.dtype)

        return jax.tree.map(one, params, self._axes(params))

    def init_decode_state(self) -> DecodeState:
        """A state whose slots are all free."""
        return self._empty()

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
            cache=self._prefill(params, tokens),
            last_token=int(tokens[true_length - 1]),
            position=true_length - 1,
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
        new_state, result = self._generate(params, decode_state, np.int32(1))
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
          ValueError: a slot is out of range or named twice, or a cap is below 1.
        """
        slots = [request.slot for request in requests]
        num_slots = self._limits.num_slots
        if len(set(slots)) < len(slots) or not set(slots) <= set(range(num_slots)):
            raise ValueError(f"slots must differ and be below {num_slots}, got {slots}")
        for request in requests:
            if request.new_tokens_max < 1:
                raise ValueError(
                    f"new_tokens_max must be at least 1, got {request.new_tokens_max!r}"
                )
        numbers, entries = state.batch_requests(prefix, requests, num_slots)
        return self._insert(
            decode_state, prefix.cache, numbers, entries, np.int32(len(requests))
        )

    def generate_steps(
        self, params: Params, decode_state: DecodeState
    ) -> tuple[DecodeState, StepResult]:
        """`Sampler.steps_per_call` steps, fewer when no slot runs any more."""
        steps = np.int32(self._limits.num_steps)
        new_state, result = self._generate(params, decode_state, steps)
        return new_state, jax.device_get(result)

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
          ValueError: no tokens, or more than the largest bucket.
        """
        padded = self._to_bucket("observation", tokens)
        num = np.int32(len(tokens))
        return self._extend(params, decode_state, np.int32(slot), padded, num)

    def extract(self, decode_state: DecodeState, slot: int) -> SlotSnapshot:
        """A copy of a slot, for a pause, the host's memory or another engine."""
        return self._extract(decode_state, np.int32(slot))

    def insert_snapshot(
        self, decode_state: DecodeState, slot: int, snapshot: SlotSnapshot
    ) -> DecodeState:
        """The slot goes on as the extracted one would have."""
        # One from the host is placed first: as an argument it would compile anew.
        placed = jax.device_put(snapshot, self._of_slot)
        return self._restore(decode_state, np.int32(slot), placed)

    def release(self, decode_state: DecodeState, *slots: int) -> DecodeState:
        """Stops slots at once; what they held is lost at the next insert."""
        reasons = np.array(decode_state.slots.reasons_B)
        reasons[list(slots)] = FREE
        return self._release(decode_state, reasons)

    def warm_up(self, params: Params, *, multi_turn: bool = True) -> None:
        """Compiles all that a run calls; without `multi_turn`, no extend or extract."""
        running = self.init_decode_state()
        buckets = self.sampler.prompt_buckets
        prefixes = [
            self.prefill_prompt(params, [self._pad_token] * size) for size in buckets
        ]
        request = SlotRequest(slot=0, key_words=(0, 0), new_tokens_max=1)
        running = self.insert_many(prefixes[0], running, [request])
        if multi_turn:
            for size in buckets:
                running = self.extend(params, running, 0, [self._pad_token] * size)
            running = self.insert_snapshot(running, 0, self.extract(running, 0))
        running = self.release(running, 0)
        running, _ = self.generate_steps(params, running)

    def lower(self) -> dict[str, Lowered]:
        """`generate_steps` and the longest prefill, lowered from shapes alone."""
        shapes = jax.eval_shape(functools.partial(model.init_params, self.decoder), 0)
        cast = jax.tree.map(
            lambda x, dtype: jax.ShapeDtypeStruct(x.shape, dtype),
            shapes,
            self._dtypes(shapes),
        )
        params = meshes.abstract(cast, self._params_sharding(shapes))
        running = jax.eval_shape(self._empty_state)
        running = meshes.abstract(running, self._state_sharding(running))
        of_all = meshes.replicated(self._mesh)
        steps = meshes.abstract(np.int32(0), of_all)
        tokens = np.zeros(self.max_prefill_length, np.int32)
        return {
            "generate": self._generate.lower(params, running, steps),
            "prefill": self._prefill.lower(params, meshes.abstract(tokens, of_all)),
        }

    def num_compilations(self) -> int:
        """Programs compiled so far, one for each shape they were called with."""
        wrapped = (
            self._empty,
            self._prefill,
            self._insert,
            self._generate,
            self._extend,
            self._extract,
            self._restore,
            self._release,
        )
        return sum(program._cache_size() for program in wrapped)

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
