"""Publishing: the learner's weights to the sampler under the next version."""

from collections.abc import Callable
from typing import Any

import jax

from jigsaw_jax.runtime.channel import WeightChannel
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.sampler import SamplerWorker
from jigsaw_jax.sample.engine import Engine


class Publisher:
    """Sends versions and remembers the weights that the samplers now have.

    Args:
      channel: to the sampler's mesh.
      engine: prepares weights for decoding.
      clock: of the run.
      frozen: the learner's weights that never change; sent here, once.

    Attributes:
      params: what was last sent, of what trains, as the learner has it; a checkpoint
        between two publishes must hold it, since unfinished draws of the round are made
        again with it.
    """

    def __init__(
        self, channel: WeightChannel, engine: Engine, clock: Clock, *, frozen: Any
    ) -> None:
        self._channel = channel
        self._engine = engine
        self._clock = clock
        self._frozen = channel.send_frozen(engine.prepare_params(frozen))
        self.params: Any = None

    def load(self, params: Any) -> Any:
        """Place what trains and return all that the engine decodes with."""
        self.params = params
        ready = self._engine.prepare_params(params)
        return {**self._frozen, **self._channel.send(ready)}

    def publish(
        self,
        params: Any,
        version: int,
        *,
        sampler: SamplerWorker,
        report: Callable[[int, float, float], None],
    ) -> None:
        """Place weights here, then have the sampler's thread swap them in whole.

        `report(version, start_s, end_s)` is called when the swap is done.
        """
        start_s = self._clock.now_s()
        loaded = self.load(params)
        jax.block_until_ready(loaded)
        sampler.thread.do(
            sampler.set_params,
            loaded,
            version,
            lambda: report(version, start_s, self._clock.now_s()),
        )
