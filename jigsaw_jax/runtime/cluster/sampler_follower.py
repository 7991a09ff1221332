"""Sampling on the hosts of a slice behind the first: what its log says, in its order.

log: load -> [weights thread] fetch -> answer
loop -> [sampler thread] the same call that host 0 makes
"""

from collections.abc import Callable
from typing import Any

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.rig import Rig
from jigsaw_jax.runtime.lines.door import Address
from jigsaw_jax.runtime.slice.loops import Replay
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.runtime.threads import CommandThread, ThreadFailed
from jigsaw_jax.settings import Train


class SamplerFollower:
    """Has no requests, scores or messages of its own.

    Every method but `__init__` is called from the desk's thread.

    Args:
      train: the run.
      name: of the worker.
      peers: of this host.
      clock: of this process.
      fail: takes what a thread died of.
    """

    def __init__(
        self,
        train: Train,
        name: str,
        *,
        peers: Peers,
        clock: Clock,
        fail: Callable[[ThreadFailed], None],
    ) -> None:
        self._peers = peers
        self._rig = Rig(train, name, peers, clock)
        self._replay = Replay(self._rig.begin, self._rig.load)
        # Decoding goes on while weights are fetched.
        self._weights = CommandThread("weights", fail)
        self._sampler = CommandThread("sampler", fail)
        for thread in (self._weights, self._sampler):
            thread.start()

    def load(self, message: Any, depot: Address) -> None:
        """Fetch a version and say whether it is here; completions are host 0's."""
        del depot
        self._weights.do(self._load, message)

    def _load(self, message: Any) -> None:
        went = self._rig.fetch(message)
        version = self._rig.version
        self._peers.answer(fetch_key(self._rig), went.missing, went.is_gone, version)

    def follow(self, values: list[Any]) -> None:
        """Make a call of host 0's loop."""
        self._sampler.do(self._replay.follow, *values)


def fetch_key(rig: Rig) -> str:
    """Under which a host says how its last fetch went."""
    return f"fetch {rig.num_fetches}"
