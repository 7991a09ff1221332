"""What the controller keeps of a run over processes, without a process."""

import collections
import dataclasses
import itertools
import socket
import threading
from typing import Any
from unittest import mock

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from jigsaw_jax.records import (
    CheckpointDurable,
    FinishReason,
    Group,
    GroupId,
    GroupsAccumulated,
    Prompt,
    Sample,
    SampleId,
    SamplesReported,
    Score,
    Segment,
    StepTimed,
    StepUpdate,
)
from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import contact, tables
from jigsaw_jax.runtime.cluster.batch import Batch
from jigsaw_jax.runtime.cluster.desk import wait_until_forsaken
from jigsaw_jax.runtime.cluster.ears import Ears
from jigsaw_jax.runtime.cluster.endings import is_fault, reason_of
from jigsaw_jax.runtime.cluster.guests import Guests
from jigsaw_jax.runtime.cluster.hand import Hand
from jigsaw_jax.runtime.cluster.head import (
    ClusterError,
    Place,
    await_listener,
    num_local,
)
from jigsaw_jax.runtime.cluster.offers import Weights
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.places import (
    Held,
    Letters,
    PayloadLostError,
    Remote,
    Stock,
    fetch,
    message,
    read_prompt,
)
from jigsaw_jax.runtime.cluster.publishing import Publishing
from jigsaw_jax.runtime.cluster.register import Register
from jigsaw_jax.runtime.cluster.reports import Reports
from jigsaw_jax.runtime.cluster.rig import Rig
from jigsaw_jax.runtime.cluster.roster import Roster
from jigsaw_jax.runtime.cluster.shares import Shares
from jigsaw_jax.runtime.cluster.tables import (
    Admitted,
    Finished,
    Scored,
    Started,
    read_admitted,
)
from jigsaw_jax.runtime.intervals import SAMPLE_FIELDS
from jigsaw_jax.runtime.lines.depot import DepotError, Key
from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.publisher import Publisher
from jigsaw_jax.runtime.sample_bytes import read_sample, sample_bytes
from jigsaw_jax.runtime.sampler import SamplerWorker
from jigsaw_jax.store.journal import EventLog

ONE = SampleId("u", 0, 0)


class Sent(Line):
    """In the place of a line, and of Ray's handle: keeps what is sent."""

    def __init__(self):
        self.batches = []
        self.by_ray = []
        self.do = self

    def post(self, head, body=b""):
        if head == contact.do():
            self.batches.append(wire.from_bytes(body))

    def remote(self, batch, refs):
        self.by_ray.append((wire.from_bytes(batch), refs))


def group(order, num=1, unused=None):
    unused = collections.deque() if unused is None else unused
    group_id = GroupId(f"u{order}", 0)
    samples = tuple(
        Remote(
            id=SampleId(*group_id, index),
            attempt=0,
            num_sampled=3,
            is_truncated=False,
            held=Held(Key("a/1", 10 * order + index), unused),
        )
        for index in range(num)
    )
    return Group(
        id=group_id,
        order=order,
        prompt=Prompt(uid=group_id.uid, tokens=(1,), text="", answer="", task=""),
        samples=samples,
        scores=tuple(Score(value=1.0) for _ in samples),
    )


def sample(token=5):
    segment = Segment(tokens=(token,), logprobs=(-1.0,), versions=(0,))
    return Sample(
        id=ONE, attempt=0, segments=(segment,), finish_reason=FinishReason.STOP
    )


def accumulated(groups):
    ids = tuple(one.id for one in groups)
    return GroupsAccumulated(now_s=1.0, groups=ids, update=4)


# Register.


def test_only_who_has_an_attempt_is_heard():
    register = Register()
    first = register.admit(ONE, 0, "sampler-0/2")
    number = register.admit(ONE, 1, "sampler-0/2")
    known = register.from_worker(number, "sampler-0/2")
    assert known is not None
    assert (known.id, known.attempt) == (ONE, 1)
    # An earlier life of it, another attempt, another worker, and no such number.
    assert register.from_worker(number, "sampler-0/1") is None
    assert register.from_worker(first, "sampler-0/2") is None
    assert register.from_worker(number, "sampler-1/1") is None
    assert register.from_worker(number + 1, "sampler-0/2") is None
    assert register.num_ignored == 4
    register.drop(ONE)
    assert register.from_worker(number, "sampler-0/2") is None


