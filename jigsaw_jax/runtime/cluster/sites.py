"""Where workers may run, as hosts come and go.

The learner has this host's slice, with as many hosts as at first. Samplers have every
other slice of a size that one had at first, by turns; and the learner's, where at first
there was no other, or there were too few.
"""

import math
from collections.abc import Iterable

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.head import ClusterError, Head, Place
from jigsaw_jax.runtime.cluster.slices import SliceError, check_slice
from jigsaw_jax.runtime.crew import ClusterLostError
from jigsaw_jax.settings import Train

# How long nothing is hired on a host that said it was about to go: notices of a
# preemption come half a minute ahead, and Ray takes up to a minute to see that it went.
LEAVING_S = 120.0
# In which the hosts of a slice come that names itself by Ray's labels alone.
JOINING_S = 120.0


class Sites:
    """The places of a run; for one thread at a time, behind `open`.

    Args:
      head: of the cluster.
      train: the run.
      clock: of the controller.
    """

    def __init__(self, head: Head, train: Train, clock: Clock) -> None:
        self._head = head
        self._train = train
        self._clock = clock
        self._learner_hosts = 1
        self._sizes: set[int] = set()
        # Samplers that a slice takes: the learner's, and any other.
        self._beside_max, self._each_max = 0, 1
        self._left_s: dict[str, float] = {}
        # Slices of another size: since when they are there, and which were told.
        self._unfit_s: dict[tuple[str, ...], float] = {}
        self._told: set[tuple[str, ...]] = set()

    def open(self) -> int:
        """Settle by what is there how workers are spread.

        Returns:
          Samplers that there is a place for.

        Raises:
          ClusterError: a slice has other hosts than its mesh or setting asks for.
          ClusterLostError: this host is no part of the cluster.
        """
        cluster, num_local = self._train.cluster, self._head.num_local
        if num_local:
            return num_local - 1
        own, *others = found = self._head.slices()
        num = cluster.samplers or max(len(others), 1)
        chosen = [found[i % len(found)] for i in range(1, num + 1)]
        try:
            check_slice("learner", len(own), cluster, self._train.mesh)
            for nodes in chosen:
                check_slice("sampler", len(nodes), cluster, self._train.mesh)
        except SliceError as error:
            raise ClusterError(str(error)) from None
        self._learner_hosts = len(own)
        self._sizes = {len(nodes) for nodes in chosen}
        self._beside_max = chosen.count(own)
        self._each_max = max((chosen.count(nodes) for nodes in others), default=1)
        return num

    def learner(self) -> Place:
        """Where the learner, or its next life, runs.

        Returns:
          Its place.

        Raises:
          ClusterLostError: this host, or another of its slice, is not there.
        """
        if self._head.num_local:
            return Place(nodes=(None,) * max(self._train.cluster.learner_hosts, 1))
        own = self._head.slices()[0]
        if len(own) != self._learner_hosts:
            raise ClusterLostError(
                f"the learner's slice has {len(own)} of its {self._learner_hosts} "
                "hosts; once all have joined again, the same command goes on from the "
                "last checkpoint"
            )
        return Place(nodes=own)

    def vacant(
        self, taken: Iterable[Place], *, wish: Place | None = None
    ) -> list[Place]:
        """Places for the samplers that are missing, as far as there is room.

        Args:
          taken: a place for every sampler that there is.
          wish: comes first, where there is room.

        Returns:
          The places, on the slices with fewest samplers first.

        Raises:
          ClusterLostError: this host is no part of the cluster any more.
        """
        cluster, taken = self._train.cluster, list(taken)
        num_local = self._head.num_local
        if num_local:
            place = Place(nodes=(None,) * max(cluster.sampler_hosts, 1))
            return [place] * max(num_local - 1 - len(taken), 0)
        own, *others = self._head.slices()
        rooms: list[tuple[int, Place]] = []
        for nodes in self._fit([*others, *[own] * bool(self._beside_max)]):
            num_max = self._beside_max if nodes == own else self._each_max
            num = sum(not set(nodes).isdisjoint(place.nodes) for place in taken)
            rooms += [(turn, Place(nodes=nodes)) for turn in range(num, num_max)]
        rooms.sort(key=lambda room: (room[1] != wish, room[0]))
        num_wanted = cluster.samplers - len(taken) if cluster.samplers else math.inf
        return [place for i, (_, place) in enumerate(rooms) if i < num_wanted]

    def leave(self, place: Place) -> None:
        """Hire nobody on these hosts for a while, since they are about to go."""
        now_s = self._clock.now_s()
        self._left_s.update({node: now_s for node in place.nodes if node is not None})

    def take_unfit(self) -> list[str]:
        """Why slices that have joined take no sampler, each once."""
        sizes = " or ".join(map(str, sorted(self._sizes)))
        since_s = self._clock.now_s() - JOINING_S
        late = {nodes for nodes, at_s in self._unfit_s.items() if at_s <= since_s}
        told = sorted(late - self._told)
        self._told |= late
        return [
            f"a slice of {len(nodes)} hosts has joined and takes no sampler, as at the "
            f"start they had {sizes}; started again, the run would use it"
            for nodes in told
        ]

    def _fit(self, found: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Those that samplers work on, as far as they don't go at this moment."""
        now_s = self._clock.now_s()
        found = list(found)
        self._unfit_s = {
            nodes: self._unfit_s.get(nodes, now_s)
            for nodes in found
            if len(nodes) not in self._sizes
        }
        gone_s = now_s - LEAVING_S
        leaving = {node for node, at_s in self._left_s.items() if at_s > gone_s}
        fit = [nodes for nodes in found if nodes not in self._unfit_s]
        return [nodes for nodes in fit if leaving.isdisjoint(nodes)]
