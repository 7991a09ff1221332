"""A simulated sampler worker: continuous batching without stepping every step.

    admit > waiting --(call boundary)--> prefill > batch > end --> report
                 ^                                   |
                 +------------ tool <----------------+  (the slot is held)

A sequence that enters after s steps with n tokens to sample ends after s + n, whatever
the others do; so a heap by that step says what ends next, and `Decode.steps_s` when.
"""

import dataclasses
import heapq
from collections.abc import Callable

from jigsaw_jax.records import SampleId
from jigsaw_jax.simulation.agenda import Agenda
from jigsaw_jax.simulation.cost import Decode


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """One attempt of a completion.

    id: which.
    attempt: of its draw.
    legs: tokens of its turns that are left, the next first.
    tool_s: of the calls between them.
    prompt: tokens to prefill before the next leg.
    shares: whether another of its group has the same prompt in this worker's cache.
    held: tokens in the cache.
    admitted_s: when it got its slot.
    started_s: when it began to decode, or went on after a pause; None before.
    version: the weights that its first token comes from.
    lane: row of the timeline.
    is_cancelled: whether its slot was taken away for good.
    is_paused: whether its slot was taken away, its tokens kept.
    is_out: whether it has left the batch and waits to be resumed.
    """

    id: SampleId
    attempt: int
    legs: list[int]
    tool_s: list[float]
    prompt: int
    shares: bool = False
    held: int = 0
    admitted_s: float = 0.0
    started_s: float | None = None
    version: int = 0
    lane: int = 0
    is_cancelled: bool = False
    is_paused: bool = False
    is_out: bool = False