def batch(*items, forms=(), body=b""):
    return Batch(items=list(items), forms=list(forms), body=body, named=list)


def of_samples(**rows):
    """A message of these rows, as it arrives."""
    return ["samples", wire.to_bytes(rows)]


def hearing(payloads, *, asks_scores=False):
    """Ears, a register, a worker that speaks, and what is posted."""
    roster = mock.Mock(spec=Roster, lock=threading.RLock(), flush=lambda: None)
    roster.now_s.return_value = 9.0
    posted, journal = [], mock.Mock(spec=EventLog)
    reports = Reports(
        Stock(payloads, "token", 1.0),
        posted.append,
        journal=journal,
        asks_scores=asks_scores,
    )
    ears = Ears(
        roster,
        reports=reports,
        guests=mock.Mock(spec=Guests),
        shares=Shares(),
        journal=journal,
        post=posted.append,
        say=print,
    )
    hand = mock.Mock(spec=Hand, worker="a/1", offset_s=0.0)
    # What a mock is called is no setting of it.
    hand.name = "a"
    return ears, reports.register, hand, posted


def test_what_is_said_twice_late_or_by_another_is_counted_and_changes_nothing():
    payloads = Payloads(1)
    payloads.add_prompts([group(0).prompt])
    ears, register, hand, posted = hearing(payloads)
    one = SampleId("u0", 0, 0)
    first = register.admit(one, 0, "a/1")
    second = register.admit(one, 1, "a/1")

    def hear(number, place):
        finished = Finished(number, place, 4, 1.0, 2.0, 3, 0, "stop")
        score = Scored(number, 1.0, {}, None)
        ears.hear(hand, batch(of_samples(finished=[finished], scored=[score])))

    hear(second, 77)
    event = SamplesReported(
        now_s=9.0, started=[], finished=[(one, 1, 3, 0)], scored=[(one, 1, 1.0)]
    )
    assert posted == [event]
    assert register.num_ignored == 0
    hear(second, 77)
    hear(first, 78)
    hand.worker = "a/2"
    hear(second, 79)
    assert posted == [event]
    assert register.num_ignored == 6
    assert payloads.sample(one, 1).held.key == ("a/1", 77)
    # Of those that nobody heard of the depot is told; the first is still wanted.
    unused = ears._reports.stock.take_unused()
    assert unused == [("a/1", 77), ("a/1", 78), ("a/2", 79)]


@pytest.mark.parametrize("asks_scores", [False, True])
def test_a_score_that_is_here_before_its_completion_waits_for_it(asks_scores):
    payloads = Payloads(1)
    payloads.add_prompts([group(0).prompt])
    ears, register, hand, posted = hearing(payloads, asks_scores=asks_scores)
    one = SampleId("u0", 0, 0)
    number = register.admit(one, 0, "a/1")
    score = Scored(number, 1.0, {}, None)
    ears.hear(hand, batch(of_samples(started=[Started(number, 1.0)], scored=[score])))
    finished = Finished(number, 77, 4, 1.0, 2.0, 3, 0, "stop")
    ears.hear(hand, batch(of_samples(finished=[finished])))
    ears.hear(hand, batch(of_samples(scored=[score])))
    assert [event.scored for event in posted] == [
        [],
        [] if asks_scores else [(one, 0, 1.0)],
    ]
    assert register.num_ignored == 1
    known = register.find(one, 0)
    assert known is not None
    assert known.score is not None


def test_another_host_s_clock_is_lined_up_before_an_event_is_read():
    ears, register, hand, posted = hearing(Payloads(1))
    hand.offset_s = 0.5
    number = register.admit(ONE, 0, "a/1")
    event = CheckpointDurable(now_s=2.0, updates=7)
    told = ["event", "CheckpointDurable", wire.plain(event)]
    ears.hear(hand, batch(of_samples(started=[(number, 2.0)]), told))
    assert posted == [
        SamplesReported(now_s=9.0, started=[(ONE, 0, 2.5)], finished=[], scored=[]),
        dataclasses.replace(event, now_s=2.5),
    ]
    with pytest.raises(wire.WireError):
        ears.hear(hand, batch(["event", "CheckpointDurable", []]))
    with pytest.raises(wire.WireError):
        ears.hear(hand, batch(of_samples(started=[(number, "2.0")])))


