"""A version on its way from the learner to every sampler, and what may come between."""

import pathlib
import subprocess
import sys
import threading
from typing import Any
from unittest import mock

import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OwnerDiedError,
)

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import desk, offers
from jigsaw_jax.runtime.cluster.desk import Desk
from jigsaw_jax.runtime.cluster.fleet import Fleet
from jigsaw_jax.runtime.cluster.hand import (
    DRAIN_S,
    GATHER_S,
    Hand,
    Unsent,
    can_begin,
)
from jigsaw_jax.runtime.cluster.head import Head, Place
from jigsaw_jax.runtime.cluster.learner_duty import LearnerDuty
from jigsaw_jax.runtime.cluster.newest import Newest
from jigsaw_jax.runtime.cluster.offers import Weights
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.rig import Fetched, Rig
from jigsaw_jax.runtime.cluster.roster import TRIES_MAX, Roster
from jigsaw_jax.runtime.cluster.sampler_duty import SamplerDuty
from jigsaw_jax.runtime.cluster.source import ANSWER_BEATS, GoneError, Source
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.runtime.weights import CarrierError, Offer, Receiver, Sender
from jigsaw_jax.settings import Cluster
from tests.runtime.cluster.test_books import Sent, batch, hearing
from tests.runtime.test_local import make_train

ROOT = pathlib.Path(__file__).parents[3]
LEARNER = "learner/1 a"


def weights(version, learner=LEARNER, run="r"):
    return Weights(
        version=version,
        run=run,
        start_s=0.0,
        learner=learner,
        depot=("127.0.0.1", 1),
    )


# At the learner.


def test_the_newest_version_alone_is_to_be_had_with_what_is_frozen_all_along():
    newest = Newest()
    assert newest.get(0, True) is None
    newest.put(3, "three", "base")
    newest.put(4, "four", None)
    assert newest.get(3, False) is None
    assert newest.get(4, False) == ["four"]
    assert newest.get(4, True) == ["four", "base"]
    # Sent again by other carriers.
    newest.put(4, "again", "base again")
    assert newest.get(4, True) == ["again", "base again"]


def test_a_version_that_is_not_the_last_any_more_is_not_sent_again_under_its_number():
    duty = LearnerDuty.__new__(LearnerDuty)
    sender = mock.Mock(spec=Sender)
    duty._sender = sender
    duty._version = 6
    duty._again(5)
    assert sender.mock_calls == []


# The controller.


def roster_of(num):
    """A roster, its learner and samplers that have joined, and what they are sent."""
    hands = {}
    unsent = Unsent()
    for name in ["learner", *(f"sampler-{i}" for i in range(num))]:
        role = "train" if name == "learner" else "sample"
        sent = Sent()
        hand = hands[name] = Hand(name, role, 1, Place(), sent, unsent=unsent)
        hand.is_joined = role == "sample"
        hand.attach(sent)
    hands["learner"].called = LEARNER
    seat = Seat(
        train=make_train(),
        record=mock.Mock(spec=Record, journal=mock.Mock()),
        clock=Clock(),
        progress=mock.Mock(spec=Progress),
        payloads=Payloads(1),
        post=lambda _: None,
        published=mock.Mock(),
    )
    fleet = mock.Mock(spec=Fleet, hands=hands)
    return Roster(seat, fleet, mock.Mock(spec=Head)), hands


def commands(hand):
    hand.flush()
    told = [command[:2] for _, told in hand.handle.batches for command in told]
    hand.handle.batches.clear()
    return told


def test_a_version_costs_the_controller_no_call_of_ray_s():
    roster, hands = roster_of(64)
    ears, *_ = hearing(Payloads(1))
    ears._roster = roster
    named = mock.Mock(side_effect=AssertionError("nothing is named"))
    message = ["weights", 7, "r", 0.5, ["127.0.0.1", 1]]
    told = batch(message)._replace(named=named)
    ears.hear(hands["learner"], told)
    for name, hand in hands.items():
        load = [["load", [["127.0.0.1", 1], LEARNER, 7, "r"]]]
        assert commands(hand) == ([] if name == "learner" else load)
        assert hand.handle.by_ray == []


