"""What host 0's loop does is done on the other hosts, in its order."""

import pytest

from jigsaw_jax.records import FinishReason, Sample, SampleId, Segment
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.slice.log import DivergedError, Reader
from jigsaw_jax.runtime.slice.loops import LeadLoop, Replay
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.sample.loop import LoopReport, SampleRequest


class Loop:
    """Stands for a `SampleLoop`: ends the first request at each step."""

    def __init__(self, version, token=5):
        self.calls: list[tuple] = [("begin", version)]
        self.waiting = []
        self.token = token

    @property
    def is_idle(self):
        return not self.waiting

    def submit(self, request):
        self.waiting.append(request)
        self.calls.append(("submit", request))

    def set_params(self, params, version):
        self.calls.append(("swap", params, version))

    def cancel(self, sample_id, attempt):
        self.calls.append(("cancel", sample_id, attempt))

    def pause(self, sample_id, attempt):
        self.calls.append(("pause", sample_id, attempt))

    def resume(self, sample_id, attempt):
        self.calls.append(("resume", sample_id, attempt))

    def clear(self):
        self.calls.append(("clear",))

    def step(self):
        self.calls.append(("step",))
        done = self.waiting.pop(0)
        segment = Segment(tokens=(self.token,), logprobs=(-1.0,), versions=(0,))
        sample = Sample(
            id=done.id,
            attempt=done.attempt,
            segments=(segment,),
            finish_reason=FinishReason.STOP,
        )
        return LoopReport(started=(), finished=(sample,), num_tokens=1, num_active=1)


class Other:
    """Stands for another host's actor: keeps what is sent to it."""

    def __init__(self):
        self.sent = []
        self.follow = self

    def remote(self, data, refs):
        self.sent.append((data, refs))


def replay(**kwargs):
    return Replay(lambda fetch, version: Loop((fetch, version), **kwargs), str)


def calls_of(replay):
    assert isinstance(replay.loop, Loop)
    return replay.loop.calls


def request(sample):
    return SampleRequest(
        id=SampleId("u", 0, sample),
        attempt=0,
        prompt_tokens=(1, 2),
        key_words=(3, 2**32 - 1),
        new_tokens_max=4,
        temperature=0.7,
    )


def led():
    """A lead loop that has done everything once, and what it sent."""
    other = Other()
    lead = LeadLoop(Peers(0, [other], num_hosts=2), replay(), 1, 7)
    for sample in range(3):
        lead.submit(request(sample))
    lead.step()
    lead.pause(SampleId("u", 0, 1), 0)
    lead.resume(SampleId("u", 0, 1), 0)
    lead.set_params(2, 8)
    lead.step()
    lead.cancel(SampleId("u", 0, 2), 0)
    lead.clear()
    return lead, other


def follow_all(replay, told):
    for values in told:
        replay.follow(*values)


def entries(other):
    reader, due = Reader(), []
    for data, _ in other.sent:
        for number, _, values, _, _ in wire.from_bytes(data):
            due += reader.take(number, values)
    return due


def test_every_call_is_made_there_with_equal_values():
    lead, other = led()
    there = replay()
    follow_all(there, entries(other))
    assert calls_of(there) == calls_of(lead._replay)
    names = [call[0] for call in calls_of(there)]
    text = "begin submit submit submit step pause resume swap step cancel clear"
    assert names == text.split()
    assert ("swap", "2", 8) in calls_of(there)
    assert there.trace.value == lead._replay.trace.value


def test_what_starts_no_program_travels_with_what_does():
    _, other = led()
    sizes = [len(wire.from_bytes(data)) for data, _ in other.sent]
    # begin | 3 submits and a step | pause | resume and a swap | step | cancel | clear
    assert sizes == [1, 4, 1, 2, 1, 1, 1]


def test_a_host_that_samples_another_token_is_found_at_the_next_call():
    _, other = led()
    there = replay(token=6)
    with pytest.raises(DivergedError, match="before 'pause'"):
        follow_all(there, entries(other))


def test_a_host_that_missed_a_call_is_found_at_the_next():
    _, other = led()
    there = replay()
    kept = entries(other)
    del kept[2]
    with pytest.raises(DivergedError, match="before 'submit'"):
        follow_all(there, kept)


def test_a_call_that_is_unknown_is_refused():
    with pytest.raises(wire.WireError, match="known"):
        replay().make("__init__", [])


def test_an_answer_waits_for_who_comes_for_it():
    peers = Peers(1, num_hosts=2)
    peers.answer("fetch 1", None, 7, refs=["r"])
    data, refs = peers.collect("fetch 1")
    assert (wire.from_bytes(data), refs) == ([None, 7], ["r"])
    assert not peers.leads
    assert Peers().is_alone
    # A slice of one host has nobody to tell.
    Peers().write("step")
    assert Peers().gather("offer 1") == []