def test_a_completion_that_is_heard_shows_which_slot_it_had():
    ears, register, hand, _ = hearing(Payloads(1))
    hand.offset_s = 0.5
    number = register.admit(ONE, 0, "a/1")
    finished = Finished(number, 7, 4, 1.0, 2.0, 3, 5, "length")
    ears.hear(hand, batch(of_samples(finished=[finished])))
    # Of an attempt that nobody waits for nothing is known.
    ears.hear(hand, batch(of_samples(finished=[finished._replace(number=99)])))
    journal: Any = ears._journal
    row = ("slot/a/04", 1.5, 2.5, "a", *ONE, 3, 5, "length")
    assert journal.intervals.mock_calls == [mock.call("sample", SAMPLE_FIELDS, [row])]


def test_a_score_that_is_asked_for_goes_to_who_asks():
    ears, register, hand, posted = hearing(Payloads(1), asks_scores=True)
    numbers = [register.admit(ONE._replace(sample=n), 0, "a/1") for n in range(2)]
    scores, received = [Scored(n, 1.0, {}, None) for n in numbers], []
    known = register.from_worker(numbers[1], "a/1")
    assert known is not None
    known.receive = received.append
    ears.hear(hand, batch(of_samples(scored=scores)))
    assert posted == []
    assert received == [known.score] == [Score(value=1.0)]
    first = register.from_worker(numbers[0], "a/1")
    assert first is not None
    assert first.score == Score(value=1.0)


def test_what_is_said_of_samples_between_two_messages_is_one():
    outbox = Outbox(Clock(), epoch=1)
    outbox.post("started", 1, 2.0)
    outbox.interval("sampler", "decode", 1.0, 2.0, tokens=3)
    outbox.post("scored", 1, 0.5, {"answer": 0.5}, None)
    outbox.post("started", 2, 3.0)
    outbox.post("loaded", 7)
    outbox.post("started", 3, 4.0)
    first, _, loaded, last = wire.from_bytes(outbox.take(0.0)[0])["items"]
    rows = tables.read(first[1])
    assert rows.started == [Started(1, 2.0), Started(2, 3.0)]
    assert rows.finished == []
    assert rows.scored == [Scored(1, 0.5, {"answer": 0.5}, None)]
    assert loaded == ["loaded", 7]
    assert tables.read(last[1]).started == [Started(3, 4.0)]


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"ended": [[1]]},
        {"started": [1]},
        {"started": [[1]]},
        {"started": [[1, 0.5, 2]]},
        {"started": [[1, 0.5], [2, "0.5"]]},
        {"started": [[True, 0.5]]},
        {"scored": [[1, 0.5, {"answer": "1"}, None]]},
    ],
)
def test_tables_of_another_shape_or_type_are_refused(told):
    with pytest.raises(wire.WireError):
        tables.read(wire.to_bytes(told))


@pytest.mark.parametrize("told", [None, [], "started", b"", b"\xc1"])
def test_tables_are_bytes(told):
    with pytest.raises(wire.WireError):
        tables.read(told)


def test_a_row_with_what_messagepack_has_no_form_for_is_read():
    row = [1, None, {"answer": None}, "error: no file \udcff"]
    assert tables.read(wire.to_bytes({"scored": [row]})).scored == [Scored(*row)]


def test_an_interval_is_filled_into_its_form_again():
    ears, _, hand, _ = hearing(Payloads(1))
    hand.offset_s = 0.5
    outbox = Outbox(Clock(), epoch=1)
    outbox.interval("sampler", "decode", 1.0, 2.0, active=3, tokens=6)
    outbox.interval("sampler", "decode", 2.0, 3.0, active=2, tokens=4)
    outbox.post("hello")
    told = wire.from_bytes(outbox.take(0.0)[0])
    assert told["forms"] == [["decode", "active", "tokens"]]
    ears.hear(hand, batch(*told["items"], forms=told["forms"]))
    journal: Any = ears._journal
    keys = ("active", "tokens")
    assert journal.intervals.mock_calls == [
        mock.call("decode", keys, (("sampler", 1.5, 2.5, 3, 6),)),
        mock.call("decode", keys, (("sampler", 2.5, 3.5, 2, 4),)),
    ]
    assert list(ears.sampler_busy) == [(1.5, 2.5, 6), (2.5, 3.5, 4)]
    short = ["interval", 0, "sampler", 3.0, 4.0, 2]
    with pytest.raises(wire.WireError, match="must have"):
        ears.hear(hand, batch(short, forms=told["forms"]))


