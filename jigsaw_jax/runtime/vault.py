"""The learner's state on disk, joined to the control loop's record in one commit."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jigsaw_jax.runtime.base import base_of, check_base
from jigsaw_jax.store.checkpoint import Checkpoints
from jigsaw_jax.train.learner import Learner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint held besides the learner's state.

    pipeline: snapshot of the pipeline.
    published: the samplers' weights where they differ from the learner's.
    """

    pipeline: dict[str, Any]
    published: Any | None


class Vault:
    """The checkpoints of a run, for whoever has the learner's arrays.

    Args:
      directory: where they are.
      kept: how many of the newest stay.
      resume: whether the newest is what the run goes on from.
      read_only: for the control loop of a learner in another process.
      on_failed: takes what a save in the background failed of, at once.

    Attributes:
      step: updates of the checkpoint to go on from; None where there is none.
      record: what it holds besides arrays; {} where there is none.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        kept: int,
        *,
        resume: bool,
        read_only: bool = False,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._checkpoints = Checkpoints(
            directory, kept, read_only=read_only, on_failed=on_failed
        )
        self.step = self._checkpoints.latest_step() if resume else None
        self.record: dict[str, Any] = {}
        self._base: str | None = None
        if self.step is not None:
            self.record = self._checkpoints.read_record(self.step)

    def restore(self, learner: Learner) -> Saved | None:
        """Load the checkpoint into the learner.

        Args:
          learner: takes its arrays.

        Returns:
          The rest of it, or None where there is none.

        Raises:
          StoreError: it can't be read, or belongs to adapters over other weights.
        """
        self.check(base_of(learner))
        if self.step is None:
            return None
        arrays = self.read(learner.abstract_state(), learner.abstract_params())
        learner.load_state(arrays["learner"])
        pipeline = self.record["pipeline"]
        return Saved(pipeline=pipeline, published=arrays.get("published"))

    def check(self, base: str | None) -> None:
        """Refuse a checkpoint over other frozen weights; those saved are over these.

        Args:
          base: fingerprint of the learner's.

        Raises:
          StoreError: the checkpoint belongs to adapters over others.
        """
        self._base = base
        check_base(self.record, base)

    def read(self, state: Any, params: Any) -> dict[str, Any]:
        """The arrays of the checkpoint.

        Args:
          state: shapes of the learner's state, and where it is to lie.
          params: the same of what it publishes.

        Returns:
          "learner", and "published" where that differs from the learner's.

        Raises:
          StoreError: it can't be read.
        """
        assert self.step is not None, "there is no checkpoint"
        abstract = {"learner": state}
        if self.record["has_published"]:
            abstract["published"] = params
        arrays, self.record = self._checkpoints.restore(self.step, abstract)
        return arrays

    def save(
        self,
        updates: int,
        state: Any,
        *,
        published: Any | None,
        record: Mapping[str, Any],
        wait: bool,
        on_durable: Callable[[int], None],
    ) -> None:
        """Write a checkpoint.

        Args:
          updates: that it holds.
          state: of the learner.
          published: the samplers' weights where they differ from the learner's.
          record: JSON values.
          wait: return only when it is whole on disk.
          on_durable: called with `updates` once it is.
        """
        arrays = {"learner": state}
        if published is not None:
            arrays["published"] = published
        whole = {**record, "has_published": published is not None, "base": self._base}
        self._checkpoints.save(updates, arrays, whole, wait=wait, on_durable=on_durable)

    def close(self) -> None:
        """Wait for the save under way and release what writes."""
        self._checkpoints.close()
