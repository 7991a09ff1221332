"""Our engine as JetStream's `Engine`, that of release 0.2.2 and of its last main.

    ReleaseEngine  prefill ──> prefix               insert  generate ──> tokens 1, 2, ..
    MainEngine     prefill ──> prefix and token 1   insert  generate ──> tokens 2, 3, ..

Release 0.2.2 samples a sequence's first token in `generate`, main in `prefill`. An
exception in a thread of JetStream's driver ends the process, so what a client can
send never raises here. JetStream is optional: without it the classes can be read but
not made.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jigsaw_jax import mesh as meshes
from jigsaw_jax.sample import jetstream_tokenizer
from jigsaw_jax.sample.cache import SlotCache
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.jetstream_tokenizer import (
    NO_TOKEN,
    JetStreamTokenizer,
    TextTokenizer,
)
from jigsaw_jax.sample.result_tokens import ResultTokens
from jigsaw_jax.sample.state import DecodeState, Prefix, Slots, SlotSnapshot
from jigsaw_jax.types import Array, Int, Params

# JetStream pads prompts to these, and looks `max_prefill_length` up among them.
PREFILL_LENGTHS = tuple(2**i for i in range(4, 16))


_engine_api = jetstream_tokenizer.optional("engine_api")
_tokenizer_pb2 = jetstream_tokenizer.optional("tokenizer_pb2")
_EngineBase: Any = _engine_api.Engine if _engine_api else object


class _Adapter(_EngineBase):
    """What both versions of the API have in common.

    Args:
      engine: serves; its last prompt bucket is one of PREFILL_LENGTHS.
      params: what `load_params` takes, as trained or read.
      tokenizer: for text requests; its BOS is put before every prompt.

    Raises:
      ImportError: JetStream is absent.
      ValueError: the last prompt bucket is none of PREFILL_LENGTHS.
    """

    def __init__(
        self, engine: Engine, params: Params, tokenizer: TextTokenizer
    ) -> None:
        if _engine_api is None:
            raise ImportError(
                "google-jetstream must be importable with all it needs; "
                "docs/jetstream.md says how to install it"
            )
        if engine.max_prefill_length not in PREFILL_LENGTHS:
            raise ValueError(
                "Sampler.prompt_buckets must end in a power of two from "
                f"{PREFILL_LENGTHS[0]} to {PREFILL_LENGTHS[-1]} for JetStream, "
                f"got {engine.sampler.prompt_buckets!r}"
            )
        self._engine = engine
        self._params = params
        self._tokenizer = JetStreamTokenizer(tokenizer, engine.stop_tokens)

    def load_params(self, *_args: Any, **_kwargs: Any) -> Params:
        """The weights, placed and cast as the decode loop wants them."""
        return self._engine.load_params(self._params)

    def init_decode_state(self, *_args: Any, **_kwargs: Any) -> DecodeState:
        """A state whose slots are all free."""
        return self._engine.init_decode_state()

    def generate(
        self, params: Params, decode_state: DecodeState, sampler: Any = None
    ) -> tuple[DecodeState, Any]:
        """One decode step, sampled by the defaults of `Sampler`."""
        _refuse(sampler=sampler)
        state, result = self._engine.generate(params, decode_state)
        return state, self._result(result)

    def get_tokenizer(self) -> Any:
        """Parameters without a path: `build_tokenizer` needs none."""
        return _tokenizer_pb2.TokenizerParameters()

    def build_tokenizer(self, metadata: Any) -> JetStreamTokenizer:
        """The tokenizer that this engine was made with."""
        del metadata
        return self._tokenizer

    @property
    def max_concurrent_decodes(self) -> int:
        """Slots."""
        return self._engine.max_concurrent_decodes

    @property
    def samples_per_slot(self) -> int:
        """Always 1."""
        return self._engine.samples_per_slot

    @property
    def max_prefill_length(self) -> int:
        """Tokens of the longest prompt; JetStream keeps a longer one's last."""
        return self._engine.max_prefill_length

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """Devices that the engine runs on."""
        return self._engine.mesh

    @property
    def colocated_cpus(self) -> None:
        """None: the host works through `device_get`."""
        return self._engine.colocated_cpus

    def _prompt(self, padded_tokens: Any, true_length: int) -> list[int]:
        """What the client meant.

        JetStream counts tokens that it has cut off, puts BOS before a prompt that has
        one and before models without one, and lets an empty prompt through.
        """
        # An empty list of ids has reached us as floats.
        tokens = np.asarray(padded_tokens)[: int(true_length)].astype(int).tolist()
        bos = self._tokenizer.bos_id
        if tokens[:1] == [NO_TOKEN] or tokens[:2] == [bos, bos]:
            tokens = tokens[1:]
        return tokens or [self._tokenizer.pad_id]

    def _result(self, result: ResultTokens) -> Any:
        """The result as an instance of JetStream's class, which the driver asks for."""
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
        ended = next(iter(self._engine.stop_tokens), self._tokenizer.eos_id)
        data_BX = _ended_as(jnp.asarray(result.data), np.int32(ended))
        return _engine_api.ResultTokens(**{**fields, "data": data_BX})


