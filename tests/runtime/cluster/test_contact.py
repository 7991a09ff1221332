"""A worker's line and the switchboard: asked, told, heard, and ended."""

import collections
import queue
import threading

import pytest

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import contact, hand
from jigsaw_jax.runtime.cluster.contact import Contact
from jigsaw_jax.runtime.cluster.hand import CREDIT, DRAIN_S, Hand
from jigsaw_jax.runtime.cluster.head import Place
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.switchboard import Switchboard, make_ticket
from jigsaw_jax.runtime.lines.door import dial
from jigsaw_jax.runtime.lines.line import LineClosedError
from tests.waiting import wait_until


class Ends:
    """A switchboard with one worker at it."""

    def __init__(self):
        self.board = Switchboard("127.0.0.1", lambda hand: hand.ask(0.0, 0.0))
        self.hand = Hand("sampler-0", "sample", 1, Place())
        self.batches, self.failures = queue.SimpleQueue(), []
        self.ended = threading.Event()
        self.unread = collections.deque()
        self.outbox = Outbox(Clock(), epoch=1)
        ticket = make_ticket()
        self.charter = {
            "door": list(self.board.address),
            "token": self.board.token,
            "ticket": ticket,
        }
        self.board.expect(ticket, self.hand)

    def contact(self):
        return Contact(
            self.charter,
            self.outbox,
            take=self.batches.put,
            fail=self.failures.append,
            end=self.ended.set,
        )

    def heard(self):
        """The next batch of messages."""
        wait_until(self.read)
        head, _ = self.unread.popleft()
        return wire.from_bytes(head)

    def read(self):
        for one in self.board.ready(0.0):
            assert one.line is not None
            self.unread.extend(one.line.arrived())
        return bool(self.unread)


@pytest.fixture
def no_heartbeats(monkeypatch):
    """A worker says nothing of its own accord."""
    monkeypatch.setattr(hand, "DRAIN_S", 600.0)


@pytest.mark.usefixtures("no_heartbeats")
def test_commands_come_in_and_messages_go_out_when_asked_for():
    ends = Ends()
    ends.hand.command("before")
    ends.hand.flush()
    ends.contact()
    ends.outbox.post("hello", 7)
    assert ends.heard()["items"] == [["hello", 7]]
    ends.hand.command("behind")
    ends.hand.flush()
    told = [wire.from_bytes(ends.batches.get(timeout=10)) for _ in range(2)]
    assert [batch[1][0][0] for batch in told] == ["before", "behind"]
    # It was asked for some, and goes on until they are used up.
    for number in range(1, CREDIT):
        ends.outbox.post("say", number)
        assert ends.heard()["items"] == [["say", number]]
    ends.outbox.post("say", "late")
    assert ends.board.ready(0.1) == []
    ends.hand.credit = 0
    ends.hand.ask(0.0, 0.0)
    assert ends.heard()["items"] == [["say", "late"]]
    assert not ends.failures
    ends.board.hang_up(ends.hand)
    assert ends.ended.wait(10.0)
    ends.board.close()


def test_a_worker_is_asked_again_when_half_is_used_up_or_a_second_is_over():
    ends = Ends()
    ends.contact()
    # Its line is there a little before it is asked.
    wait_until(lambda: ends.hand.credit == CREDIT)
    for left in range(CREDIT - 1, CREDIT // 2, -1):
        ends.hand.heard(0.5, 0.0)
        assert ends.hand.credit == left
    ends.hand.heard(0.5, 0.0)
    assert (ends.hand.credit, ends.hand.asked_s) == (CREDIT, 0.5)
    ends.hand.heard(0.5 + DRAIN_S, 0.0)
    assert (ends.hand.credit, ends.hand.asked_s) == (CREDIT, 0.5 + DRAIN_S)
    ends.board.hang_up(ends.hand)
    ends.board.close()


def test_a_worker_that_ends_is_seen_at_once():
    ends = Ends()
    ends.contact()
    ends.heard()
    # As the system does for a process that is killed.
    assert ends.hand.line is not None
    ends.hand.line.close()
    assert ends.ended.wait(10.0)
    ends.board.close()


def test_one_that_was_given_up_does_not_come_in_any_more():
    ends = Ends()
    ends.board.hang_up(ends.hand)
    ends.contact()
    assert ends.ended.wait(10.0)
    assert ends.hand.line is None
    ends.board.close()


def test_a_frame_that_the_controller_never_sends_ends_the_run():
    ends = Ends()
    ends.contact()
    wait_until(lambda: ends.hand.line)
    assert ends.hand.line is not None
    ends.hand.line.send(wire.to_bytes(["eval"]), b"1")
    wait_until(lambda: ends.failures)
    assert isinstance(ends.failures[0].error, wire.WireError)
    ends.board.hang_up(ends.hand)
    ends.board.close()


@pytest.mark.usefixtures("no_heartbeats")
def test_a_message_that_can_t_be_written_is_told_at_once():
    ends = Ends()
    Contact(
        ends.charter,
        ends.outbox,
        take=ends.batches.put,
        fail=lambda failed: ends.outbox.post("failed", str(failed.error)),
        end=ends.ended.set,
    )
    ends.outbox.post("event", object())
    assert ends.heard()["items"] == [["failed", "a value must be plain, got object"]]
    ends.board.hang_up(ends.hand)
    ends.board.close()


def test_a_line_that_is_full_is_emptied_when_the_worker_reads_again():
    ends = Ends()
    gate = threading.Event()
    read = []

    def slow(batch):
        gate.wait(20.0)
        read.append(batch)

    told = ends.charter, ends.outbox
    Contact(*told, take=slow, fail=ends.failures.append, end=lambda: None)
    wait_until(lambda: ends.hand.line)
    assert ends.hand.line is not None
    text = "x" * (1 << 20)
    for _ in range(20):
        # Returns though nobody reads: the control loop waits for no worker.
        ends.hand.command("begin", text)
        ends.hand.flush()
    assert ends.hand.line.has_unsent
    gate.set()

    def all_read():
        ends.board.ready(0.05)
        return len(read) == 20

    wait_until(all_read)
    assert not ends.failures
    ends.board.hang_up(ends.hand)
    ends.board.close()


def test_a_controller_that_can_t_be_reached_is_named(monkeypatch):
    monkeypatch.setattr(contact, "DIAL_S", 0.1)
    ends = Ends()
    ends.board.close()
    with pytest.raises(LineClosedError, match=r"no line to 127\.0\.0\.1:\d+: "):
        ends.contact().wait()
    assert not ends.ended.is_set()


def test_without_the_token_no_line_is_had():
    ends = Ends()
    with pytest.raises(LineClosedError):
        dial(ends.board.address, "another", "ticket", within_s=0.0)
    ends.board.close()
