"""Where a sampler has its weights from: it asks the learner for a version's offers.

    load: version, learner --ask==Ray==> Newest, at the learner
                              |---> offers
                              +---> GoneError: superseded, or the learner has ended
                              +---> CarrierError: anything else

Of a GoneError the controller hears nothing: whoever took the version's place has told
it, or Ray, for which a process ends but once. What a cut network looks like too is no
such error: the learner may be there all the time, and no other load would follow. One
that hangs has been killed before the time is over.
"""

from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from jigsaw_jax.runtime.cluster import offers
from jigsaw_jax.runtime.weights import CarrierError, Offer

# Heartbeats that an answer may take.
ANSWER_BEATS = 3.0


class GoneError(Exception):
    """Nobody has the version any more; another load follows."""


class Source:
    """Asks one life of the learner after another; one thread calls it.

    Args:
      within_s: what an answer may take.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._name = ""
        self._learner: Any = None

    def ask(self, name: str, version: int, with_frozen: bool) -> list[Offer]:
        """The offers of a version.

        Args:
          name: of Ray's for the learner.
          version: that is wanted.
          with_frozen: whether what is frozen is, too.

        Returns:
          That of what trains, and that of what is frozen where it is wanted.

        Raises:
          GoneError: it is not to be had any more.
          CarrierError: it is not found, there was no answer, or what it names is lost.
          WireError: it is not what `offers.put` made.
        """
        try:
            if name != self._name:
                self._learner, self._name = self._find(name), name
            asked = self._learner.offered.remote(version, with_frozen)
            found = ray.get(asked, timeout=self._within_s)
            if found is None:
                raise GoneError(f"version {version} has been superseded")
            return [offers.get(told, self._within_s) for told in found]
        except ActorDiedError as error:
            raise GoneError(f"{_worker(name)} has ended") from error
        except RayError as error:
            first = str(error).strip().split("\n")[0]
            raise CarrierError(f"{_worker(name)} does not answer: {first}") from error

    def _find(self, name: str) -> Any:
        try:
            return ray.get_actor(name)
        except ValueError:
            # Ray says the same where it could not ask who has the name.
            raise CarrierError(f"{_worker(name)} is not found") from None


def _worker(name: str) -> str:
    """The worker's own name, behind which there is what makes it Ray's."""
    return name.partition(" ")[0]