@pytest.mark.parametrize(
    "message",
    [
        ["weights", "7", "r", 0.5, ["127.0.0.1", 1]],
        ["weights", 7, 1, 0.5, ["127.0.0.1", 1]],
        ["weights", 7, "r", None, ["127.0.0.1", 1]],
        ["weights", 7, "r", 0.5, ["127.0.0.1"]],
        ["weights", 7, "r"],
        ["loaded", True, 0.5],
        ["loaded", 7, "0.5"],
        ["loaded", 7],
        ["unloaded", None, "why"],
        ["unloaded", 7, b"why"],
        ["unloaded", 7, "why", "more"],
    ],
)
def test_word_of_weights_of_another_form_is_refused(message):
    roster, hands = roster_of(1)
    ears, *_ = hearing(Payloads(1))
    ears._roster = roster
    with pytest.raises(wire.WireError):
        ears.hear(hands["learner"], batch(message))
    assert commands(hands["sampler-0"]) == []


def test_whoever_joins_late_is_sent_the_newest_version_and_joins_with_it_alone():
    roster, hands = roster_of(1)
    roster.take_weights(weights(1))
    late = Hand("sampler-1", "sample", 1, Place(), Sent())
    late.attach(late.handle)

    def hire(*_):
        hands["sampler-1"] = late
        return late

    with mock.patch.object(roster._fleet, "hire", hire):
        roster._hire("sampler-1", "sample", Place())
    assert [name for name, _ in commands(late)] == ["sample", "load"]
    # Superseded before it has asked, so that it says nothing of the first.
    roster.take_weights(weights(2))
    assert commands(late)[0][1][2] == 2
    with roster.lock:
        roster.take_loaded(late, 1, 0.0)
        assert not late.is_joined
        roster.take_loaded(late, 2, 0.0)
        assert late.is_joined


def test_a_life_begins_also_for_a_sampler_that_came_to_a_host_more():
    roster, hands = roster_of(3)
    del hands["learner"]
    roster._head = mock.Mock(places=lambda: [Place()] * 3)
    roster._fleet.epoch = 2
    learner = Hand("learner", "train", 2, Place(), Sent())
    learner.attach(learner.handle)

    def hire(name, *_):
        assert name == "learner"
        hands[name] = learner
        return learner

    with mock.patch.object(roster._fleet, "hire", hire):
        roster.open(run_dir="run", step=95, version=94)
    for number in range(3):
        hand = hands[f"sampler-{number}"]
        assert commands(hand) == [["begin", [2]]]
        assert not hand.is_joined
    assert commands(learner) == [["learn", ["run", 95, 94]]]


def test_a_later_life_waits_for_whoever_may_still_join_and_not_for_who_is_cut_off():
    _, hands = roster_of(3)
    first, second, third = (hands[f"sampler-{i}"] for i in range(3))

    def begins(*, epoch, now_s=100.0):
        return can_begin(hands.values(), epoch=epoch, now_s=now_s)

    assert begins(epoch=1)
    assert begins(epoch=2)
    for hand in (second, third):
        hand.is_joined, hand.pid, hand.hired_s = False, 7, 100.0
    assert not begins(epoch=1, now_s=1e6)
    assert not begins(epoch=2, now_s=100.0 + GATHER_S - 0.1)
    assert begins(epoch=2, now_s=100.0 + GATHER_S)
    # One that has not said a word is still being built.
    second.pid = third.pid = 0
    assert begins(epoch=2)
    assert not begins(epoch=1)
    # Nobody else samples: not even the learner, nor one that sums gradients.
    first.role = "help"
    assert not begins(epoch=2, now_s=1e6)


def test_a_warm_sampler_that_is_silent_while_a_life_begins_is_lost_as_soon_as_ever():
    roster, hands = roster_of(2)
    hand, cold = hands["sampler-0"], hands["sampler-1"]
    cold.is_joined, cold.version, cold.pid = False, -1, 7
    fleet = mock.Mock(spec=Fleet, _train=make_train())
    roster._fleet.epoch = 2
    in_time_s = Fleet._silent_s(fleet, hand)
    for one in (hand, cold):
        roster._begin(one)
        assert not one.is_up
    # A life that ends while it begins changes nothing.
    roster._begin(hand)
    assert Fleet._silent_s(fleet, hand) == in_time_s
    assert Fleet._silent_s(fleet, cold) > in_time_s