def test_the_time_of_steps_which_adaptive_admission_asks_for_is_heard():
    ears, _, hand, posted = hearing(Payloads(1))
    event = StepTimed(now_s=1.0, worker="local", sequences=3, step_s=0.5)
    ears.hear(hand, batch(["event", "StepTimed", wire.plain(event)]))
    assert posted == [event]


def test_what_is_lost_with_a_worker_is_what_holds_no_slot_and_has_no_score():
    register = Register()
    ids = [SampleId("u", 0, index) for index in range(5)]
    numbers = [register.admit(sample_id, 0, "a/1") for sample_id in ids]
    ended = register.admit(SampleId("v", 0, 0), 0, "b/1")
    running, finished, scored, paused, dropped = (
        register.from_worker(number, "a/1") for number in numbers
    )
    assert running
    assert finished
    assert scored
    assert paused
    assert dropped
    finished.is_finished = scored.is_finished = True
    scored.score = Score(value=1.0)
    paused.is_paused = True
    dropped.is_finished = True
    register.drop(ids[4])
    register.end(GroupId("v", 0))
    assert not running.is_finished
    assert register.lost_with("a/1") == [(ids[1], 0), (ids[3], 0)]
    assert register.from_worker(ended, "b/1") is None


# Shares.


def test_without_a_helper_the_learner_has_all_and_reports_all():
    shares, groups = Shares(), [group(0), group(1)]
    assert shares.hand(groups, has_helper=False) == (groups, [])
    assert shares.accumulated(accumulated(groups)) == accumulated(groups)


def test_a_hand_off_is_reported_once_both_have_their_part():
    shares, groups = Shares(), [group(0), group(1), group(2), group(3)]
    own, helped = shares.hand(groups, has_helper=True)
    assert [*helped, *own] == groups
    assert len(own) == len(helped) == 2
    assert shares.accumulated(accumulated(helped)) is None
    # A second report of the same part does not stand for the other's.
    assert shares.accumulated(accumulated(helped)) is None
    assert shares.accumulated(accumulated(own)) == accumulated(groups)
    assert shares.helped == helped


def test_single_groups_go_to_learner_and_helper_in_turn():
    shares = Shares()
    parts = [shares.hand([group(i)], has_helper=True) for i in range(4)]
    assert sorted(len(own) for own, _ in parts) == [0, 0, 1, 1]
    assert [len(own) + len(helped) for own, helped in parts] == [1] * 4


def test_a_step_waits_for_the_sums_and_is_taken_once():
    shares = Shares()
    shares.hand([group(0), group(1)], has_helper=True)
    step = shares.step = StepUpdate(update=4, groups=())
    assert shares.take_step() == step
    assert shares.take_step() is None
    assert shares.helped == []


def test_weights_that_are_lent_let_a_held_hand_off_go():
    handed_out = []
    shares = Shares(3, lambda: handed_out.append(shares.lent))
    assert [shares.goes_on(update) for update in range(6)] == [True, True, False] * 2
    shares.lending = 4
    shares.arrived(("sampler-0/1", 4))
    shares.arrived(None)
    assert handed_out == [("sampler-0/1", 4), None]
    assert shares.lending == -1


# Messages.


class Shelf:
    """Has every completion; or those of some workers alone."""

    def __init__(self, *gone):
        self.gone = gone

    def take(self, keys, within_s):
        del within_s
        if any(source in self.gone for source, _ in keys):
            raise DepotError("gone")
        self.keys = keys
        return [sample_bytes(sample(number)) for _, number in keys]


def test_groups_are_told_by_keys_and_come_whole_from_the_depot():
    letters, two = Letters(), [group(0, 2), group(1, 2)]
    told = wire.from_bytes(wire.to_bytes(message(two, letters)))
    assert [places for _, _, _, places, _ in told] == [
        [["a/1", 0], ["a/1", 1]],
        [["a/1", 10], ["a/1", 11]],
    ]
    groups = fetch(told, Shelf(), 1.0)
    assert [one.id for one in groups] == [GroupId("u0", 0), GroupId("u1", 0)]
    tokens = [s.segments[0].tokens for one in groups for s in one.samples]
    assert tokens == [(0,), (1,), (10,), (11,)]
    assert [one.prompt for one in groups] == [one.prompt for one in two]
    assert [one.scores for one in groups] == [one.scores for one in two]
    with pytest.raises(PayloadLostError):
        fetch(told, Shelf("a/1"), 1.0)


