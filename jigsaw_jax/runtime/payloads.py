"""Prompts, completions and scores by identity, from arrival until they are freed."""

import threading
from collections.abc import Iterable
from typing import Any

from jigsaw_jax.records import Group, GroupId, Prompt, SampleId, Score


class _Open:
    """What has arrived of one group, by sample index.

    Args:
      size: its samples.

    Attributes:
      samples: of the newest attempt that has come.
      attempts: of the scores, -1 of those that are missing.
      scores: of the newest attempt.
    """

    __slots__ = ("attempts", "samples", "scores")

    def __init__(self, size: int) -> None:
        self.samples: list[Any] = [None] * size
        self.attempts = [-1] * size
        self.scores: list[Any] = [None] * size


def group_of(sample_id: SampleId) -> GroupId:
    """The group that a sample belongs to."""
    return GroupId(sample_id.uid, sample_id.draw)


class Payloads:
    """What the scheduling machines name but never see; safe from every thread.

    A completion (`Sample`, or `cluster.places.Remote` where its tokens are in another
    process) is kept with its attempt, of which the newest counts: a late one of an old
    attempt can neither replace nor be taken for the current one.
    """

    def __init__(self, samples_per_group: int) -> None:
        self._samples_per_group = samples_per_group
        self._lock = threading.Lock()
        self._prompts: dict[str, Prompt] = {}
        # By uid and draw, which a part of a sample's identity equals.
        self._groups: dict[tuple[str, int], _Open] = {}

    def add_prompts(self, prompts: Iterable[Prompt]) -> None:
        """Keep prompts until `free`."""
        with self._lock:
            self._prompts.update((prompt.uid, prompt) for prompt in prompts)

    def prompt(self, uid: str) -> Prompt:
        """The prompt of a uid that is still open."""
        return self._prompts[uid]

    def add_sample(self, sample: Any) -> None:
        """Keep a completion, or word of where it is, until `free`.

        One of a freed prompt is let go.
        """
        self.add_samples((sample,))

    def add_samples(self, samples: Iterable[Any]) -> None:
        """The same of many."""
        with self._lock:
            groups = self._groups
            for sample in samples:
                uid, draw, index = sample.id
                opened = groups.get((uid, draw))
                if opened is None:
                    if uid not in self._prompts:
                        continue
                    opened = _Open(self._samples_per_group)
                    groups[uid, draw] = opened
                held = opened.samples[index]
                if held is None or held.attempt <= sample.attempt:
                    opened.samples[index] = sample

    def sample(self, sample_id: SampleId, attempt: int) -> Any:
        """The completion of this very attempt."""
        sample = self._groups[sample_id[:2]].samples[sample_id.sample]
        assert sample.attempt == attempt, "a newer one starts when this one has ended"
        return sample

    def add_score(self, sample_id: SampleId, attempt: int, score: Score) -> None:
        """Keep a score until `free`."""
        self.add_scores(((sample_id, attempt, score),))

    def add_scores(self, scores: Iterable[tuple[SampleId, int, Score]]) -> None:
        """The same of many."""
        with self._lock:
            groups = self._groups
            for sample_id, attempt, score in scores:
                opened = groups.get(sample_id[:2])
                index = sample_id[2]
                if opened is not None and opened.attempts[index] <= attempt:
                    opened.attempts[index], opened.scores[index] = attempt, score

    def group(self, group_id: GroupId, order: int) -> Group:
        """The trainable-complete group, samples by index."""
        with self._lock:
            opened = self._groups[group_id]
            return Group(
                id=group_id,
                order=order,
                prompt=self._prompts[group_id.uid],
                samples=tuple(opened.samples),
                scores=tuple(opened.scores),
            )

    def is_complete(self, group_id: GroupId) -> bool:
        """Whether all samples of the group are scored."""
        with self._lock:
            opened = self._groups.get(group_id)
            return opened is not None and -1 not in opened.attempts

    def free(self, groups: Iterable[GroupId], *, keep_prompts: bool = False) -> None:
        """Forget groups; another draw may still need their prompts."""
        with self._lock:
            for group in groups:
                self._groups.pop(group, None)
                if not keep_prompts:
                    self._prompts.pop(group.uid, None)

    def num_open(self) -> int:
        """Groups of which something is held."""
        return len(self._groups)
