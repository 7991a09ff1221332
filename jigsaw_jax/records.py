"""Host records that cross folders: prompts, samples, groups, events and effects.

Nothing here imports jax. Payloads (tokens, logprobs, text) travel in `Prompt` and
`Sample`; the scheduling machines see small events and answer with effects, by id.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

SampleT = TypeVar("SampleT")


class SampleId(NamedTuple):
    """The identity of one completion; the same identity gives the same tokens.

    uid: the prompt's stable identity (pipeline, dataset row, epoch).
    draw: 0 for the first sampling of the prompt; a deliberate resampling adds 1.
    sample: 0 to G - 1.
    """

    uid: str
    draw: int
    sample: int


class GroupId(NamedTuple):
    """The identity of one group: a prompt's uid and its draw."""

    uid: str
    draw: int


class FinishReason(enum.Enum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem as the sampler and the reward see it.

    uid: stable identity (pipeline, dataset row, epoch).
    tokens: token ids of the prompt, BOS included exactly once where the model has one.
    text: the prompt as the tokens spell it, chat template included.
    answer: the reference answer, as text.
    task: the name that selects the reward, for example "chain_sum".
    metadata: what the task's own verifier needs; JSON values only.
    """

    uid: str
    tokens: tuple[int, ...]
    text: str
    answer: str
    task: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of tokens of one trajectory, either all sampled or all observed.

    tokens: token ids.
    logprobs: of each token under the distribution it was drawn from; empty when
        observed.
    versions: weight version of each token; empty when observed.
    is_sampled: whether the policy drew them; only sampled tokens train.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    is_sampled: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion as the engine returned it; its text is never tokenised again.

    id: its identity.
    attempt: which delivery of the draw this is.
    segments: what was sampled and observed, in order.
    finish_reason: STOP also when the stop token came exactly at the cap.
    entropies: entropy in nats of the distribution of each sampled token.
    """

    id: SampleId
    attempt: int
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
    entropies: tuple[float, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids behind the prompt, sampled and observed."""
        if len(self.segments) == 1:
            return self.segments[0].tokens
        return tuple(t for segment in self.segments for t in segment.tokens)

    @property
    def num_sampled(self) -> int:
        """Sampled tokens, the stop token included."""
        return sum(len(s.tokens) for s in self.segments if s.is_sampled)

    @property
    def version_min(self) -> int:
        """Version of the oldest sampled token."""
        return min(v for s in self.segments for v in s.versions)

    @property
    def version_max(self) -> int:
        """Version of the newest sampled token."""
        return max(v for s in self.segments for v in s.versions)

    @property
    def is_truncated(self) -> bool:
        """Whether a length cap ended it."""
        return self.finish_reason is FinishReason.LENGTH


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A completion's reward.

    value: the weighted sum of the parts, or None where the reward failed (missing,
        not 0: the sample then has no weight and leaves the group's baseline).
    parts: each named reward's own value, None where that one failed.
    failure: None, "timeout", "crash" or "error: ...".
    """

    value: float | None
    parts: dict[str, float | None] = dataclasses.field(default_factory=dict)
    failure: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group(Generic[SampleT]):
    """A trainable-complete group as the learner takes it.

    Where the tokens are in another process, `samples` say where, and what is logged
    of them: `id`, `attempt`, `num_sampled` and `is_truncated`.

    id: its identity.
    order: submission index of the group in the run; "ordered" reduction sums by it.
    prompt: the problem.
    samples: the G completions, by sample index.
    scores: one a sample, aligned.
    """

    id: GroupId
    order: int
    prompt: Prompt
    samples: tuple[SampleT, ...]
    scores: tuple[Score, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the shell tells a machine; `now_s` is seconds on its monotonic clock."""

    now_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A sampler worker offers `slots` decode slots, all free.

    incarnation: grows each time the worker starts, from 1, so that word of an earlier
        life that comes late or twice is told apart; 0 is a worker that does not count.
    """

    worker: str
    slots: int
    incarnation: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """A sampler worker is gone with all that ran on it; see `WorkerJoined`."""

    worker: str
    incarnation: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptsOffered(Event):
    """The next prompts of the data, in order; fewer than asked means data ended."""

    uids: tuple[str, ...]
    is_end: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleStarted(Event):
    """The engine has taken the sample up, or again, at `now_s`."""

    id: SampleId
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleFinished(Event):
    """The engine has the whole completion and its slot is free again."""

    id: SampleId
    attempt: int
    num_tokens: int
    version_min: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleFailed(Event):
    """The attempt was lost; its slot is free again."""

    id: SampleId
    attempt: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleScored(Event):
    """The reward answered; `value` is None where it failed."""

    id: SampleId
    attempt: int
    value: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReported(Event):
    """Events of many samples as one; of one, what a later field says came later."""

    started: Sequence[tuple[SampleId, int, float]] = ()
    finished: Sequence[tuple[SampleId, int, int, int]] = ()
    scored: Sequence[tuple[SampleId, int, float | None]] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTimed(Event):
    """Each of a worker's last decode steps took `step_s` seconds; it may be left out.

    sequences: that decoded together.
    """

    worker: str
    sequences: int
    step_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupsAccumulated(Event):
    """The learner has added these groups' gradient sums to update `update`."""

    groups: tuple[GroupId, ...]
    update: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStepped(Event):
    """The optimizer has stepped; `update` counts from 0."""

    update: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionPublished(Event):
    """Every sampler serves `version` from now on."""

    version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDurable(Event):
    """A checkpoint that holds all updates below `updates` is on disk, whole."""

    updates: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """The user wants to stop: finish the update under way, checkpoint, end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed(Event):
    """Nothing happened; a shell that can lose messages sends it when all is quiet."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a scheduling machine asks of the shell, in order."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrompts(Effect):
    """Offer the next `num` prompts of the data."""

    num: int


class AdmitSample(NamedTuple):
    """One sample to start on `worker` under weights `version`.

    is_resumed: whether it goes on where `PauseSample` stopped this attempt. If that
        came too late, its report counts; if tokens are lost, `SampleFailed` tells.
    """

    id: SampleId
    attempt: int
    worker: str
    version: int
    is_resumed: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdmitSamples(Effect):
    """Start these samples, in order."""

    samples: Sequence[AdmitSample]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CancelSample(Effect):
    """Stop the attempt if it runs or is paused; a late result is ignored."""

    id: SampleId
    attempt: int
    worker: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PauseSample(Effect):
    """Stop the attempt, free its slot and keep on the host what it has sampled."""

    id: SampleId
    attempt: int
    worker: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSample(Effect):
    """Score the finished attempt."""

    id: SampleId
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccumulateGroups(Effect):
    """Add the gradient sums of these whole groups, in this order, to `update`."""

    groups: tuple[GroupId, ...]
    orders: tuple[int, ...]
    update: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepUpdate(Effect):
    """Divide once and step the optimizer for `update`, which leases `groups`.

    No StepUpdate is sent for an update all of whose groups were filtered.
    """

    update: int
    groups: tuple[GroupId, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishVersion(Effect):
    """Hand the learner's weights to every sampler under `version`."""

    version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint(Effect):
    """Save all updates below `updates` with the pipeline's snapshot of now."""

    updates: int
    is_final: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DropGroup(Effect):
    """The group, opened as `order`, has ended untrained; its payloads can be freed."""

    group: GroupId
    order: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Effect):
    """Nothing is left to do; `error` is None or what went wrong, for the user."""

    error: str | None = None