def test_a_life_begins_with_a_sampler_at_each_place_that_has_none():
    a, b, c, gone = (Place(nodes=(node,)) for node in ("a", "b", "c", "gone"))

    def hired(places, there):
        roster, hands = roster_of(3)
        hands.clear()
        for name, place in there.items():
            sent = Sent()
            hands[name] = Hand(name, "sample", 1, place, sent)
            hands[name].attach(sent)
        roster._head = mock.Mock(places=lambda: [a, *places])
        roster._fleet.epoch = 2
        found = []

        def hire(name, role, place, index):
            found.append((name, place, index))
            hand = hands[name] = Hand(name, role, 2, place, Sent())
            hand.attach(hand.handle)
            return hand

        with mock.patch.object(roster._fleet, "hire", hire):
            roster.open(run_dir="run", step=None, version=0)
        assert found.pop() == ("learner", a, 0)
        return found

    both = [("sampler-0", b, 1), ("sampler-1", c, 2)]
    assert hired([b, c], {}) == both
    # Which came to the first one's place under another name.
    assert hired([b, c], {"sampler-2": b}) == [("sampler-0", c, 1)]
    assert hired([b, c], {"sampler-1": b, "sampler-2": c}) == []
    # Two to a host.
    assert hired([b, b], {"sampler-1": b}) == [("sampler-0", b, 1)]
    # One too many for now, whose loss is told soon.
    assert hired([b], {"sampler-0": gone}) == []


def test_a_learner_s_place_is_not_free_while_its_next_life_has_not_begun():
    roster, hands = roster_of(1)
    roster.is_open = True
    head = roster._head = mock.Mock(spec=Head)
    head.free_places.return_value = []
    roster.look_around()
    assert head.free_places.call_count == 1
    del hands["learner"]
    roster.look_around()
    assert head.free_places.call_count == 1


def test_a_version_that_many_miss_is_sent_again_once_and_then_once_more():
    num = 3 * TRIES_MAX
    roster, hands = roster_of(num)
    samplers = [hand for name, hand in hands.items() if name != "learner"]
    fail = roster.fail = mock.Mock()
    roster.take_weights(weights(1))
    for hand in samplers:
        roster.take_unloaded(hand, 1, "why")
    assert commands(hands["learner"]) == [["again", [1]]]
    roster.take_weights(weights(1))
    roster.take_unloaded(samplers[0], 1, "why")
    assert commands(hands["learner"]) == [["again", [1]]]
    fail.assert_not_called()
    for _ in range(TRIES_MAX - 1):
        roster.take_weights(weights(1))
        roster.take_unloaded(samplers[0], 1, "why")
    fail.assert_called_once()


def test_word_of_a_version_that_is_superseded_or_whose_learner_is_lost_is_let_go():
    roster, hands = roster_of(1)
    roster.take_weights(weights(1))
    roster.take_weights(weights(2))
    roster.take_unloaded(hands["sampler-0"], 1, "why")
    assert commands(hands["learner"]) == []
    learner = hands.pop("learner")
    roster.take_unloaded(hands["sampler-0"], 2, "why")
    assert commands(learner) == []


# A sampler.


class Handle:
    """In the place of Ray's handle of a learner."""

    def __init__(self, newest):
        self.newest = newest
        self.offered = self

    def remote(self, version, with_frozen):
        return lambda: self.newest.get(version, with_frozen)


@pytest.fixture
def of_ray(monkeypatch):
    """Learners by name, and a store, without Ray."""
    learners: dict[str, Any] = {}

    def get_actor(name):
        if name not in learners:
            raise ValueError(name)
        return learners[name]

    def get(what, *, timeout):
        assert timeout == 5.0
        return what() if callable(what) else what

    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "get_actor", mock.Mock(side_effect=get_actor))
    return learners


def offer(text):
    return Offer(manifest=text, tickets={"p": ("ray", "ticket")})


def test_a_learner_is_looked_up_once_a_life_and_gives_what_is_asked_for(of_ray):
    source = Source(5.0)
    for life, run in enumerate(("r#1", "r#2"), start=1):
        newest = Newest()
        newest.put(1, offers.put(offer(run)), offers.put(offer("base")))
        of_ray[f"learner/{life}"] = Handle(newest)
        assert source.ask(f"learner/{life}", 1, True) == [offer(run), offer("base")]
        newest.put(2, offers.put(offer("two")), None)
        assert source.ask(f"learner/{life}", 2, False) == [offer("two")]
        with pytest.raises(GoneError, match="superseded"):
            source.ask(f"learner/{life}", 1, False)
        assert isinstance(ray.get_actor, mock.Mock)
        assert ray.get_actor.call_count == life


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorDiedError(), GoneError),
        # As Ray says, too, where its owner can't be reached.
        (OwnerDiedError("00", None, "here"), CarrierError),
        (ActorUnavailableError("no answer", None), CarrierError),
        (GetTimeoutError("not ready"), CarrierError),
    ],
)
def test_a_learner_that_has_ended_is_no_failure_and_one_out_of_reach_is_told(
    of_ray, monkeypatch, error, expected
):
    of_ray["a"] = Handle(Newest())
    monkeypatch.setattr(ray, "get", mock.Mock(side_effect=error))
    with pytest.raises(expected):
        Source(5.0).ask("a", 1, False)
    # So it is where Ray's head can't be asked for it, too.
    with pytest.raises(CarrierError, match=r"^learner/2 is not found$"):
        Source(5.0).ask("learner/2 0f", 1, False)


