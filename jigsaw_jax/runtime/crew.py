"""What the control loop asks of those that work: in one process, or in many."""

import collections
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jigsaw_jax.data.source import PromptSource
from jigsaw_jax.data.tokenizer import Tokenizer
from jigsaw_jax.records import (
    AdmitSample,
    CancelSample,
    Event,
    Group,
    GroupId,
    PauseSample,
    Prompt,
    Sample,
    Score,
    StepUpdate,
)
from jigsaw_jax.runtime.evaluation import Evaluator
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.sample.loop import SampleRequest
from jigsaw_jax.schedule.pipeline import Pipeline


class CrewLostError(Exception):
    """The learner is gone; a new crew can go on from the last checkpoint."""


class ClusterLostError(Exception):
    """What the processes of a run stand on is gone; the message is one line."""


@runtime_checkable
class Crew(Protocol):
    """Carries effects to whoever does them; answers come as events.

    No method waits, those marked so excepted, and `wait`. An error that nobody can mend
    reaches the control loop as `ThreadFailed`.

    Attributes:
      pipeline: the state machine, new or restored; of the control loop.
      source: training problems.
      tokenizer: text to tokens and back.
      evaluator: held-out accuracy.
      is_resumed: whether a checkpoint was loaded.
      learner_busy: (start_s, end_s) of each accumulation and step.
      sampler_busy: (start_s, end_s, tokens) of each decode call.
    """

    pipeline: Pipeline
    source: PromptSource
    tokenizer: Tokenizer
    evaluator: Evaluator
    is_resumed: bool
    learner_busy: collections.deque[tuple[float, float]]
    sampler_busy: collections.deque[tuple[float, float, int]]

    def start(self) -> Sequence[Event]:
        """Begin to work; the events of the workers that are there already."""
        ...

    def wait(
        self, events: queue.SimpleQueue[Any], timeout_s: float | None
    ) -> list[Any]:
        """Between `start` and `rest`: wait until there is an event, at most so long.

        Args:
          events: those of the control loop, which is idle meanwhile.
          timeout_s: None for ever.

        Returns:
          Events that were taken, if any; others may be there.
        """
        ...

    def flush(self) -> None:
        """All effects of what has happened are carried; let what was held back go."""
        ...

    def admit(
        self, samples: Sequence[AdmitSample], prompt: Callable[[str], Prompt]
    ) -> None:
        """Start samples on their workers, or let them go on; `prompt` is by uid."""
        ...

    def cancel(self, effect: CancelSample) -> None:
        """Stop an attempt."""
        ...

    def pause(self, effect: PauseSample) -> None:
        """Stop an attempt and keep what it has sampled."""
        ...

    def score(
        self, prompt: Prompt, sample: Any, receive: Callable[[Score], None]
    ) -> None:
        """Score a completion, as `Payloads` keeps it; `receive` gets the answer."""
        ...

    def sample_guest(
        self, request: SampleRequest, receive: Callable[[Sample], None]
    ) -> None:
        """Sample a completion that is not the pipeline's."""
        ...

    def accumulate(self, groups: Sequence[Group], update: int) -> None:
        """Add the gradient sums of whole groups, in this order, to an update."""
        ...

    def step(self, effect: StepUpdate) -> None:
        """Step the optimizer."""
        ...

    def publish(self, version: int) -> None:
        """Hand the learner's weights to every sampler."""
        ...

    def save(self, updates: int, record: dict[str, Any], *, is_final: bool) -> None:
        """Commit the learner's state together with `record`."""
        ...

    def take_metrics(self, update: int) -> dict[str, float]:
        """The learner's numbers of an update that has stepped, once."""
        ...

    def take_advantages(self, update: int) -> dict[GroupId, list[float]]:
        """Of the groups of an update that has stepped, once; see `Learner`."""
        ...

    def whole(self, group: Group) -> Group:
        """The group with its completions; called from the thread of the log."""
        ...

    def forget(self, groups: Iterable[GroupId]) -> None:
        """They are the learner's, or dropped: nothing more is asked of them."""
        ...

    @property
    def num_timeouts(self) -> int:
        """Scores that hung, so far."""
        ...

    @property
    def num_compilations(self) -> int:
        """Programs compiled since `start`."""
        ...

    def workers(self) -> list[Mapping[str, Any]]:
        """Each worker's name, pid, role, version and more, for the summary."""
        ...

    # With no sample under way.

    def sample_idle(self, requests: Iterable[SampleRequest]) -> Iterable[Sample]:
        """Sample these and wait for them; before `start` or after `rest`."""
        ...

    def rest(self) -> None:
        """Wait until what was asked is done; nothing more is, but the following."""
        ...

    def load_last(self) -> None:
        """Wait until the samplers have the weights that the run ends with."""
        ...

    def export(self) -> None:
        """Write the policy as a folder, where the settings ask, and wait."""
        ...

    def close(self) -> None:
        """Stop every thread and process that was started for this crew."""
        ...

    def kill(self) -> None:
        """Leave no process behind, at once: this one is about to end."""
        ...


@runtime_checkable
class Gather(Protocol):
    """Makes a crew that can work: built, warm, resumed."""

    def __call__(self, seat: Seat) -> Crew:
        """Build, load or warm up, and compile.

        Args:
          seat: where it is to work.

        Returns:
          The crew, none of which works yet.
        """
        ...
