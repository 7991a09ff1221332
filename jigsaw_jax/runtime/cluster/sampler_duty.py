"""Sampling in a worker process: engine, loop, and the reward pool of this host.

In a slice of several hosts this is the first; the others are `SamplerFollower`s.
"""

import collections
from collections.abc import Callable
from typing import Any

from jigsaw_jax.records import (
    AdmitSample,
    CancelSample,
    Event,
    PauseSample,
    Prompt,
    Sample,
    SampleFinished,
    SampleId,
    SampleStarted,
    Score,
)
from jigsaw_jax.reward.pool import RewardPool
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.outbox import Lanes, Outbox
from jigsaw_jax.runtime.cluster.rig import Fetched, Rig
from jigsaw_jax.runtime.cluster.sampler_follower import fetch_key
from jigsaw_jax.runtime.cluster.tables import Finished
from jigsaw_jax.runtime.compilations import CompilationCounter
from jigsaw_jax.runtime.evaluation import completion_text
from jigsaw_jax.runtime.lines.door import Address
from jigsaw_jax.runtime.lines.porter import Porter
from jigsaw_jax.runtime.sampler import SamplerWorker, Span, log_slot
from jigsaw_jax.runtime.slice.loops import LeadLoop, Replay
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.runtime.threads import ThreadFailed, Turns
from jigsaw_jax.sample.loop import SampleRequest
from jigsaw_jax.settings import Train


