import pytest

from jigsaw_jax.records import SampleId
from jigsaw_jax.simulation.agenda import Agenda
from jigsaw_jax.simulation.cost import Decode, Line
from jigsaw_jax.simulation.sampler import Job, Worker

STEADY = Decode(lines=(Line(fixed_s=1.0),))
# One rate for whatever runs: processor sharing.
SHARED = Decode(lines=(Line(fixed_s=0.0, sequence_s=1.0),))


class Bench:
    """A worker, and when its jobs began and ended."""

    def __init__(self, decode=STEADY, *, slots=4, speed=1.0, timed=None):
        self.agenda = Agenda()
        self.starts, self.ends = {}, {}
        self.worker = Worker(
            slots,
            decode=decode,
            speed=speed,
            agenda=self.agenda,
            started=lambda job: self.starts.__setitem__(job.id.sample, job.started_s),
            finished=lambda job: self.ends.__setitem__(
                job.id.sample, self.agenda.now_s
            ),
            timed=timed,
        )

    def admit(self, at_s, sample, *legs, uid="a", prompt=0, tools=()):
        job = Job(
            id=SampleId(uid, 0, sample),
            attempt=0,
            legs=list(legs),
            tool_s=list(tools),
            prompt=prompt,
        )
        self.agenda.at(at_s, self.worker.admit, job)

    def run(self):
        while self.agenda.step():
            pass
        return self.ends


def test_jobs_of_one_batch_end_with_their_own_lengths():
    bench = Bench()
    for sample, tokens in enumerate((3, 7, 5)):
        bench.admit(0.0, sample, tokens)
    assert bench.run() == {0: 3.0, 1: 7.0, 2: 5.0}
    assert bench.worker.steps == 7


def test_a_job_that_comes_in_a_step_waits_for_its_end():
    bench = Bench()
    bench.admit(0.0, 0, 4)
    bench.admit(1.5, 1, 3)
    assert bench.run() == {0: 4.0, 1: 5.0}
    assert bench.starts == {0: 0.0, 1: 2.0}


def test_a_shared_rate_is_divided_among_what_runs():
    # Two tokens a pair of steps until the first ends, then one a second.
    bench = Bench(SHARED)
    bench.admit(0.0, 0, 2)
    bench.admit(0.0, 1, 5)
    assert bench.run() == {0: 4.0, 1: 7.0}


def test_all_work_at_one_rate_ends_when_it_would_one_after_the_other():
    bench = Bench(SHARED)
    for sample, tokens in enumerate((2, 5, 9, 1)):
        bench.admit(0.0, sample, tokens)
    assert max(bench.run().values()) == 17.0


def test_what_ends_inside_a_device_call_comes_back_at_its_end():
    bench = Bench(Decode(lines=(Line(fixed_s=1.0),), calls=4))
    bench.admit(0.0, 0, 3)
    bench.admit(0.0, 1, 10)
    bench.admit(5.0, 2, 1)
    # Calls end at 4 and 8; the last one ends early, with its last job.
    assert bench.run() == {0: 4.0, 1: 10.0, 2: 10.0}
    assert bench.starts[2] == 8.0


def test_the_first_calls_of_two_sizes_of_batch_are_timed_and_change_nothing():
    times = []
    decode = Decode(
        lines=(Line(fixed_s=1.0, sequence_s=0.5),), prefill_token_s=0.5, calls=2
    )
    bench = Bench(decode, timed=lambda size, step_s: times.append((size, step_s)))
    bench.admit(0.0, 0, 8, prompt=4)
    bench.admit(6.0, 1, 8)
    # The prompt takes 2 s; calls of two steps of 1.5 s, then of 2 s.
    ends = bench.run()
    assert times[:3] == [(1, 1.5), (1, 1.5), (2, 2.0)]
    plain = Bench(decode)
    plain.admit(0.0, 0, 8, prompt=4)
    plain.admit(6.0, 1, 8)
    assert plain.run() == ends


def test_a_prompt_is_prefilled_once_for_the_samples_of_a_group():
    decode = Decode(lines=(Line(fixed_s=1.0),), prefill_token_s=0.5)
    bench = Bench(decode)
    bench.admit(0.0, 0, 3, prompt=4)
    bench.admit(0.0, 1, 5, prompt=4)
    bench.admit(0.0, 2, 5, prompt=2, uid="b")
    # Two prompts take 2 s and 1 s before the first step.
    assert bench.run() == {0: 6.0, 1: 8.0, 2: 8.0}


def test_context_makes_steps_dearer():
    bench = Bench(Decode(lines=(Line(fixed_s=1.0, token_s=1.0),)))
    bench.admit(0.0, 0, 3, prompt=10)
    # 11 + 12 + 13 s.
    assert bench.run() == {0: 36.0}