class Worker:
    """Slots that decode together.

    Args:
      slots: sequences at once.
      decode: costs.
      speed: 1, or less for a straggler.
      agenda: virtual time.
      started: told of each job that begins.
      finished: told of each job that ends.
      timed: told, of each stretch of steps, how many sequences decoded together and the
        seconds of a step; None where nobody asks.

    Attributes:
      decode: costs.
      speed: divides all times.
      steps: decode steps done.
      is_beside: whether the learner computes; calls that begin from then on know.
    """

    def __init__(
        self,
        slots: int,
        *,
        decode: Decode,
        speed: float,
        agenda: Agenda,
        started: Callable[[Job], None],
        finished: Callable[[Job], None],
        timed: Callable[[int, float], None] | None = None,
    ) -> None:
        self.decode, self.speed = decode, speed
        self._agenda = agenda
        self._started, self._finished, self._timed = started, finished, timed
        self._sizes: set[int] = set()
        self._jobs: dict[SampleId, Job] = {}
        self._paused: dict[SampleId, Job] = {}
        self._prompts: dict[tuple[str, int], int] = {}
        self._waiting: list[Job] = []
        self._batch: list[tuple[int, int, Job]] = []
        self._lanes: list[int] = list(range(slots))
        self._lanes_used = slots
        self._context = 0
        self._ends = 0
        self._count = 0
        # Whatever was planned before the last change of plan is void.
        self._plan = 0
        self._planned_s: float | None = None
        self._planned_steps = 0
        # When the last boundary was, or its prefills end.
        self._at_s = agenda.now_s
        self._is_settling = self._has_leavers = False
        self._held_s = 0.0
        # What the host has to do for completions before the next call.
        self._due_s = 0.0
        self._rate = speed
        self.is_beside = False
        self.steps = 0

    def admit(self, job: Job) -> None:
        """Give a slot to a job; it enters the batch at the next call boundary."""
        group = job.id.uid, job.id.draw
        job.shares = self._prompts.get(group, 0) > 0
        self._occupy(job)
        self._wait(job)

    def _occupy(self, job: Job) -> None:
        group = job.id.uid, job.id.draw
        self._prompts[group] = self._prompts.get(group, 0) + 1
        job.admitted_s = self._agenda.now_s
        if not self._lanes:
            # A cancelled job keeps its row until the call ends.
            self._lanes.append(self._lanes_used)
            self._lanes_used += 1
        job.lane = heapq.heappop(self._lanes)
        self._jobs[job.id] = job

    def cancel(self, sample: SampleId) -> None:
        """Take a job's slot away; its batch is smaller from the next boundary on."""
        job = self._jobs.get(sample) or self._paused.pop(sample, None)
        if job is not None:
            if not job.is_paused:
                self._leave(job)
            job.is_cancelled = self._has_leavers = True
            self._plan_boundary()

    def pause(self, sample: SampleId) -> None:
        """Take a job's slot away, but keep what it has at the next boundary."""
        job = self._jobs.get(sample)
        if job is not None:
            self._leave(job)
            self._paused[sample] = job
            job.is_paused = self._has_leavers = True
            self._plan_boundary()

    def resume(self, sample: SampleId) -> bool:
        """Give a paused job a slot again; False where there is none."""
        job = self._paused.pop(sample, None)
        if job is None:
            return False
        job.is_paused = False
        self._occupy(job)
        # Where it has not left the batch, it decodes on.
        job.started_s = self._agenda.now_s
        if job.is_out:
            job.is_out, job.started_s = False, None
            self._wait(job)
        return True

    def lose(self) -> None:
        """Everything that runs is gone, and the worker with it."""
        for job in list(self._jobs.values()):
            self._leave(job)
            job.is_cancelled = True
        for job in self._paused.values():
            job.is_cancelled = True
        self._plan += 1

    def set_beside(self, is_beside: bool) -> None:
        """The learner begins to compute, or ends; the call under way goes on as it is.

        Args:
          is_beside: whether it computes.
        """
        if self.is_beside != is_beside and self.decode.beside:
            self.is_beside = is_beside
            if self._batch:
                self._plan_boundary()

    @property
    def is_decoding(self) -> bool:
        """Whether sequences are in its batch."""
        return bool(self._batch)

    def held_s(self) -> float:
        """Slot-seconds in which slots were held, up to now."""
        now_s = self._agenda.now_s
        running_s = sum(now_s - job.admitted_s for job in self._jobs.values())
        return self._held_s + running_s

    # One boundary to the next.

    def _wait(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._is_settling:
            self._plan_boundary()

    def _plan_boundary(self) -> None:
        """Stop at the end of the device call or the prefills that are under way."""
        now_s, calls = self._agenda.now_s, self.decode.calls
        if not self._batch or now_s <= self._at_s:
            self._wake_at(max(now_s, self._at_s), 0)
            return
        low, high = 0, 1
        while self._after(high * calls) < now_s:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._after(middle * calls) < now_s:
                low = middle
            else:
                high = middle
        self._wake_at(self._after(high * calls), high * calls)

    def _wake_at(self, time_s: float, steps: int) -> None:
        """Stop when `steps` further steps are done, unless that is planned sooner."""
        if self._planned_s is not None and self._planned_s <= time_s:
            return
        self._plan += 1
        self._planned_s, self._planned_steps = time_s, steps
        self._agenda.at(time_s, self._wake, self._plan)

    def _after(self, steps: int) -> float:
        """When `steps` further steps of this batch are done."""
        seconds = self.decode.steps_s(len(self._batch), self._context, steps)
        return self._at_s + seconds / self._rate

    def _wake(self, plan: int) -> None:
        """A boundary: count what was decoded, report what ended, go on behind it."""
        if plan != self._plan:
            return
        self._planned_s = None
        self._report_steps()
        self._at_s = max(self._agenda.now_s, self._at_s)
        self.steps += self._planned_steps
        self._context += len(self._batch) * self._planned_steps
        if self._has_leavers:
            self._drop_leavers()
        while self._batch and self._batch[0][0] <= self.steps:
            end, _, job = heapq.heappop(self._batch)
            self._end_leg(job, end)
        # What the reports lead to at this same time enters the same call.
        self._is_settling = True
        self._agenda.after(0.0, self._go, plan)

    def _go(self, plan: int) -> None:
        """Prefill what waits and run until something ends."""
        if plan != self._plan:
            return
        self._is_settling = False
        self._rate = self.speed / (1 + self.decode.beside * self.is_beside)
        if self._batch:
            self._at_s += self._due_s / self._rate
        self._due_s = 0.0
        self._let_in()
        if not self._batch:
            self._ends = 0
            return
        calls = self.decode.calls
        steps = -(-(self._batch[0][0] - self.steps) // calls) * calls
        if self._timed is not None and len(self._sizes) < 2:
            # The first call is news already.
            steps = min(steps, calls)
        # A call in which all end is over with the last of them.
        steps = min(steps, self._ends - self.steps)
        self._wake_at(self._after(steps), steps)

    def _let_in(self) -> None:
        """What waits enters the batch, behind its prompts' inserts and prefills."""
        entering = []
        for job in self._waiting:
            if job.is_paused:
                job.is_out = True
            elif not job.is_cancelled:
                entering.append(job)
        self._waiting.clear()
        prompts = {(job.id.uid, job.id.draw) for job in entering}
        self._at_s += len(prompts) * self.decode.insert_s / self._rate
        for job in entering:
            self._enter(job)

    def _report_steps(self) -> None:
        spent_s = self._agenda.now_s - self._at_s
        if self._timed is not None and self._planned_steps and spent_s > 0:
            self._sizes.add(len(self._batch))
            self._timed(len(self._batch), spent_s / self._planned_steps)

    def _enter(self, job: Job) -> None:
        if job.prompt:
            cost_s = 0.0 if job.shares else job.prompt * self.decode.prefill_token_s
            self._at_s += cost_s / self._rate
            job.held += job.prompt
            job.prompt = 0
        end = self.steps + job.legs[0]
        heapq.heappush(self._batch, (end, self._count, job))
        self._count += 1
        self._ends = max(self._ends, end)
        self._context += job.held
        if job.started_s is None:
            job.started_s = self._at_s
            self._started(job)

    def _end_leg(self, job: Job, end: int) -> None:
        job.held += job.legs.pop(0)
        # The slot decodes on, for nothing, until the call is over.
        self._context -= job.held + self.steps - end
        if job.legs:
            self._agenda.after(job.tool_s.pop(0), self._return, job)
            return
        if job.is_paused:
            # The pause came too late.
            del self._paused[job.id]
        else:
            self._leave(job)
        self._due_s += self.decode.finish_s
        self._finished(job)

    def _return(self, job: Job) -> None:
        if job.is_paused:
            job.is_out = True
        elif not job.is_cancelled:
            self._wait(job)

    def _drop_leavers(self) -> None:
        self._has_leavers = False
        kept = []
        for end, count, job in self._batch:
            if job.is_paused and end > self.steps and not job.is_cancelled:
                job.held += job.legs[0] - (end - self.steps)
                job.legs[0] = end - self.steps
                job.is_out = True
            elif not job.is_cancelled:
                kept.append((end, count, job))
        if len(kept) < len(self._batch):
            heapq.heapify(kept)
            self._batch = kept
            self._context = sum(
                job.held + job.legs[0] - (end - self.steps) for end, _, job in kept
            )
            self._ends = max((end for end, _, _ in kept), default=self.steps)

    def _leave(self, job: Job) -> None:
        del self._jobs[job.id]
        group = job.id.uid, job.id.draw
        self._prompts[group] -= 1
        if not self._prompts[group]:
            del self._prompts[group]
        heapq.heappush(self._lanes, job.lane)
        self._held_s += self._agenda.now_s - job.admitted_s