class ServedPrefix(NamedTuple):
    """A `Prefix` that `device_put` can take to another engine.

    cache: one slot.
    last_token: the token to feed first.
    position: its absolute position.
    """

    cache: SlotCache | Any
    last_token: Any
    position: Any


class ReleaseEngine(_Adapter):
    """`jetstream.engine.engine_api.Engine` of release 0.2.2."""

    def prefill(
        self,
        *,
        params: Params,
        existing_prefix: Any = None,
        padded_tokens: Any,
        true_length: int,
    ) -> ServedPrefix:
        """The prefix of a prompt that JetStream has padded."""
        _refuse(existing_prefix=existing_prefix)
        tokens = self._prompt(padded_tokens, true_length)
        prefix = self._engine.prefill_prompt(params, tokens)
        return ServedPrefix(
            prefix.cache, np.int32(prefix.last_token), np.int32(prefix.position)
        )

    def insert(
        self, prefix: ServedPrefix, decode_state: DecodeState, slot: int
    ) -> DecodeState:
        """The prefix in one slot."""
        ours = Prefix(
            cache=prefix.cache,
            last_token=int(prefix.last_token),
            position=int(prefix.position),
        )
        return self._engine.insert(ours, decode_state, slot)

    def get_prefix_destination_sharding(self) -> ServedPrefix:
        """How a prefix lies on the mesh."""
        of_all = meshes.replicated(self._engine.mesh)
        of_cache = self._engine.get_prefix_destination_sharding()
        return ServedPrefix(of_cache, of_all, of_all)