def test_a_completion_may_go_when_nobody_has_its_group_any_more():
    stock = Stock(Payloads(1), "token", 1.0)
    one = group(0, 2, unused=stock._unused)
    other = dataclasses.replace(one, order=5)
    del one
    assert stock.take_unused() == []
    del other
    assert sorted(stock.take_unused()) == [("a/1", 0), ("a/1", 1)]
    assert stock.take_unused() == []


def test_a_batch_has_its_completions_beside_it_at_their_places():
    outbox = Outbox(Clock(), epoch=3)
    outbox.post("guest", sample=sample())
    outbox.post("guest", sample=sample())
    head, payload = outbox.take(0.0)
    values = wire.from_bytes(head)
    assert (values["epoch"], values["named"]) == (3, 0)
    assert len(values["items"]) == 2
    for _, offset, size in values["items"]:
        assert read_sample(payload[offset : offset + size]) == sample()
    assert wire.from_bytes(outbox.take(0.0)[0])["items"] == []


def test_objects_that_a_batch_names_are_handed_out_once_by_its_number():
    outbox = Outbox(Clock(), epoch=1)
    outbox.post("sums", 4, refs=["a", "b"])
    outbox.post("lent", 5, refs=["c"])
    values = wire.from_bytes(outbox.take(0.0)[0])
    assert values["items"] == [["sums", 4, 0, 2], ["lent", 5, 2, 1]]
    assert outbox.named(values["named"]) == ["a", "b", "c"]
    assert outbox.named(values["named"]) == []
    outbox.post("sums", 6, refs=["d"])
    values = wire.from_bytes(outbox.take(0.0)[0])
    outbox.begin(2)
    assert outbox.named(values["named"]) == []


def test_a_new_epoch_lets_go_what_was_said_before_but_not_of_failures():
    outbox = Outbox(Clock(), epoch=1)
    outbox.post("event", "of epoch 1")
    outbox.post("failed", "a thread")
    outbox.begin(2)
    outbox.post("event", "of epoch 1, late", epoch=1)
    outbox.post("event", "of epoch 2", epoch=2)
    items = wire.from_bytes(outbox.take(0.0)[0])["items"]
    assert items == [["failed", "a thread"], ["event", "of epoch 2"]]


def test_an_interval_waits_for_a_message_to_travel_with():
    outbox = Outbox(Clock(), epoch=1)
    outbox.interval("sampler", "decode", 1.0, 2.0, tokens=3)
    items = wire.from_bytes(outbox.take(0.01)[0])["items"]
    assert items == [["interval", 0, "sampler", 1.0, 2.0, 3]]


# Weights.


def weights(version):
    return Weights(
        version=version,
        run="r",
        start_s=0.0,
        learner="learner/1 a",
        depot=("127.0.0.1", 1),
    )


def test_a_sampler_keeps_no_version_but_the_last_one_that_it_fetched():
    rig = Rig.__new__(Rig)
    rig.publisher = mock.Mock(spec=Publisher)
    rig._fetched = {}
    for rig.num_fetches in range(1, 4):
        rig._params = rig._fetched[rig.num_fetches] = {"a": rig.num_fetches}
        rig.publish(
            rig.num_fetches, sampler=mock.Mock(spec=SamplerWorker), report=print
        )
    assert rig._fetched == {3: {"a": 3}}
    rig._fetched[4] = {"a": 4}
    # Another host of its slice may be behind; then it is this one that is to be had.
    rig.load(3)
    assert set(rig._fetched) == {3, 4}


def test_a_version_is_published_once_when_the_last_has_it_or_is_gone():
    publishing = Publishing()
    sent = weights(1)
    publishing.begin(sent, ["a/1", "b/1"])
    assert publishing.take_done() is None
    publishing.drop("a/1")
    assert publishing.take_done() is None
    publishing.drop("b/1")
    assert publishing.take_done() == sent
    assert publishing.take_done() is None
    # Sent again, to one that came too late for it: it is served already.
    publishing.begin(sent, ["a/1"])
    publishing.drop("a/1")
    assert publishing.take_done() is None
    after = dataclasses.replace(sent, version=sent.version + 1)
    publishing.begin(after, [])
    publishing.settle()
    assert publishing.take_done() is None
    publishing.begin(after, [])
    assert publishing.take_done() is None
    assert publishing.version == 2


# Addresses.


def test_an_address_is_a_number_of_local_workers_or_of_a_cluster():
    assert num_local("local:3") == 3
    assert num_local("auto") == 0
    assert num_local("10.0.0.1:6379") == 0


