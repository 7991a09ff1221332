"""How many rows a hand-off fills and into which micro-batches they are cut.

The arithmetic of `train/packing.py`, from lengths alone; a test compares the two.
"""

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

from jigsaw_jax.settings import Train, sizes

# Inputs, and tokens in the loss.
Size = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The learner's rows.

    Attributes:
      shapes: rows of each micro-batch shape, largest first.
      row_tokens: inputs that a row holds.
      row_trained: tokens in the loss that it holds.
      min_fill: share of a shape's rows that are in use when it is chosen, save the
        smallest.
      prompt: tokens of every prompt.
      shares_prefix: whether completions of a group stand behind one copy of it.
    """

    shapes: tuple[int, ...]
    row_tokens: int
    row_trained: int
    min_fill: float
    prompt: int = 0
    shares_prefix: bool = False

    def rows(self, groups: Iterable[Sequence[int]]) -> int:
        """Rows of a hand-off.

        Args:
          groups: tokens of each sequence of each group, its prompt included.

        Returns:
          How many: best fit, longest first.
        """
        units: list[Size] = []
        for group in groups:
            # The last token predicts nothing.
            own = [(length - 1, length - self.prompt) for length in group]
            if self.shares_prefix and self.prompt:
                units += self._shared(own)
            else:
                units += own
        return len(self._fit(units, 0))

    def micro_batches(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Rows of each micro-batch of a hand-off; see `rows`."""
        left, found = self.rows(groups), []
        while left > 0:
            filled = [n for n in self.shapes if left >= self.min_fill * n]
            found.append(filled[0] if filled else self.shapes[-1])
            left -= found[-1]
        return found

    def least_rows(self, groups: Iterable[Sequence[int]]) -> float:
        """Rows that groups fill at least, whatever is handed over together."""
        inputs = 0
        for group in groups:
            inputs += sum(length - 1 for length in group)
            if self.shares_prefix:
                inputs -= self.prompt * (len(group) - 1)
        return inputs / self.row_tokens

    def _shared(self, own: Sequence[Size]) -> list[Size]:
        """A group's rows behind a copy of the prompt each, as units of their own."""
        return [
            (self.row_tokens - inputs, self.row_trained - trained)
            for inputs, trained in self._fit(own, self.prompt)
        ]

    def _fit(self, units: Iterable[Size], num_shared: int) -> list[Size]:
        """What is left of each row; `num_shared` inputs of all stand there once."""
        # Inputs left, the row, and places left, by inputs.
        rooms: list[tuple[int, int, int]] = []
        for inputs, trained in sorted(units, key=lambda unit: -unit[0]):
            own = inputs - num_shared
            at = bisect.bisect_left(rooms, (own, -1, 0))
            # A row may have inputs left and no place for the loss.
            while at < len(rooms) and rooms[at][2] < trained:
                at += 1
            room = (self.row_tokens - num_shared, len(rooms), self.row_trained)
            if at < len(rooms):
                room = rooms.pop(at)
            left = max(room[0] - own, 0), room[1], max(room[2] - trained, 0)
            bisect.insort(rooms, left)
        return [(inputs, trained) for inputs, _, trained in rooms]


def packing_of(train: Train) -> Packing:
    """The packing that the settings ask for, with the prompts of `Workload`."""
    return Packing(
        shapes=tuple(rows for rows, _ in sizes.row_shapes(train)),
        row_tokens=train.learner.row_tokens,
        row_trained=sizes.row_trained(train),
        min_fill=train.learner.min_fill,
        prompt=train.simulation.workload.prompt_tokens,
        shares_prefix=train.learner.shared_prefix,
    )
