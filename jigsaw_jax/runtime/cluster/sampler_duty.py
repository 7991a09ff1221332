"""Sampling in a worker process: engine, loop, and the reward pool of this host."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax import mesh as meshes
from jigsaw_jax.records import (
    AdmitSample,
    CancelSample,
    Event,
    PauseSample,
    Prompt,
    Sample,
    SampleFinished,
    SampleId,
    Score,
)
from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.build import build_engine
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import carriers, offers
from jigsaw_jax.runtime.cluster.outbox import Lanes, Outbox
from jigsaw_jax.runtime.compilations import CompilationCounter
from jigsaw_jax.runtime.devices import prepare_devices
from jigsaw_jax.runtime.evaluation import completion_text
from jigsaw_jax.runtime.inputs import open_tokens
from jigsaw_jax.runtime.publisher import Publisher
from jigsaw_jax.runtime.sampler import SamplerWorker
from jigsaw_jax.runtime.threads import ThreadFailed, Turns
from jigsaw_jax.runtime.weights import Offer, Receiver, StaleError, WeightError
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest
from jigsaw_jax.sample.warm_up import warm_up
from jigsaw_jax.settings import Train


class SamplerDuty:
    """Builds and warms the engine at once; samples when it has been given weights.

    Every method but `__init__` is called from the desk's thread.

    Args:
      train: the run.
      name: of the worker.
      outbox: takes messages.
      clock: of this process.
      fail: takes what a thread died of.

    Attributes:
      version: of the weights that were loaded last.
    """

    def __init__(
        self,
        train: Train,
        name: str,
        *,
        outbox: Outbox,
        clock: Clock,
        fail: Callable[[ThreadFailed], None],
    ) -> None:
        own = dataclasses.replace(train.mesh, data=1, fsdp=1, tensor=1, shared=True)
        prepare_devices(own)
        self._train = train
        self._name = name
        self._outbox = outbox
        self._clock = clock
        self._fail = fail
        self._tokenizer = open_tokens(train)
        mesh = meshes.sampler_mesh(own, jax.devices())
        self._engine, self._channel = build_engine(train, self._tokenizer, mesh)
        self._pool = RewardPool(
            train.reward, on_failed=lambda error: fail(ThreadFailed("reward", error))
        )
        self._prompts: dict[tuple[SampleId, int], Prompt] = {}
        self._finished: dict[tuple[SampleId, int], Sample] = {}
        self._worker: SamplerWorker | None = None
        self._publisher: Publisher | None = None
        self._wanted = offers.wanted(train.decoder, mesh)
        self._run = ""
        number = int(name.removeprefix("sampler-"))
        self._ways = carriers.make(train.cluster, clock=clock, receiver=number)
        self._receiver = self._receive(self._wanted[0])
        self._params: Any = None
        self._frozen: Any = {}
        self.version = -1
        self._warm_up()
        counter, pool = CompilationCounter(), self._pool
        outbox.facts = lambda: {
            "compilations": counter.count,
            "timeouts": pool.timeouts,
        }

    def _warm_up(self) -> None:
        """Compile with weights of zero, while the learner makes the real ones."""
        trained, frozen = offers.shapes(self._train.decoder)
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), {**frozen, **trained}
        )
        params = self._engine.load_params(zeros)
        warm_up(self._engine, params, multi_turn=self._train.pipeline.early_stop)

    # Weights.

    def load(self, message: Any, refs: Sequence[Any]) -> None:
        """Fetch a version, place it, and swap it in between two decode steps.

        What does not arrive changes nothing; the controller then has it sent again.

        Args:
          message: version, run, the offer of what trains, how many objects it names,
            and the offer of what is frozen.
          refs: objects that the offers name.
        """
        version, run, trained, num, frozen = wire.read_list(message, 5)
        if run != self._run:
            # Another life of the learner may count its versions anew.
            self._run = run
            self._receiver = self._receive(self._wanted[0])
        try:
            params = self._fetch(self._receiver, offers.read(trained, refs[:num]))
            if self._publisher is None:
                receiver = self._receive(self._wanted[1])
                self._frozen = self._fetch(receiver, offers.read(frozen, refs[num:]))
        except StaleError:
            self._loaded(version, 0.0, self._clock.now_s())
            return
        except WeightError as error:
            self._outbox.post("unloaded", version, str(error))
            return
        self._params = params
        self.version = version
        if self._publisher is None:
            self._publisher = Publisher(
                self._channel, self._engine, self._clock, frozen=self._frozen
            )
            self._begin(SampleLoop(self._engine, self._publisher.load(params), version))
            self._loaded(version, 0.0, self._clock.now_s())
            return
        assert self._worker is not None
        self._publisher.publish(
            params, version, sampler=self._worker, report=self._loaded
        )

    def _receive(self, wanted: Any) -> Receiver:
        return Receiver(self._run, wanted, self._ways, clock=self._clock)

    def _fetch(self, receiver: Receiver, offer: Offer) -> Any:
        within_s = self._train.cluster.carrier_s
        return receiver.receive(offer, carrier_s=within_s, within_s=within_s)

    def weights(self) -> Any:
        """All weights of the version that was loaded last."""
        return {**self._frozen, **self._params}

    def _begin(self, loop: SampleLoop) -> None:
        self._worker = SamplerWorker(
            self._train,
            loop,
            turns=Turns(is_shared=False),
            journal=Lanes(self._name, self._outbox),
            clock=self._clock,
            post=self._post,
            keep=self._keep,
        )
        # Times are told as intervals; what nobody takes out would grow.
        self._worker.busy = collections.deque(maxlen=0)
        self._worker.thread.start()

    def _loaded(self, version: int, start_s: float, end_s: float) -> None:
        del start_s
        self._outbox.post("loaded", version, end_s)

    # Samples.

    def admit(self, effect: AdmitSample, prompt: Prompt) -> None:
        """Start an attempt, or let it go on."""
        self._prompts[effect.id, effect.attempt] = prompt
        self._do("admit", effect, prompt)

    def cancel(self, effect: CancelSample) -> None:
        """Stop an attempt."""
        self._prompts.pop((effect.id, effect.attempt), None)
        self._do("cancel", effect)

    def pause(self, effect: PauseSample) -> None:
        """Stop an attempt and keep what it has."""
        self._do("pause", effect)

    def guest(self, request: SampleRequest) -> None:
        """Sample what is not the pipeline's; it comes back unscored."""
        epoch = self._outbox.epoch

        def receive(sample: Sample) -> None:
            self._outbox.post("guest", sample=sample, epoch=epoch)

        self._do("submit_guest", request, receive)

    def reset(self, epoch: int) -> None:
        """Cancel all there is; what is said from then on belongs to `epoch`."""
        if self._worker is None:
            self._outbox.begin(epoch)
            return

        # Not on the sampler's thread: the next admission may come before its turn.
        self._prompts.clear()
        self._worker.thread.do(self._worker.reset)
        self._worker.thread.do(self._outbox.begin, epoch)

    def _do(self, name: str, *values: Any) -> None:
        assert self._worker is not None, "weights come before samples"
        self._worker.thread.do(getattr(self._worker, name), *values)

    def _keep(self, sample: Sample) -> None:
        self._finished[sample.id, sample.attempt] = sample

    def _post(self, event: Event | ThreadFailed) -> None:
        """On the sampler's thread."""
        if isinstance(event, ThreadFailed):
            self._fail(event)
        elif isinstance(event, SampleFinished):
            self._report(event)
        else:
            self._outbox.post("event", type(event).__name__, wire.plain(event))

    def _report(self, event: SampleFinished) -> None:
        """The completion goes out, and to the reward at once: it will be asked for."""
        key = event.id, event.attempt
        sample = self._finished.pop(key)
        prompt = self._prompts.pop(key, None)
        self._outbox.post(
            "finished", wire.plain(event), sample.is_truncated, sample=sample
        )
        if prompt is None:
            return
        epoch = self._outbox.epoch

        def receive(score: Score) -> None:
            plain = wire.plain(score)
            self._outbox.post(
                "score", wire.plain(event.id), event.attempt, plain, epoch=epoch
            )

        text = completion_text(self._tokenizer, sample)
        self._pool.submit(prompt, text, receive)