@pytest.mark.parametrize("address", ["local:1", "local:", "local:x", "local:-3"])
def test_a_local_cluster_has_at_least_two_workers(address):
    with pytest.raises(ClusterError, match="at least 2"):
        num_local(address)


def test_an_address_where_nobody_listens_is_told_and_one_that_comes_is_awaited():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="no Ray cluster listens there"):
            await_listener(address, within_s=0.0)
        threading.Timer(0.2, taken.listen).start()
        await_listener(address, within_s=60.0)
    # Whatever else Ray may know it is asked itself.
    await_listener("auto", within_s=0.0)
    await_listener("ray://127.0.0.1:1", within_s=0.0)


def test_a_prompt_goes_along_once_in_every_batch_that_admits_samples_of_it():
    # A batch may end between two samples of one turn: the other thread sends it too.
    sent = Sent()
    hand = Hand("sampler-0", "sample", 1, Place(), sent)
    hand.attach(sent)
    asked = Prompt(uid="u", tokens=(1,), text="", answer="", task="")
    letters = Letters()
    rows = [Admitted(9 + index, "u", 0, index, 0, 3, False) for index in range(2)]
    for _ in range(2):
        for row in rows:
            hand.admit(row, letters.write(asked))
        hand.flush()
    first, second = sent.batches
    assert first[1] == second[1]
    (name, [texts], *_), (kind, [told], *_) = first[1]
    assert (name, [read_prompt(text) for text in texts]) == ("prompts", [asked])
    assert (kind, read_admitted(told)) == ("admit", rows)


@pytest.mark.parametrize("told", ["u", None, b"\xc1", wire.to_bytes(["u", [1]])])
def test_what_is_no_prompt_is_refused(told):
    with pytest.raises(wire.WireError):
        read_prompt(told)


def test_admissions_keep_their_place_among_other_commands():
    sent = Sent()
    hand = Hand("sampler-0", "sample", 1, Place(), sent)
    hand.attach(sent)
    one, other = (Admitted(number, "u", 0, number, 0, 3, False) for number in (1, 2))
    hand.admit(one, b"letter")
    hand.command("cancel", 7)
    hand.admit(other, b"letter")
    hand.flush()
    assert [command[0] for command in sent.batches[0][1]] == [
        "prompts",
        "admit",
        "cancel",
        "admit",
    ]
    assert read_admitted(sent.batches[0][1][3][1][0]) == [other]


def test_commands_wait_for_the_line_and_those_with_objects_go_by_ray():
    sent = Sent()
    hand = Hand("sampler-0", "sample", 1, Place(), sent)
    hand.command("sample")
    hand.flush()
    hand.command("borrow", 3, refs=["object"])
    hand.flush()
    assert sent.batches == []
    hand.attach(sent)
    hand.command("begin", 1)
    hand.flush()
    assert sent.batches == [[1, [["sample", [], 0, 0]]], [3, [["begin", [1], 0, 0]]]]
    assert sent.by_ray == [([2, [["borrow", [3], 0, 1]]], ["object"])]


# A worker's own errors.


def test_an_error_of_a_worker_s_own_code_is_no_loss():
    trace = RayTaskError("live", "Traceback: ZeroDivisionError", ZeroDivisionError())
    assert is_fault(trace)
    assert is_fault(ActorDiedError(trace))
    assert not is_fault(ActorDiedError())
    assert not is_fault(ActorUnavailableError("no answer", None))
    cut_off = RayTaskError("live", "", LineClosedError("no line to h:1: timed out"))
    assert not is_fault(cut_off.as_instanceof_cause())
    assert reason_of(cut_off.as_instanceof_cause()) == "no line to h:1: timed out"
    assert reason_of(ActorDiedError()) == "its process has ended"
    assert reason_of(ActorUnavailableError("no", None)) == "it can't be reached"


def test_a_worker_ends_when_nobody_has_asked_it_for_so_long():
    outbox, tick_s = mock.create_autospec(Outbox, instance=True), 2.0**-10
    # Asked before each of its first looks, of which a tick has two, and then no more.
    asked = mock.PropertyMock(side_effect=(min(n, 20) for n in itertools.count()))
    type(outbox).num_asked = asked
    end = mock.Mock()
    wait_until_forsaken(outbox, 5 * tick_s, end, tick_s)
    end.assert_called_once_with()
    assert asked.call_count == 2 * (11 + 5)