def test_context_of_a_job_that_ended_is_free():
    bench = Bench(Decode(lines=(Line(fixed_s=1.0, token_s=1.0),)))
    bench.admit(0.0, 0, 1, prompt=10)
    bench.admit(0.0, 1, 2, prompt=5, uid="b")
    # 1 + 15, then the other alone with 6.
    assert bench.run() == {0: 16.0, 1: 23.0}


def test_a_tool_holds_the_slot_but_no_place_in_the_batch():
    bench = Bench(SHARED)
    bench.admit(0.0, 0, 2, 3, tools=(10.0,))
    bench.admit(0.0, 1, 4)
    # Together until 4 s, the other alone until 6 s; the tool answers at 14 s.
    assert bench.run() == {0: 17.0, 1: 6.0}
    assert bench.worker.held_s() == 17.0 + 6.0


def test_a_cancelled_job_leaves_at_the_next_boundary_and_never_ends():
    bench = Bench(SHARED)
    bench.admit(0.0, 0, 50)
    bench.admit(0.0, 1, 4)
    bench.agenda.at(3.0, bench.worker.cancel, SampleId("a", 0, 0))
    # Two steps of 2 s until 4 s, then two of 1 s.
    assert bench.run() == {1: 6.0}


def test_a_paused_job_goes_on_from_where_it_stopped():
    bench = Bench(SHARED)
    bench.admit(0.0, 0, 6)
    bench.admit(0.0, 1, 4)
    bench.agenda.at(3.0, bench.worker.pause, SampleId("a", 0, 0))
    bench.agenda.at(20.0, bench.worker.resume, SampleId("a", 0, 0))
    # Two steps of 2 s until 4 s, then one of them alone; 4 of 6 tokens are left.
    assert bench.run() == {0: 24.0, 1: 6.0}
    assert bench.worker.held_s() == 3.0 + 6.0 + 4.0


def test_a_pause_that_comes_too_late_changes_nothing():
    bench = Bench()
    bench.admit(0.0, 0, 2)
    bench.agenda.at(1.5, bench.worker.pause, SampleId("a", 0, 0))
    bench.agenda.at(
        9.0, lambda: resumed.append(bench.worker.resume(SampleId("a", 0, 0)))
    )
    resumed = []
    assert bench.run() == {0: 2.0}
    assert resumed == [False]


def test_a_job_resumed_within_the_same_call_never_left():
    bench = Bench(Decode(lines=(Line(fixed_s=1.0),), calls=8))
    bench.admit(0.0, 0, 12)
    bench.agenda.at(2.0, bench.worker.pause, SampleId("a", 0, 0))
    bench.agenda.at(3.0, bench.worker.resume, SampleId("a", 0, 0))
    assert bench.run() == {0: 12.0}


def test_a_slow_worker_takes_longer_by_its_speed():
    bench = Bench(speed=0.5)
    bench.admit(0.0, 0, 3)
    assert bench.run() == {0: 6.0}


def test_a_lost_worker_says_nothing_more():
    bench = Bench()
    bench.admit(0.0, 0, 3)
    bench.agenda.at(1.0, bench.worker.lose)
    assert bench.run() == {}
    assert bench.worker.held_s() == pytest.approx(1.0)


def test_steps_are_not_simulated_one_by_one():
    bench = Bench()
    bench.admit(0.0, 0, 1_000_000)
    bench.admit(0.0, 1, 500_000)
    bench.run()
    assert bench.agenda.done < 20


def test_prompts_that_enter_and_completions_that_end_hold_the_next_call_up():
    decode = Decode(lines=(Line(fixed_s=1.0),), insert_s=0.25, finish_s=0.5)
    bench = Bench(decode)
    # Two of one prompt enter at once, another prompt's with the third call.
    bench.admit(0.0, 0, 2)
    bench.admit(0.0, 1, 6)
    bench.admit(2.1, 2, 1, uid="b")
    ends = bench.run()
    # 0.25 + 2 steps; the end of the first is half a second's work beside the next call.
    assert ends[0] == 2.25
    assert bench.starts[2] == 2.25 + 0.5 + 0.25
    assert ends[2] == 4.0
    # Three further steps and half a second for the end of the third.
    assert ends[1] == 4.0 + 0.5 + 3.0


def test_where_nothing_goes_on_an_end_holds_nothing_up():
    bench = Bench(Decode(lines=(Line(fixed_s=1.0),), finish_s=0.5))
    bench.admit(0.0, 0, 2)
    bench.admit(3.0, 1, 1)
    assert bench.run() == {0: 2.0, 1: 4.0}


def test_calls_that_begin_while_the_learner_computes_are_slower():
    bench = Bench(Decode(lines=(Line(fixed_s=1.0),), beside=0.5))
    bench.admit(0.0, 0, 8)
    # The call from 1 to 2 goes on as it began; 2 calls of 1.5 s, then 1 s each again.
    bench.agenda.at(1.5, bench.worker.set_beside, True)
    bench.agenda.at(4.2, bench.worker.set_beside, False)
    assert bench.run() == {0: 2.0 + 2 * 1.5 + 4 * 1.0}
