"""Where completions are: all that the controller has of them, and says of them.

sampler --completion--> depot <--key-- learner
   |                                      ^
   +--word of it: Remote--> controller ---+ message
"""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from jigsaw_jax.records import Group, GroupId, Prompt, SampleId, Score
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.lines.depot import (
    DepotError,
    FarDepot,
    Key,
    Shelf,
    read_keys,
)
from jigsaw_jax.runtime.lines.door import Address
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.sample_bytes import read_sample


class PayloadLostError(Exception):
    """Completions are gone, with the host that held them or on their way."""


class Held:
    """A key of the depot; the completion may go when nobody has this any more.

    Args:
      key: of the completion.
      unused: takes the key then.
    """

    __slots__ = ("_unused", "key")

    def __init__(self, key: Key, unused: collections.deque[Key]) -> None:
        self.key = key
        self._unused = unused

    def __del__(self) -> None:
        """Adding to a deque is safe wherever this happens."""
        self._unused.append(self.key)


class Remote(NamedTuple):
    """Where one completion is; in the place of a `Sample`.

    id: its identity.
    attempt: which delivery.
    num_sampled: its tokens.
    is_truncated: whether a length cap ended it.
    held: keeps it in the depot, which is the learner's: a completion outlives the
        process that sampled it.
    """

    id: SampleId
    attempt: int
    num_sampled: int
    is_truncated: bool
    held: Held


class Letters:
    """Prompts as commands have them, each written once while its group is open.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._written: dict[str, bytes] = {}

    def write(self, prompt: Prompt) -> bytes:
        """The prompt as bytes."""
        letter = self._written.get(prompt.uid)
        if letter is None:
            letter = self._written[prompt.uid] = wire.to_bytes(wire.plain(prompt))
        return letter

    def write_last(self, prompt: Prompt) -> bytes:
        """The same, and forget it."""
        letter = self.write(prompt)
        self.forget(prompt.uid)
        return letter

    def forget(self, uid: str) -> None:
        """Nobody is told of this prompt, unless it is written again."""
        self._written.pop(uid, None)


def read_prompt(letter: Any) -> Prompt:
    """The prompt that `Letters.write` wrote; a WireError where it is none."""
    if type(letter) is not bytes:
        raise wire.WireError(f"prompt must be bytes, got {str(letter)[:80]!r}")
    return wire.read(Prompt, wire.from_bytes(letter))


_read_scores = wire.reader(tuple[Score, ...])


class Stock:
    """What the controller has of completions; from any thread.

    Args:
      payloads: takes word of them.
      token: of the run.
      within_s: how long to wait for one that is on its way.

    Attributes:
      payloads: by identity.
    """

    def __init__(self, payloads: Payloads, token: str, within_s: float) -> None:
        self.payloads = payloads
        self._token = token
        self._within_s = within_s
        self._shelf: FarDepot | None = None
        self._unused: collections.deque[Key] = collections.deque()

    def open(self, address: Address) -> None:
        """The learner's depot is there; it has one."""
        if self._shelf is None:
            self._shelf = FarDepot(address, self._token, "controller")

    def hold(self, key: Key) -> Held:
        """Have a completion stay while anybody has what this returns."""
        return Held(key, self._unused)

    def take_unused(self) -> list[Key]:
        """Keys that nobody has any more, once."""
        return [self._unused.popleft() for _ in range(len(self._unused))]

    def whole(self, group: Group) -> Group:
        """The group with its completions; without any where one is gone."""
        keys = [sample.held.key for sample in group.samples]
        assert self._shelf is not None, "the depot is known before a completion is"
        try:
            found = self._shelf.take(keys, self._within_s)
        except DepotError:
            return dataclasses.replace(group, samples=(), scores=())
        samples = tuple(map(read_sample, found))
        return dataclasses.replace(group, samples=samples)

    def close(self) -> None:
        """Ask for no more."""
        if self._shelf is not None:
            self._shelf.close()


def message(groups: Iterable[Group], letters: Letters) -> list[Any]:
    """Groups as a command names them, which is their prompts' last."""
    return [
        [
            group.id,
            group.order,
            letters.write_last(group.prompt),
            [sample.held.key for sample in group.samples],
            [(s.value, s.parts, s.failure) for s in group.scores],
        ]
        for group in groups
    ]


def fetch(groups: Any, shelf: Shelf, within_s: float) -> list[Group]:
    """Groups with their completions.

    Args:
      groups: as `message` wrote them.
      shelf: has the completions.
      within_s: how long to wait for those on their way.

    Returns:
      The groups, in order.

    Raises:
      PayloadLostError: a completion does not come.
      WireError: one is not what it should be.
    """
    told = [wire.read_list(one, 5) for one in wire.read_list(groups)]
    keys = [read_keys(places) for _, _, _, places, _ in told]
    try:
        found = iter(shelf.take([key for some in keys for key in some], within_s))
    except DepotError as error:
        raise PayloadLostError(str(error)) from error
    return [
        Group(
            id=wire.read(GroupId, group_id),
            order=wire.read(int, order),
            prompt=read_prompt(prompt),
            samples=tuple(read_sample(next(found)) for _ in some),
            scores=_read_scores(scores),
        )
        for (group_id, order, prompt, _, scores), some in zip(told, keys, strict=True)
    ]