@pytest.mark.parametrize("value", [["offer-2", "{}", []], ["offer-3", 5, []], "x"])
def test_what_is_no_offer_is_refused(value):
    with pytest.raises(wire.WireError):
        offers.get(value)


def rig_of(answers):
    """A rig whose source answers so, in turns, and whose receivers take all."""
    rig: Any = Rig.__new__(Rig)
    rig._train = make_train()
    rig._wanted = "trained", "frozen"
    rig._run, rig.version, rig.num_fetches = "", -1, 0
    rig._params = rig._frozen = None
    rig._fetched = {}
    rig._source = mock.Mock(spec=Source)
    rig._source.ask.side_effect = answers

    def receive(wanted):
        receiver = mock.Mock(spec=Receiver, version=-1)

        def take(offered, **_):
            if offered.manifest == "lost":
                raise CarrierError("lost")
            receiver.version += 1
            return f"{wanted} {offered.manifest}"

        receiver.receive.side_effect = take
        return receiver

    rig._receive = receive
    rig._receiver = receive("trained")
    return rig


def test_a_version_is_asked_for_once_and_what_is_frozen_in_the_whole_life():
    rig = rig_of([[offer("v0"), offer("base")], [offer("v1")], [offer("w0")]])
    assert rig.fetch([LEARNER, 0, "r#1"]) == Fetched(is_new=True)
    # Sent again for others.
    assert rig.fetch([LEARNER, 0, "r#1"]) == Fetched()
    assert rig.fetch([LEARNER, 1, "r#1"]) == Fetched(is_new=True)
    # Of a learner that went on from a checkpoint the same number is another version.
    assert rig.fetch(["learner/2 b", 0, "r#2"]) == Fetched(is_new=True)
    assert rig._source.ask.mock_calls == [
        mock.call(LEARNER, 0, True),
        mock.call(LEARNER, 1, False),
        mock.call("learner/2 b", 0, False),
    ]
    assert (rig._params, rig._frozen) == ("trained w0", "frozen base")


def test_what_is_gone_or_does_not_arrive_leaves_a_sampler_as_it_is():
    zero, base, lost = offer("v0"), offer("base"), offer("lost")
    answers = [GoneError("x"), [zero, lost], [zero, base], [lost], GoneError("y")]
    rig = rig_of(answers)
    assert rig.fetch([LEARNER, 0, "r"]) == Fetched(missing="x", is_gone=True)
    assert not rig.has_weights
    assert rig.fetch([LEARNER, 0, "r"]) == Fetched(missing="lost")
    assert not rig.has_weights
    # What trains is here by now.
    assert rig.fetch([LEARNER, 0, "r"]) == Fetched(is_new=True)
    assert rig.has_weights
    assert rig.fetch([LEARNER, 1, "r"]) == Fetched(missing="lost")
    assert rig.fetch([LEARNER, 1, "r"]) == Fetched(missing="y", is_gone=True)
    assert (rig._params, rig.version) == ("trained v0", 0)


@pytest.mark.parametrize(
    "message",
    [[1, 0, "r"], [LEARNER, "0", "r"], [LEARNER, 0, None], [LEARNER, 0], []],
)
def test_a_load_of_another_form_is_refused(message):
    with pytest.raises(wire.WireError):
        rig_of([]).fetch(message)


def duty_of(fetched, others=None):
    """A sampler's duty whose fetch goes so, on hosts whose answers are these."""
    duty: Any = SamplerDuty.__new__(SamplerDuty)
    duty._porter = mock.Mock()
    duty._outbox = Outbox(Clock(), epoch=1)
    duty._rig = mock.Mock(spec=Rig, version=4, num_fetches=1)
    duty._rig.fetch.return_value = fetched
    duty._peers = mock.Mock(spec=Peers, is_alone=others is None)
    duty._peers.gather.return_value = [(answer, []) for answer in others or ()]
    duty._worker = mock.Mock()
    duty._under_way = {}
    duty._clock = Clock()
    return duty


