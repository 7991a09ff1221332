"""Gradients in a sampler's process: sums of whole groups, handed in before the step."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ray.exceptions import RayError

from jigsaw_jax import mesh as meshes
from jigsaw_jax.records import Event
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import leaves, offers
from jigsaw_jax.runtime.cluster.outbox import Lanes, Outbox
from jigsaw_jax.runtime.cluster.places import PayloadLostError, fetch
from jigsaw_jax.runtime.learner import LearnerWorker
from jigsaw_jax.runtime.lines.depot import Shelf
from jigsaw_jax.runtime.threads import ThreadFailed, Turns
from jigsaw_jax.settings import Train
from jigsaw_jax.train.learner import Learner


class HelperDuty:
    """Sums gradients under the learner's weights; takes no step itself.

    Args:
      train: the run.
      name: of the worker.
      outbox: takes messages.
      clock: of this process.
      fail: takes what a thread died of.
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
        # The sampler's own devices, as one replica of its weights lies on them.
        tensor = train.mesh.sampler_tensor
        own = dataclasses.replace(
            train.mesh, data=1, fsdp=1, tensor=tensor, shared=True
        )
        self._train = train
        self._outbox = outbox
        self._fail = fail
        mesh = meshes.learner_mesh(own, jax.devices())
        trained, frozen = offers.shapes(train.decoder)
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), {**frozen, **trained}
        )
        self._learner = Learner(train, mesh, zeros)
        self._learner.compile()
        self._worker = LearnerWorker(
            self._learner,
            turns=Turns(is_shared=False),
            journal=Lanes(name, outbox),
            clock=clock,
            post=self._post,
            is_published=True,
        )
        # Times are told as intervals; what nobody takes out would grow.
        self._worker.busy = collections.deque(maxlen=0)
        self._worker.thread.start()
        self._refs: list[Any] = []

    def follow(self, params: Any, version: int) -> None:
        """Go by a version's weights, all of them."""
        self._worker.thread.do(self._learner.follow, params, version)

    def borrow(self, names: Sequence[str], refs: Sequence[Any]) -> None:
        """Go by the learner's weights behind a step within the round."""
        self._worker.thread.do(self._borrow, names, refs)

    def accumulate(self, update: int, groups: Any, shelf: Shelf) -> None:
        """Fetch completions from there and add their gradient sums."""
        self._worker.thread.do(self._accumulate, update, groups, shelf)

    def hand_in(self, update: int) -> None:
        """Send the sums of an update, and begin anew."""
        self._worker.thread.do(self._hand_in, update)

    def _borrow(self, names: Sequence[str], refs: Sequence[Any]) -> None:
        try:
            params = leaves.get(names, refs, self._learner.abstract_params())
        except RayError as error:
            raise PayloadLostError(str(error).split("\n")[0]) from error
        self._learner.borrow(params)

    def _accumulate(self, update: int, groups: Any, shelf: Shelf) -> None:
        within_s = self._train.cluster.heartbeat_s
        self._worker.accumulate(fetch(groups, shelf, within_s), update)

    def _hand_in(self, update: int) -> None:
        sums, num_trained = self._learner.take_sums()
        names, self._refs = leaves.put(sums)
        self._outbox.post("sums", update, num_trained, names, refs=self._refs)

    def _post(self, event: Event | ThreadFailed) -> None:
        if isinstance(event, ThreadFailed):
            self._fail(event)
        else:
            self._outbox.post("event", type(event).__name__, wire.plain(event))
