"""Where a sampler has its weights from: it asks the learner for a version's offers.

    load: version, learner --ask==Ray==> Newest, at the learner
                              |---> offers
                              +---> GoneError: superseded, or the learner has ended

Whoever took the version's place has told the controller, which sends another load. A
learner that hangs has been killed before the time is over.
"""

from typing import Any

import ray
from ray.exceptions import ActorDiedError, OwnerDiedError, RayError

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
          CarrierError: there was no answer, or what it names is lost.
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
        except (ActorDiedError, OwnerDiedError) as error:
            raise GoneError(f"{name} has ended") from error
        except RayError as error:
            first = str(error).strip().split("\n")[0]
            raise CarrierError(f"{name} does not answer: {first}") from error

    def _find(self, name: str) -> Any:
        try:
            return ray.get_actor(name)
        except ValueError:
            raise GoneError(f"{name} has ended") from None
