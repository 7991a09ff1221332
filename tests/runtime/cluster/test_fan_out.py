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
from jigsaw_jax.runtime.cluster.hand import (
    DRAIN_S,
)
from jigsaw_jax.runtime.cluster.learner_duty import LearnerDuty
from jigsaw_jax.runtime.cluster.newest import Newest
from jigsaw_jax.runtime.cluster.outbox import Outbox
from jigsaw_jax.runtime.cluster.rig import Fetched, Rig
from jigsaw_jax.runtime.cluster.sampler_duty import SamplerDuty
from jigsaw_jax.runtime.cluster.source import ANSWER_BEATS, GoneError, Source
from jigsaw_jax.runtime.slice.peers import Peers
from jigsaw_jax.runtime.weights import CarrierError, Offer, Receiver, Sender
from jigsaw_jax.settings import Cluster
from tests.runtime.test_local import make_train

ROOT = pathlib.Path(__file__).parents[3]
LEARNER = "learner/1 a"


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
