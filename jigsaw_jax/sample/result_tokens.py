"""The shape in which JetStream's orchestrator reads the tokens of a decode step."""

import dataclasses

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotData:
    """One slot's part of a `ResultTokens`.

    Attributes:
      tokens: int32 [1, 1].
      valid: int32 [1, 1].
      lengths: int32 [1].
    """

    tokens: np.ndarray | jax.Array
    valid: np.ndarray | jax.Array
    lengths: np.ndarray | jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultTokens:
    """Columns token, valid and length of each slot in one array.

    Source: google-jetstream 0.2.2, `engine_api.ResultTokens`; one sample a slot, one
    token a step.

    Attributes:
      data: int32 [slots, 3].
      tokens_idx: columns of the tokens.
      valid_idx: columns that say whether the token was sampled.
      length_idx: columns of the number of tokens sampled so far.
      samples_per_slot: 1 in a decode step.
    """

    data: np.ndarray | jax.Array
    tokens_idx: tuple[int, int] = (0, 1)
    valid_idx: tuple[int, int] = (1, 2)
    length_idx: tuple[int, int] = (2, 3)
    samples_per_slot: int = 1

    def copy_to_host_async(self) -> None:
        """Starts the copy that `convert_to_numpy` will wait for."""
        if isinstance(self.data, jax.Array):
            self.data.copy_to_host_async()

    def convert_to_numpy(self) -> "ResultTokens":
        """The same on the host."""
        return dataclasses.replace(self, data=np.asarray(self.data))

    def get_result_at_slot(self, slot: int) -> SlotData:
        """What one slot sampled."""
        row = self.data[slot : slot + 1]
        return SlotData(
            tokens=row[:, slice(*self.tokens_idx)],
            valid=row[:, slice(*self.valid_idx)],
            lengths=row[:, self.length_idx[0]],
        )