class SamplerDuty:
    """Builds and warms the engine at once; samples when it has been given weights.

    Every method but `__init__` is called from the desk's thread.

    Args:
      train: the run.
      name: of the worker.
      peers: its hosts; this is the first.
      outbox: takes messages.
      porter: takes completions.
      clock: of this process.
      fail: takes what a thread died of.
    """

    def __init__(
        self,
        train: Train,
        name: str,
        *,
        peers: Peers,
        outbox: Outbox,
        porter: Porter,
        clock: Clock,
        fail: Callable[[ThreadFailed], None],
    ) -> None:
        self._train = train
        self._name = name
        self._peers = peers
        self._outbox = outbox
        self._porter = porter
        self._clock = clock
        self._fail = fail
        self._rig = Rig(train, name, peers, clock)
        self._pool = RewardPool(
            train.reward, on_failed=lambda error: fail(ThreadFailed("reward", error))
        )
        self._under_way: dict[tuple[SampleId, int], tuple[int, Prompt]] = {}
        self._finished: dict[tuple[SampleId, int], tuple[Sample, Span]] = {}
        self._worker: SamplerWorker | None = None
        self._lanes = Lanes(name, outbox)
        counter, pool = CompilationCounter(), self._pool
        outbox.facts = lambda: {
            "compilations": counter.count,
            "timeouts": pool.timeouts,
        }

    # Weights.

    @property
    def version(self) -> int:
        """Of the weights that were fetched last."""
        return self._rig.version

    @property
    def has_weights(self) -> bool:
        """Whether there are any."""
        return self._rig.has_weights

    def weights(self) -> Any:
        """All weights of the version that was fetched last."""
        return self._rig.weights()

    def load(self, message: Any, depot: Address) -> bool:
        """Fetch a version, place it, and swap it in between two decode steps.

        What does not arrive, on every host of the slice, changes nothing; the
        controller then has it sent again, unless another is on its way.

        Args:
          message: the learner, version and run, as `Rig.fetch` takes them.
          depot: of that learner, for completions.

        Returns:
          Whether there are other weights than before.
        """
        self._porter.to(depot)
        version = message[1]
        fetched = self._rig.fetch(message)
        if not self._peers.is_alone:
            fetched = self._of_all(version, fetched)
        if fetched.is_gone:
            return False
        if fetched.missing is not None:
            self._unloaded(version, fetched.missing)
        elif self._worker is None:
            self._begin(version)
            self._loaded(version, 0.0, self._clock.now_s())
        elif not self._peers.is_alone:
            self._worker.thread.do(
                self._worker.set_params,
                self._rig.num_fetches,
                version,
                lambda: self._loaded(version, 0.0, self._clock.now_s()),
            )
        elif fetched.is_new:
            self._rig.publish(version, sampler=self._worker, report=self._loaded)
        else:
            self._loaded(version, 0.0, self._clock.now_s())
        return fetched.is_new

    def _unloaded(self, version: int, reason: str) -> None:
        if self._worker is None:
            self._outbox.post("unloaded", version, reason)
        else:
            # An epoch that was begun before begins on that thread, and lets go what is
            # said until then.
            self._worker.thread.do(self._outbox.post, "unloaded", version, reason)

    def _of_all(self, version: int, own: Fetched) -> Fetched:
        """How a fetch went on all hosts of the slice."""
        found = [(own.missing, own.is_gone, self._rig.version)]
        for values, _ in self._peers.gather(fetch_key(self._rig)):
            found.append((values[0], values[1], values[2]))
        for host, (missing, is_gone, theirs) in enumerate(found):
            if missing is not None or theirs != version:
                missing = missing or f"version must be {version}, got {theirs}"
                return Fetched(missing=f"host {host}: {missing}", is_gone=is_gone)
        return own

    def _begin(self, version: int) -> None:
        rig, peers = self._rig, self._peers
        if peers.is_alone:
            loop = rig.begin(rig.num_fetches, version)
        else:
            replay = Replay(rig.begin, rig.load)
            loop = LeadLoop(peers, replay, rig.num_fetches, version)
        self._worker = SamplerWorker(
            self._train,
            loop,
            turns=Turns(is_shared=False),
            journal=self._lanes,
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

    def admit(self, number: int, effect: AdmitSample, prompt: Prompt) -> None:
        """Start an attempt, or let it go on; the controller knows it by the number."""
        self._under_way[effect.id, effect.attempt] = number, prompt
        self._do("admit", effect, prompt)

    def cancel(self, effect: CancelSample) -> None:
        """Stop an attempt."""
        self._under_way.pop((effect.id, effect.attempt), None)
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
        self._under_way.clear()
        self._worker.thread.do(self._worker.reset)
        self._worker.thread.do(self._outbox.begin, epoch)

    def _do(self, name: str, *values: Any) -> None:
        assert self._worker is not None, "weights come before samples"
        self._worker.thread.do(getattr(self._worker, name), *values)

    def _keep(self, sample: Sample, span: Span) -> None:
        self._finished[sample.id, sample.attempt] = sample, span

    def _post(self, event: Event | ThreadFailed) -> None:
        """On the sampler's thread."""
        if isinstance(event, ThreadFailed):
            self._fail(event)
        elif isinstance(event, SampleFinished):
            self._report(event)
        elif isinstance(event, SampleStarted):
            known = self._under_way.get((event.id, event.attempt))
            # One that was cancelled meanwhile nobody waits for.
            if known is not None:
                self._outbox.post("started", known[0], event.now_s)
        else:
            self._outbox.post("event", type(event).__name__, wire.plain(event))

    def _report(self, event: SampleFinished) -> None:
        """The completion goes out, and to the reward at once: it will be asked for."""
        key = event.id, event.attempt
        sample, span = self._finished.pop(key)
        known = self._under_way.pop(key, None)
        if known is None:
            # Cancelled meanwhile: only the timeline shows it.
            log_slot(self._lanes, sample, span)
            return
        number, prompt = known
        epoch = self._outbox.epoch

        def tell(place: int) -> None:
            row = Finished(
                number,
                place,
                *span,
                num_tokens=event.num_tokens,
                version_min=event.version_min,
                finish=sample.finish_reason.value,
            )
            self._outbox.post("finished", *row, epoch=epoch)

        self._porter.carry(sample, lambda: self._outbox.epoch == epoch, tell)

        def receive(score: Score) -> None:
            self._outbox.post("scored", number, *wire.plain(score), epoch=epoch)

        text = completion_text(self._rig.tokenizer, sample)
        self._pool.submit(prompt, text, receive)
