"""What a learner is given, as flat arrays of one sequence each."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jigsaw_jax.records import Group, Sample
from jigsaw_jax.types import Bool, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A prompt and what came behind it; arrays are aligned, one entry a token.

    tokens_T: ids.
    is_trained_T: whether the loss has the token: sampled ones, a stop token included.
    logprobs_T: as the sampler saw them, 0 elsewhere.
    versions_T: of the weights that drew them, -1 elsewhere.
    place: index of the completion, group x G + sample.
    group: of the completion, in the hand-off.
    num_prompt: tokens that are the same in the whole group.
    """

    tokens_T: Int[np.ndarray, " T"]
    is_trained_T: Bool[np.ndarray, " T"]
    logprobs_T: Float[np.ndarray, " T"]
    versions_T: Int[np.ndarray, " T"]
    place: int
    group: int = 0
    num_prompt: int = 0

    @property
    def num_inputs(self) -> int:
        """Tokens that predict another one: all but the last."""
        return len(self.tokens_T) - 1

    @property
    def num_trained(self) -> int:
        """Tokens in the loss."""
        return int(self.is_trained_T.sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """What the advantages of up to P groups are made of.

    rewards_PG: NaN where a reward is missing, whole groups that are not there too.
    lengths_PG: sampled tokens of each completion.
    """

    rewards_PG: Float[np.ndarray, "P G"]
    lengths_PG: Int[np.ndarray, "P G"]


def scores_of(groups: Sequence[Group], num_groups: int, num_samples: int) -> Scores:
    """Rewards and lengths of groups, padded to a fixed shape.

    Args:
      groups: at most `num_groups`.
      num_groups: P.
      num_samples: G, of every group.

    Returns:
      Host arrays; what is padded counts as missing.

    Raises:
      ValueError: a group has another number of samples.
    """
    rewards_PG = np.full((num_groups, num_samples), np.nan, np.float32)
    lengths_PG = np.zeros((num_groups, num_samples), np.int32)
    for p, group in enumerate(groups):
        if len(group.samples) != num_samples or len(group.scores) != num_samples:
            raise ValueError(
                f"group {group.id} must have {num_samples} samples and scores, got "
                f"{len(group.samples)} and {len(group.scores)}"
            )
        values = [score.value for score in group.scores]
        rewards_PG[p] = [np.nan if value is None else value for value in values]
        lengths_PG[p] = [sample.num_sampled for sample in group.samples]
    return Scores(rewards_PG=rewards_PG, lengths_PG=lengths_PG)


def trajectories(groups: Sequence[Group], *, mask_truncated: bool) -> list[Trajectory]:
    """The completions that train, by group and sample.

    One whose reward is missing has no weight and is left out, and so is a truncated
    one under `mask_truncated` (it still counts in its group's baseline).
    """
    return [
        from_sample(
            group.prompt.tokens, sample, group=p, place=p * len(group.samples) + g
        )
        for p, group in enumerate(groups)
        for g, sample in enumerate(group.samples)
        if _is_present(group.scores[g].value)
        and not (mask_truncated and sample.is_truncated)
        and sample.num_sampled
    ]


def from_sample(
    prompt: Sequence[int], sample: Sample, *, group: int, place: int
) -> Trajectory:
    """A prompt and its completion; observed segments do not train."""
    tokens, is_trained = list(prompt), [False] * len(prompt)
    logprobs, versions = [0.0] * len(prompt), [-1] * len(prompt)
    for segment in sample.segments:
        num = len(segment.tokens)
        tokens += segment.tokens
        is_trained += [segment.is_sampled] * num
        logprobs += segment.logprobs if segment.is_sampled else [0.0] * num
        versions += segment.versions if segment.is_sampled else [-1] * num
    return _trajectory(
        tokens,
        is_trained,
        logprobs,
        versions,
        place=place,
        group=group,
        num_prompt=len(prompt),
    )


def from_pair(prompt: Sequence[int], solution: Sequence[int]) -> Trajectory:
    """A prompt and the solution that the policy is to imitate."""
    tokens = [*prompt, *solution]
    is_trained = [False] * len(prompt) + [True] * len(solution)
    return _trajectory(
        tokens, is_trained, [0.0] * len(tokens), [-1] * len(tokens), num_prompt=0
    )


def _is_present(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def _trajectory(
    tokens: list[int],
    is_trained: list[bool],
    logprobs: list[float],
    versions: list[int],
    *,
    num_prompt: int,
    place: int = 0,
    group: int = 0,
) -> Trajectory:
    if not tokens or is_trained[0]:
        raise ValueError("prompt must have at least one token, got none")
    return Trajectory(
        tokens_T=np.array(tokens, np.int32),
        is_trained_T=np.array(is_trained, bool),
        logprobs_T=np.array(logprobs, np.float32),
        versions_T=np.array(versions, np.int32),
        place=place,
        group=group,
        num_prompt=num_prompt,
    )
