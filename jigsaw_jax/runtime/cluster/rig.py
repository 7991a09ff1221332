"""A sampler's engine on one host, and the versions that it has fetched.

    offer -> fetch (beside decoding) -> load (between two steps, or beside) -> decode

In a slice of several hosts each fetches for itself. Placing starts programs over all of
them, so that is done in the order of the slice's log.
"""

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jigsaw_jax import mesh as meshes
from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.build import build_engine
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import carriers, offers
from jigsaw_jax.runtime.cluster.source import ANSWER_BEATS, GoneError, Source
from jigsaw_jax.runtime.devices import prepare_devices
from jigsaw_jax.runtime.inputs import open_tokens
from jigsaw_jax.runtime.publisher import Publisher
from jigsaw_jax.runtime.sampler import SamplerWorker
from jigsaw_jax.runtime.slice.join import check_joined
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.runtime.weights import Offer, Receiver, WeightError
from jigsaw_jax.sample.loop import SampleLoop
from jigsaw_jax.sample.warm_up import warm_up
from jigsaw_jax.settings import Train


@dataclasses.dataclass(frozen=True, slots=True)
class Fetched:
    """How a fetch went.

    is_new: whether it was not here before, whole.
    missing: why it is not here; None where it is.
    is_gone: nobody has it any more, and another load follows.
    """

    is_new: bool = False
    missing: str | None = None
    is_gone: bool = False


class Rig:
    """Builds and warms the engine at once.

    Fetches are counted, so that hosts which are at other places of the log mean the
    same weights by a number.

    Args:
      train: the run.
      name: of the worker.
      peers: this host's slice, which is one job by now.
      clock: of this process.

    Attributes:
      tokenizer: of the run.
      version: of the weights that were fetched last; -1 before the first.
      num_fetches: that were tried.
      publisher: places weights; only once a loop has begun.
    """

    publisher: Publisher

    def __init__(self, train: Train, name: str, peers: Peers, clock: Clock) -> None:
        own = dataclasses.replace(train.mesh, data=1, fsdp=1, tensor=1, shared=True)
        prepare_devices(own, num_hosts=peers.num_hosts)
        check_joined(peers)
        self._train = train
        self._clock = clock
        self.tokenizer: Tokenizer = open_tokens(train)
        devices = meshes.host_devices(own.sampler_devices)
        mesh = meshes.sampler_mesh(own, devices)
        self._engine, self._channel = build_engine(train, self.tokenizer, mesh)
        self._wanted = offers.wanted(train.decoder, mesh)
        self._run = ""
        number = int(name.removeprefix("sampler-"))
        self._ways = carriers.make(train.cluster, clock=clock, receiver=number)
        self._receiver = self._receive(self._wanted[0])
        self._source = Source(ANSWER_BEATS * train.cluster.heartbeat_s)
        self._params: Any = None
        self._frozen: Any = None
        self._fetched: dict[int, Any] = {}
        self.version = -1
        self.num_fetches = 0
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile with weights of zero, while the learner makes the real ones."""
        trained, frozen = offers.shapes(self._train.decoder)
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), {**frozen, **trained}
        )
        params = self._engine.load_params(zeros)
        warm_up(self._engine, params, multi_turn=self._train.pipeline.early_stop)
        # A full collection goes over all that was imported and traced, which stays: it
        # would stop decoding for a tenth of a second.
        gc.collect()
        gc.freeze()

    def fetch(self, message: Any) -> Fetched:
        """Fetch a version onto this host's devices; what fails changes nothing.

        Args:
          message: Ray's name of the learner that has it, version and run.

        Returns:
          How it went.
        """
        name, number, life = wire.read_list(message, 3)
        learner, version = wire.read(str, name), wire.read(int, number)
        run = wire.read(str, life)
        self.num_fetches += 1
        if run != self._run:
            # Another life of the learner may count its versions anew.
            self._run = run
            self._receiver = self._receive(self._wanted[0])
        is_new, is_first = version > self._receiver.version, self._frozen is None
        try:
            if is_new or is_first:
                trained, *frozen = self._source.ask(learner, version, is_first)
                if is_new:
                    self._params = self._fetch(self._receiver, trained)
                    self.version = version
                for still in frozen:
                    receiver = self._receive(self._wanted[1])
                    self._frozen = self._fetch(receiver, still)
        except GoneError as error:
            return Fetched(missing=str(error), is_gone=True)
        except WeightError as error:
            return Fetched(missing=str(error))
        self._fetched[self.num_fetches] = self._params
        return Fetched(is_new=is_new or is_first)

    def _receive(self, wanted: Any) -> Receiver:
        return Receiver(self._run, wanted, self._ways, clock=self._clock)

    def _fetch(self, receiver: Receiver, offer: Offer) -> Any:
        within_s = self._train.cluster.carrier_s
        return receiver.receive(offer, carrier_s=within_s, within_s=within_s)

    def begin(self, fetch: int, version: int) -> SampleLoop:
        """A loop with the weights of a fetch."""
        self.publisher = Publisher(
            self._channel, self._engine, self._clock, frozen=self._frozen
        )
        return SampleLoop(self._engine, self.load(fetch), version)

    def load(self, fetch: int) -> Any:
        """The weights of a fetch as the engine decodes with them; no older one then."""
        old = self._older(fetch)
        loaded = self.publisher.load(self._fetched[fetch])
        let_go(old)
        return loaded

    def publish(
        self,
        version: int,
        *,
        sampler: SamplerWorker,
        report: Callable[[int, float, float], None],
    ) -> None:
        """Have a sampler of this host alone decode with what was fetched last."""
        old = self._older(self.num_fetches)
        self.publisher.publish(self._params, version, sampler=sampler, report=report)
        let_go(old)

    def _older(self, fetch: int) -> list[Any]:
        """The arrays of fetches before this one, which are needed no more."""
        numbers = [number for number in self._fetched if number < fetch]
        return jax.tree.leaves([self._fetched.pop(number) for number in numbers])

    @property
    def has_weights(self) -> bool:
        """Whether a version has been fetched whole."""
        return self._params is not None and self._frozen is not None

    def weights(self) -> Any:
        """All weights of the version that was fetched last."""
        return {**self._frozen, **self._params}


def let_go(arrays: list[Any]) -> None:
    """Empty a list, one by one: all at once would keep the interpreter from decoding.

    Args:
      arrays: of which nobody else has any.
    """
    while arrays:
        arrays.pop()
