"""Where the run stands, as the rules for rounds and pacing see it."""

import dataclasses
from collections.abc import Mapping

from jigsaw_jax.schedule.assembly import Assembly
from jigsaw_jax.schedule.groups import OpenGroup
from jigsaw_jax.schedule.source import Source
from jigsaw_jax.settings import Pipeline


@dataclasses.dataclass(slots=True)
class Standing:
    """A live view of the pipeline's parts; only the pipeline writes.

    source: prompts that wait.
    groups: open groups by order; those of the update under way are not among them.
    versions: how many of them were first admitted under each version.
    assembly: the update under way.
    pending: trainable-complete groups that wait for the learner, FIFO.
    barren: groups that the filter gave up in a row, none handed over between.
    """

    source: Source
    groups: Mapping[int, OpenGroup]
    versions: Mapping[int, int]
    assembly: Assembly
    pending: list[OpenGroup] = dataclasses.field(default_factory=list[OpenGroup])
    barren: int = 0

    @property
    def updates_done(self) -> int:
        """Steps taken, so the index of the update under way."""
        return self.assembly.updates_done

    @property
    def filled(self) -> int:
        """Groups in the update under way."""
        return len(self.assembly.groups)

    def is_backed_up(self, settings: Pipeline) -> bool:
        """Whether as much waits for the learner as may, so that nothing is admitted.

        An idle learner has just been given all that could train. What waits then, waits
        for samples that are still to come, and must not keep them out.
        """
        if not self.assembly.is_busy:
            return False
        groups_max, tokens_max = settings.queue_groups_max, settings.queue_tokens_max
        num_tokens = sum(g.num_tokens for g in self.pending) if tokens_max else 0
        return (0 < groups_max <= len(self.pending)) or (0 < tokens_max <= num_tokens)
