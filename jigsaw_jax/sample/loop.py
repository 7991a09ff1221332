"""The host's side of sampling: requests into free slots, finished samples out.

    submit ──> waiting (FIFO) ──step: admit──> slot ──step: decode──> Sample

Once fewer slots are enough for all that runs and waits (`Sampler.slots_draining`), the
running ones move into a smaller state, and back when there is more to do.

A slot belongs to its request from the admission until the sample is reported, paused or
cancelled, and is refilled at the next step. Requests of one prompt that are admitted
together share one prefill and one insert; later ones find the prefix in a small cache,
which a change of weights empties. Running slots keep their keys and values over a
change of weights, and every token carries the version that sampled it.
"""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from jigsaw_jax import mesh as meshes
from jigsaw_jax.records import FinishReason, Sample, SampleId, Segment
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.state import (
    STOP,
    Prefix,
    SlotRequest,
    SlotSnapshot,
    StepResult,
    tokens_of,
)
from jigsaw_jax.settings import Sampler
from jigsaw_jax.types import Params

# Prefixes kept for requests of a group that found no free slot with their siblings.
PREFIXES_MAX = 8
# Arrays of the last version that end behind each step.
LEAVING = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One completion to sample.

    Attributes:
      id: its identity.
      attempt: which delivery of the draw.
      prompt_tokens: token ids of the prompt.
      key_words: see `key_words` below.
      new_tokens_max: cap on sampled tokens, the stop token included.
      temperature: 0 is greedy.
      top_k: 0 keeps all.
      top_p: 1 keeps all.
    """

    id: SampleId
    attempt: int
    prompt_tokens: tuple[int, ...]
    key_words: tuple[int, int]
    new_tokens_max: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def key_words(seed: int, pipeline: str, sample_id: SampleId) -> tuple[int, int]:
    """Two uint32 words of the PRNG key of a sample.

    They depend on (run seed, pipeline, uid, draw, sample) alone: never on the slot,
    the worker, the attempt or the time. The position is folded in on device.
    """
    uid, draw, sample = sample_id
    text = f"{seed}\x00{pipeline}\x00{uid}\x00{draw}\x00{sample}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """What one step did.

    Attributes:
      started: (id, attempt) of the requests that got a slot.
      finished: completions that ended.
      num_tokens: tokens sampled by all slots.
      num_active: slots that decoded.
    """

    started: tuple[tuple[SampleId, int], ...]
    finished: tuple[Sample, ...]
    num_tokens: int
    num_active: int


@dataclasses.dataclass(slots=True)
class _Running:
    """A request in a slot, and the device calls it took part in.

    calls: version, tokens sampled, slot, and what all slots sampled.
    snapshot: of the slot, while the request is paused.
    """

    request: SampleRequest
    calls: list[tuple[int, int, int, StepResult]]
    snapshot: SlotSnapshot | None = None


class SampleLoop:
    """Owns an engine's decode state; not thread-safe, one thread calls it.

    Args:
      engine: whose slots it fills.
      params: the first weights, as `Engine.load_params` returned them.
      version: theirs.

    Attributes:
      params: the weights it decodes with.
      version: their version.
    """

    def __init__(self, engine: Engine, params: Params, version: int) -> None:
        self._engine = engine
        self.params = params
        self.version = version
        self._state = engine.init_decode_state()
        self._free = list(range(engine.max_concurrent_decodes))
        self._waiting: dict[tuple[SampleId, int], SampleRequest] = {}
        self._running: dict[int, _Running] = {}
        self._paused: dict[tuple[SampleId, int], _Running] = {}
        self._leaving: list[jax.Array] = []
        self._prefixes: collections.OrderedDict[tuple[int, ...], Prefix]
        self._prefixes = collections.OrderedDict()

    @property
    def num_free(self) -> int:
        """Slots that neither decode nor have a request waiting for them."""
        num_slots = self._engine.max_concurrent_decodes
        return max(num_slots - len(self._running) - len(self._waiting), 0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._running and not self._waiting

    def submit(self, request: SampleRequest) -> None:
        """Queues a request behind those that wait.

        Args:
          request: what to sample; its (id, attempt) is new.

        Raises:
          ValueError: it waits or runs already, or does not fit the engine's shapes.
        """
        key = (request.id, request.attempt)
        if key in self._waiting or self._slot_of(key) is not None:
            raise ValueError(f"(id, attempt) must be new, got {key!r} a second time")
        longest = self._engine.max_prefill_length
        if not 1 <= len(request.prompt_tokens) <= longest:
            raise ValueError(
                f"prompt of {request.id} must have 1 to {longest} tokens (the last of "
                f"Sampler.prompt_buckets), got {len(request.prompt_tokens)}"
            )
        cap = self._engine.sampler.new_tokens_max
        if not 1 <= request.new_tokens_max <= cap:
            raise ValueError(
                f"new_tokens_max must be 1 to Sampler.new_tokens_max = {cap}, "
                f"got {request.new_tokens_max!r}"
            )
        self._waiting[key] = request

    def cancel(self, sample_id: SampleId, attempt: int) -> None:
        """Forgets an attempt, whether known or not; frees its slot if it has one."""
        key = (sample_id, attempt)
        self._waiting.pop(key, None)
        self._paused.pop(key, None)
        slot = self._slot_of(key)
        if slot is not None:
            self._state = self._engine.release(self._state, slot)
            self._give_back(slot)

    def clear(self) -> None:
        """Forgets every request; all slots are free."""
        self._waiting.clear()
        self._paused.clear()
        for slot in list(self._running):
            self._state = self._engine.release(self._state, slot)
            self._give_back(slot)

    def pause(self, sample_id: SampleId, attempt: int) -> None:
        """Frees the slot of an attempt and keeps what it has sampled on the host.

        Its keys and values are kept too, as those of slots that run over a change of
        weights are. One that has ended, or is unknown, is no matter.
        """
        key = (sample_id, attempt)
        slot = self._slot_of(key)
        if slot is not None:
            snapshot = meshes.fetch(self._engine.extract(self._state, slot))
            self._state = self._engine.release(self._state, slot)
            self._paused[key] = self._give_back(slot)
            self._paused[key].snapshot = snapshot
        elif key in self._waiting:
            self._paused[key] = _Running(self._waiting.pop(key), [])

    def resume(self, sample_id: SampleId, attempt: int) -> None:
        """Queues a paused attempt behind those that wait; another is no matter."""
        key = (sample_id, attempt)
        if key in self._paused:
            self._waiting[key] = self._paused[key].request

    def set_params(self, params: Params, version: int) -> None:
        """Decodes with these weights from the next step on.

        The end of an array takes the interpreter for 20 us, so that of all weights at
        once would hold decoding up: the old ones go a few behind each step.
        """
        self._leaving = jax.tree.leaves(self.params)
        self.params = params
        self.version = version
        self._prefixes.clear()

    def step(self) -> LoopReport:
        """Fills free slots, decodes once, and collects what ended."""
        self._resize()
        started = self._admit()
        num_active = len(self._running)
        if not num_active:
            return LoopReport(started=(), finished=(), num_tokens=0, num_active=0)
        self._state, result = self._engine.generate_steps(self.params, self._state)
        del self._leaving[-LEAVING:]
        counts = result.valid_TB.sum(axis=0).tolist()
        for slot, running in self._running.items():
            running.calls.append((self.version, counts[slot], slot, result))
        is_done_B = result.done
        ended = [slot for slot in sorted(self._running) if is_done_B[slot]]
        finished = tuple(
            _to_sample(self._give_back(slot), int(result.reasons_B[slot]))
            for slot in ended
        )
        return LoopReport(
            started=started,
            finished=finished,
            num_tokens=sum(counts),
            num_active=num_active,
        )

    def _resize(self) -> None:
        """Takes as many slots as are enough for what runs and waits."""
        needed = len(self._running) + len(self._waiting)
        old = self._state.num_slots
        while (new := next_size(self._engine.sampler, old, needed)) != old:
            slots = sorted(self._running)
            self._state = self._engine.resized(self._state, slots, new)
            self._running = {i: self._running[slot] for i, slot in enumerate(slots)}
            self._free = list(range(len(slots), new))
            old = new

    def _admit(self) -> tuple[tuple[SampleId, int], ...]:
        """Gives free slots to waiting requests, in order of submission.

        Where there are too few pages, the rest of that prompt and all behind it wait.
        """
        num = min(len(self._free), len(self._waiting))
        before = list(itertools.islice(self._waiting, num))
        by_prompt: dict[tuple[int, ...], list[tuple[SampleId, int]]] = {}
        for key in before:
            paused = self._paused.get(key)
            if paused is None or paused.snapshot is None:
                by_prompt.setdefault(self._waiting[key].prompt_tokens, []).append(key)
            elif not self._go_on(key, paused, paused.snapshot):
                break
        for prompt, keys in by_prompt.items():
            if self._insert(prompt, keys) < len(keys):
                break
        return tuple(key for key in before if key not in self._waiting)

    def _go_on(
        self, key: tuple[SampleId, int], paused: _Running, snapshot: SlotSnapshot
    ) -> bool:
        """Puts a paused request back in a slot, if there is room for it."""
        tokens = [tokens_of(snapshot.slots, 0)]
        slots = self._engine.place(self._state, self._free, tokens)
        if not slots:
            return False
        (slot,) = slots
        del self._waiting[key], self._paused[key]
        self._free.remove(slot)
        paused.snapshot = None
        self._state = self._engine.insert_snapshot(self._state, slot, snapshot)
        self._running[slot] = paused
        return True

    def _insert(
        self, prompt: tuple[int, ...], keys: Sequence[tuple[SampleId, int]]
    ) -> int:
        """Starts the first of these requests, as many as there is room for."""
        prefix = self._prefix(prompt)
        tokens = [prefix.position + self._waiting[k].new_tokens_max for k in keys]
        slots = self._engine.place(self._state, self._free, tokens, prefix)
        requests = []
        for slot, key in zip(slots, keys, strict=False):
            request = self._waiting.pop(key)
            self._paused.pop(key, None)
            self._free.remove(slot)
            self._running[slot] = _Running(request, [])
            requests.append(
                SlotRequest(
                    slot=slot,
                    key_words=request.key_words,
                    temperature=request.temperature,
                    top_k=request.top_k,
                    top_p=request.top_p,
                    new_tokens_max=request.new_tokens_max,
                )
            )
        if requests:
            self._state = self._engine.insert_many(prefix, self._state, requests)
        return len(requests)

    def _prefix(self, prompt: tuple[int, ...]) -> Prefix:
        """The prompt's prefix under the current weights, the least used one evicted."""
        prefix = self._prefixes.pop(prompt, None)
        if prefix is None:
            prefix = self._engine.prefill_prompt(self.params, prompt)
        self._prefixes[prompt] = prefix
        if len(self._prefixes) > PREFIXES_MAX:
            self._prefixes.popitem(last=False)
        return prefix

    def _give_back(self, slot: int) -> _Running:
        """Takes a request out of its slot, which has ended or is released."""
        self._engine.forget(self._state, slot)
        self._free.append(slot)
        self._free.sort()
        return self._running.pop(slot)

    def _slot_of(self, key: tuple[SampleId, int]) -> int | None:
        for slot, running in self._running.items():
            if (running.request.id, running.request.attempt) == key:
                return slot
        return None


def next_size(sampler: Sampler, num_slots: int, num_needed: int) -> int:
    """How many slots a state of `num_slots` should have, or be on its way to.

    All where it has too few, else the next fewer where those are enough: so only few
    changes of size have to be compiled.
    """
    if num_needed > num_slots:
        return sampler.slots
    fewer = [n for n in sampler.slots_draining if num_needed <= n < num_slots]
    return fewer[-1] if fewer else num_slots


def _to_sample(running: _Running, reason: int) -> Sample:
    """The host record of a completion."""
    calls = [call for call in running.calls if call[1]]

    def column(name: str) -> tuple:
        parts = [getattr(result, name)[:n, slot] for _, n, slot, result in calls]
        return tuple(np.concatenate(parts).tolist())

    segment = Segment(
        tokens=column("tokens_TB"),
        logprobs=column("logprobs_TB"),
        versions=tuple(version for version, n, *_ in calls for _ in range(n)),
    )
    return Sample(
        id=running.request.id,
        attempt=running.request.attempt,
        segments=(segment,),
        finish_reason=FinishReason.STOP if reason == STOP else FinishReason.LENGTH,
        entropies=column("entropies_TB"),
    )