def run_thread(duty):
    """What the sampler's thread was given to do; calls of its worker but these."""
    for command in duty._worker.thread.do.mock_calls:
        what, *args = command.args
        what(*args)
    return [call for call in duty._worker.mock_calls if call[0] != "thread.do"]


def said(duty):
    return wire.from_bytes(duty._outbox.take(0.01)[0])["items"]


GONE = Fetched(missing="ended", is_gone=True)


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (GONE, None, []),
        (Fetched(missing="late"), None, [["unloaded", 4, "late"]]),
        (GONE, [[None, False, 4]], []),
        (Fetched(is_new=True), [["ended", True, 3]], []),
        (
            Fetched(is_new=True),
            [["late", False, 3]],
            [["unloaded", 4, "host 1: late"]],
        ),
        (
            Fetched(is_new=True),
            [[None, False, 3]],
            [["unloaded", 4, "host 1: version must be 4, got 3"]],
        ),
    ],
)
def test_a_sampler_is_silent_of_what_is_gone_on_any_of_its_hosts(own, others, expected):
    duty = duty_of(own, others)
    assert duty.load([LEARNER, 4, "r"], ("127.0.0.1", 1)) is False
    assert run_thread(duty) == []
    assert said(duty) == expected


def test_what_an_epoch_s_first_version_misses_is_said_in_that_epoch():
    duty = duty_of(Fetched(missing="late"))
    duty.reset(2)
    duty.load([LEARNER, 4, "r"], ("127.0.0.1", 1))
    run_thread(duty)
    head = wire.from_bytes(duty._outbox.take(0.01)[0])
    assert (head["epoch"], head["items"]) == (2, [["unloaded", 4, "late"]])


@pytest.fixture
def one(monkeypatch):
    """A sampler's desk, without a line."""
    monkeypatch.setattr(desk, "Contact", mock.Mock())
    monkeypatch.setattr(desk, "wait_until_forsaken", mock.Mock())
    charter = {
        "name": "sampler-0",
        "worker": "sampler-0/1",
        "token": "t",
        "epoch": 1,
        "train": wire.plain(make_train()),
        "host": 0,
        "num_hosts": 1,
    }
    return Desk(charter)


def test_a_load_goes_before_the_admissions_behind_it_however_long_it_takes(one):
    order, loading, may_load = [], threading.Event(), threading.Event()
    done = threading.Event()

    def load(message, depot):
        loading.set()
        assert may_load.wait(30.0)
        order.append(("load", message, depot))

    sampler = mock.Mock(load=load)
    sampler.cancel.side_effect = lambda effect: (order.append(effect.id), done.set())
    one._sampler = sampler
    cancel = [["u", 0, 0], 0, "sampler-0/1"]
    told = [
        ["load", [["127.0.0.1", 1], LEARNER, 4, "r"], 0, 0],
        ["cancel", [cancel], 0, 0],
    ]
    # On whatever thread reads commands, which goes on.
    one.queue(wire.to_bytes([1, told]))
    assert loading.wait(30.0)
    assert order == []
    may_load.set()
    assert done.wait(30.0)
    assert order == [("load", [LEARNER, 4, "r"], ("127.0.0.1", 1)), ("u", 0, 0)]


def test_a_helper_keeps_what_it_has_borrowed_when_a_version_is_sent_again(one):
    done = threading.Event()
    one._sampler = mock.Mock(version=4)
    one._sampler.load.side_effect = [True, False, False]
    one._sampler.weights.return_value = "weights"
    one._helper = helper = mock.Mock()
    helper.hand_in.side_effect = lambda _: done.set()
    load = ["load", [["127.0.0.1", 1], LEARNER, 4, "r"], 0, 0]
    told = [load, ["borrow", [["name"]], 0, 0], load, load, ["hand_in", [7], 0, 0]]
    one.queue(wire.to_bytes([1, told]))
    assert done.wait(30.0)
    names = [name for name, _, _ in helper.mock_calls]
    assert names == ["follow", "borrow", "hand_in"]
    assert one._shelf is not None


def test_an_answer_may_take_longer_than_it_takes_to_kill_a_learner_that_hangs():
    least_s = Cluster(heartbeat_s=1.0).heartbeat_s
    assert ANSWER_BEATS * least_s > DRAIN_S + least_s


@pytest.mark.slow
def test_a_learner_that_computes_hangs_ends_and_starts_again():
    command = [sys.executable, "-m", "tests.runtime.cluster.source_runs"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