class MainEngine(_Adapter):
    """`jetstream.engine.engine_api.Engine` of JetStream's last main.

    A prefix is a slot that has sampled one token: its cache, and an entry a sample.
    """

    def prefill(
        self,
        *,
        params: Params,
        existing_prefix: Any = None,
        padded_tokens: Any,
        true_length: int,
        sampler: Any = None,
        request_id: Any = None,
    ) -> tuple[SlotSnapshot, Any]:
        """The prefix of a prompt that JetStream has padded, and its first token."""
        del request_id
        return self.prefill_multisampling(
            params=params,
            existing_prefix=existing_prefix,
            padded_tokens=padded_tokens,
            true_length=true_length,
            sampler=sampler,
        )

    def prefill_multisampling(
        self,
        *,
        params: Params,
        existing_prefix: Any = None,
        padded_tokens: Any,
        true_length: int,
        sampler: Any = None,
        rng: Any = None,
        num_samples: int = 1,
    ) -> tuple[SlotSnapshot, Any]:
        """The prefix of a prompt, and the first token of each of its samples."""
        _refuse(existing_prefix=existing_prefix, sampler=sampler, rng=rng)
        tokens = self._prompt(padded_tokens, true_length)
        prefix = self._engine.prefill_prompt(params, tokens)
        one = self._one_slot
        snapshots, rows = [], []
        for _ in range(num_samples):
            state = one.insert(prefix, one.init_decode_state(), 0)
            state, result = one.generate(params, state)
            snapshots.append(one.extract(state, 0))
            rows.append(result.data)
        slots = jax.tree.map(
            lambda *entries: jnp.concatenate(entries), *(s.slots for s in snapshots)
        )
        data_BX = jnp.concatenate(rows)
        return (
            # The samples have fed the same tokens so far.
            SlotSnapshot(cache=snapshots[0].cache, slots=slots),
            self._result(ResultTokens(data=data_BX, samples_per_slot=num_samples)),
        )

    def insert(
        self,
        prefix: SlotSnapshot,
        decode_state: DecodeState,
        slot: int,
        request_id: Any = None,
    ) -> DecodeState:
        """The prefix in one slot."""
        del request_id
        return self.bulk_insert(prefix, decode_state, [slot])

    def bulk_insert(
        self, prefix: SlotSnapshot, decode_state: DecodeState, slots: Sequence[int]
    ) -> DecodeState:
        """The prefix's samples, one a slot."""
        for i, slot in enumerate(slots):
            entry = jax.tree.map(lambda x, i=i: x[i : i + 1], prefix.slots)
            snapshot = SlotSnapshot(cache=prefix.cache, slots=entry)
            decode_state = self._engine.insert_snapshot(decode_state, slot, snapshot)
        return decode_state

    def free_resource(self, slot: int) -> None:
        """Nothing: the next insert takes the slot over."""

    def get_prefix_destination_sharding(self) -> SlotSnapshot:
        """How a prefix lies on the mesh."""
        of_cache = self._engine.get_prefix_destination_sharding()
        of_all: Any = meshes.replicated(self._engine.mesh)
        of_slots = Slots(*[of_all] * len(Slots._fields))
        return SlotSnapshot(cache=of_cache, slots=of_slots)

    @property
    def use_chunked_prefill(self) -> bool:
        """False."""
        return False

    @property
    def prefill_chunk_size(self) -> int:
        """Tokens of the only chunk."""
        return self._engine.max_prefill_length

    @functools.cached_property
    def _one_slot(self) -> Engine:
        """Samples first tokens, while the decode state is in another thread's hands."""
        sampler = dataclasses.replace(self._engine.sampler, slots=1, steps_per_call=1)
        return Engine(
            self._engine.decoder,
            sampler,
            self._engine.mesh,
            stop_tokens=self._engine.stop_tokens,
        )


def mend_release(orchestrator: Any) -> None:
    """Repairs `jetstream.core.orchestrator` of release 0.2.2, in place.

    It frees prefixes by `jax.tree_map`, which JAX no longer has. And its generate
    thread asserts that a slot is in use, although its detokenize thread may just have
    freed the last one, which ends the process.

    Args:
      orchestrator: the module.
    """
    generate_thread = orchestrator.Driver._generate_thread

    def restart(driver: Any, idx: int) -> None:
        num_slots = driver._generate_engines[idx].max_concurrent_decodes
        while True:
            try:
                return generate_thread(driver, idx)
            except AssertionError:
                # Only with all slots free is its decode state worth nothing.
                if driver._generate_slots[idx].qsize() < num_slots:
                    raise

    def delete(tree: Any) -> None:
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, jax.Array):
                leaf.delete()

    orchestrator.Driver._generate_thread = restart
    orchestrator.delete_pytree = delete


def _refuse(**arguments: Any) -> None:
    """Rejects what JetStream's drivers never pass to an engine without chunks."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{name} must be None, got {value!r}")


@jax.jit
def _ended_as(data_BX: Int[Array, "B X"], token: Int[Array, ""]) -> Int[Array, "B X"]:
    """The rows with the token of a slot that sampled none replaced.

    Main returns it to the client, 0.2.2 does not.
    """
    tokens_B = jnp.where(data_BX[:, 1] == 1, data_BX[:, 0], token)
    return data_BX.at[:, 0].set(tokens_B)
