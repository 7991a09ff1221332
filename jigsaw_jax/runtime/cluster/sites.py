"""Where workers may run, as hosts come and go.

The learner has this host's slice, with as many hosts as at first. Every other slice
that fits has a sampler. Where this host doesn't say that it is for the learner alone,
samplers are beside it too if at first there was no other slice, or there were too few.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.head import ClusterError, Head, Place
from jigsaw_jax.runtime.cluster.slices import Slice, SliceError, check_slice
from jigsaw_jax.runtime.crew import ClusterLostError
from jigsaw_jax.settings import Train

# How long nothing is hired on a host that said it was about to go: notices of a
# preemption come half a minute ahead, and Ray takes up to a minute to see that it went.
LEAVING_S = 120.0
# In which the hosts of a slice come, and those that have come back are seen to be gone.
JOINING_S = 120.0
# The same of one that doesn't say how many there are, since the last of them.
SETTLE_S = 10.0
LOOK_S = 0.5


class Sites:
    """The places of a run; for one thread at a time, behind `open`.

    Args:
      head: of the cluster.
      train: the run.
      clock: of the controller.
      wait: passes some seconds.
    """

    def __init__(
        self,
        head: Head,
        train: Train,
        clock: Clock,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._head = head
        self._train = train
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._learner_hosts = 1
        # Of slices that don't say how many hosts they have.
        self._sizes: set[int] = set()
        # Samplers that a slice takes: the learner's, and any other.
        self._beside_max, self._each_max = 0, 1
        self._left_s: dict[str, float] = {}
        # Slices without a sampler: since when they are there, and which were told.
        self._unfit_s: dict[tuple[str, ...], float] = {}
        self._told: set[tuple[str, ...]] = set()

    def open(self, say: Callable[[str], None]) -> int:
        """Settle by what is there how workers are spread; wait for what is missing.

        Args:
          say: tells what is waited for.

        Returns:
          Samplers that are wanted, those included that start on slices that join.

        Raises:
          ClusterError: a slice has other hosts than its mesh or setting asks for.
          ClusterLostError: a host of the learner's slice does not come.
        """
        cluster, num_local = self._train.cluster, self._head.num_local
        if num_local:
            return num_local - 1
        own = self._await_own(lambda own: own.is_whole)
        self._check("learner", own)
        fit = self._await_slices(own, say)
        self._learner_hosts = len(own.nodes)
        self._sizes = {len(one.nodes) for one in fit or [own]}
        num = cluster.samplers or max(len(fit), 1)
        if not own.is_learners:
            # By turns, this host's the last.
            self._beside_max = num // (len(fit) + 1)
            self._each_max = math.ceil(num / (len(fit) + 1))
        elif num > len(fit):
            say(
                f"there is a place for {len(fit)} of Cluster.samplers = {num}, a slice "
                "each; others start on slices that join"
            )
        if self._beside_max:
            self._check("sampler", own)
        return num

    def learner(self) -> Place:
        """Where the learner, or its next life, runs; waits for its hosts.

        Returns:
          Its place.

        Raises:
          ClusterLostError: this host, or another of its slice, is not there.
        """
        if self._head.num_local:
            return Place(nodes=(None,) * max(self._train.cluster.learner_hosts, 1))
        num_hosts = self._learner_hosts
        own = self._await_own(lambda own: own.is_whole and len(own.nodes) == num_hosts)
        return Place(nodes=own.nodes)

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
        for nodes in [*self._fit(others), own.nodes]:
            num_max = self._each_max
            if nodes == own.nodes:
                is_there = own.is_whole and len(nodes) == self._learner_hosts
                num_max = self._beside_max if is_there else 0
            num = sum(not set(nodes).isdisjoint(place.nodes) for place in taken)
            if not self._is_leaving(nodes):
                rooms += [(turn, Place(nodes=nodes)) for turn in range(num, num_max)]
        rooms.sort(key=lambda room: (room[1] != wish, room[0]))
        num_wanted = cluster.samplers - len(taken) if cluster.samplers else math.inf
        return [place for i, (_, place) in enumerate(rooms) if i < num_wanted]

    def leave(self, place: Place) -> bool:
        """Hire nobody on these hosts for a while, since they are about to go.

        Args:
          place: a slice of which a host said so.

        Returns:
          Whether one said so before, and did not go in that while.
        """
        nodes = [node for node in place.nodes if node is not None]
        now_s = self._clock.now_s()
        said_s = [self._left_s[node] for node in nodes if node in self._left_s]
        was_said = bool(said_s) and min(said_s) <= now_s - LEAVING_S
        self._left_s = {**self._left_s, **dict.fromkeys(nodes, now_s)}
        return was_said

    def take_unfit(self) -> list[str]:
        """Why slices that are there take no sampler, each once."""
        since_s = self._clock.now_s() - JOINING_S
        late = {nodes for nodes, at_s in self._unfit_s.items() if at_s <= since_s}
        told = sorted(late - self._told)
        self._told |= late
        return [
            f"a slice of {len(nodes)} hosts takes no sampler: "
            f"{self._problem(Slice(nodes=nodes), self._sizes)}"
            for nodes in told
        ]

    def _await_own(self, is_so: Callable[[Slice], bool]) -> Slice:
        end_s = self._clock.now_s() + JOINING_S
        while not is_so(own := self._head.slices()[0]):
            if self._clock.now_s() >= end_s:
                raise ClusterLostError(
                    f"the learner's slice must have {own.num_hosts or 'all'} hosts, "
                    f"each once, got {len(own.nodes)}; when they have joined, the same "
                    "command goes on from the last checkpoint"
                )
            self._wait(LOOK_S)
        return own

    def _await_slices(self, own: Slice, say: Callable[[str], None]) -> list[Slice]:
        """Those that can have a sampler, once one can; none where none need be."""
        start_s = seen_s = self._clock.now_s()
        before, is_said = None, False
        while True:
            found, now_s = self._head.slices()[1:], self._clock.now_s()
            if found != before:
                before, seen_s = found, now_s
            is_known = all(one.num_hosts for one in found)
            fit = [one for one in found if not self._problem(one, {len(one.nodes)})]
            if fit and (is_known or now_s - seen_s >= SETTLE_S):
                return fit
            if not own.is_learners and not found:
                return []
            may_come = own.is_learners or not is_known
            if found and not (may_come and now_s - start_s < JOINING_S):
                self._check("sampler", found[0])
            if not is_said:
                is_said = True
                say("waiting for a slice that samples")
            self._wait(LOOK_S)

    def _check(self, side: str, one: Slice) -> None:
        try:
            check_slice(side, len(one.nodes), self._train.cluster, self._train.mesh)
        except SliceError as error:
            raise ClusterError(str(error)) from None

    def _problem(self, one: Slice, sizes: set[int]) -> str:
        """Why a slice can't have a sampler; nothing where it can."""
        try:
            self._check("sampler", one)
        except ClusterError as error:
            return str(error)
        if one.num_hosts or len(one.nodes) in sizes:
            return ""
        told = " or ".join(map(str, sorted(sizes)))
        return f"it does not say how many hosts it has, and the first ones had {told}"

    def _fit(self, found: Sequence[Slice]) -> list[tuple[str, ...]]:
        now_s = self._clock.now_s()
        unfit = {one.nodes for one in found if self._problem(one, self._sizes)}
        self._unfit_s = {nodes: self._unfit_s.get(nodes, now_s) for nodes in unfit}
        return [one.nodes for one in found if one.nodes not in unfit]

    def _is_leaving(self, nodes: tuple[str, ...]) -> bool:
        gone_s = self._clock.now_s() - LEAVING_S
        return any(self._left_s.get(node, -math.inf) > gone_s for node in nodes)
