"""Who is hired, told and lost as workers come and go; and who has which weights."""

from typing import Any
from unittest import mock

import pytest

from jigsaw_jax.runtime import wire
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.batch import Batch
from jigsaw_jax.runtime.cluster.crew import ClusterCrew
from jigsaw_jax.runtime.cluster.ears import Ears
from jigsaw_jax.runtime.cluster.endings import WorkerFailedError
from jigsaw_jax.runtime.cluster.fleet import Fleet
from jigsaw_jax.runtime.cluster.hand import (
    GATHER_S,
    Hand,
    Unsent,
    can_begin,
    index_of,
)
from jigsaw_jax.runtime.cluster.head import Place
from jigsaw_jax.runtime.cluster.offers import Weights
from jigsaw_jax.runtime.cluster.roster import TRIES_MAX, Roster
from jigsaw_jax.runtime.cluster.sites import Sites
from jigsaw_jax.runtime.crew import CrewLostError
from jigsaw_jax.runtime.payloads import Payloads
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.runtime.seat import Seat
from tests.runtime.cluster.test_books import Sent, batch, hearing
from tests.runtime.test_local import make_train

LEARNER = "learner/1 a"


def weights(version, learner=LEARNER, run="r"):
    return Weights(
        version=version,
        run=run,
        start_s=0.0,
        learner=learner,
        depot=("127.0.0.1", 1),
    )


def roster_of(num) -> tuple[Any, dict[str, Hand]]:
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
    sites = mock.Mock(spec=Sites)
    sites.vacant.return_value = []
    sites.learner.return_value = Place()
    sites.take_unfit.return_value = []
    return Roster(seat, fleet, sites), hands


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
        hand.is_joined, hand.pid, hand.sent_s = False, 7, 100.0
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


def test_what_a_sampler_compiles_that_is_late_is_not_called_a_recompilation():
    roster, hands = roster_of(2)
    there, late = hands["sampler-0"], hands["sampler-1"]
    there.facts = late.facts = {"compilations": 2}
    late.is_joined = False
    crew = ClusterCrew.__new__(ClusterCrew)
    crew._roster, crew._fleet = roster, mock.Mock()
    assert len(crew.start()) == 1
    late.facts = {"compilations": 9}
    assert crew.num_compilations == 0
    there.facts = {"compilations": 3}
    assert crew.num_compilations == 1


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


def hiring(roster, hands):
    """Whom the roster hires while it lasts: (name, place), in that order."""
    found = []

    def hire(name, role, place, index):
        assert index == index_of(name)
        found.append((name, place))
        hand = hands[name] = Hand(name, role, 2, place, Sent())
        hand.attach(hand.handle)
        return hand

    return mock.patch.object(roster._fleet, "hire", hire), found


def test_a_life_begins_with_a_sampler_wherever_there_is_room_for_one():
    a, b = (Place(nodes=(node,)) for node in "ab")
    roster, hands = roster_of(2)
    del hands["learner"]
    hands["sampler-2"] = hands.pop("sampler-0")
    roster._fleet.epoch = 2
    roster._sites.learner.return_value = a
    roster._sites.vacant.return_value = [b, b]
    patch, found = hiring(roster, hands)
    with patch:
        roster.open(run_dir="run", step=None, version=0)
    # Those that there are were told, and had their places.
    assert roster._sites.vacant.call_args == mock.call([Place()] * 2, wish=None)
    assert found == [("sampler-0", b), ("sampler-3", b), ("learner", a)]


def test_a_sampler_that_failed_when_the_learner_went_does_not_count_as_warm():
    roster, hands = roster_of(2)
    learner = hands.pop("learner")
    ears = mock.Mock(_roster=roster)
    text = ["sampling", "ValueError", "why", "trace"]
    Ears._hear_failed(ears, hands["sampler-1"], text, mock.Mock(spec=Batch))
    roster._fleet.epoch = 2
    patch, found = hiring(roster, hands)
    with patch:
        roster.open(run_dir="run", step=None, version=0)
    assert found == [("sampler-1", Place()), ("learner", learner.place)]


def test_hosts_that_join_get_a_sampler_also_while_a_life_begins_if_it_has_a_learner():
    there = Place(nodes=("b",))
    roster, hands = roster_of(1)
    patch, found = hiring(roster, hands)
    roster._sites.vacant.return_value = [there]
    roster._sites.take_unfit.return_value = ["of 3 hosts"]
    with patch:
        # Its last sampler may have gone with its host: nobody else would begin it.
        assert not roster.is_open
        roster.look_around()
        assert found == [("sampler-1", there)]
        roster._say.assert_called_once_with("of 3 hosts")
        # Where a learner was its next life goes.
        del hands["learner"]
        roster.look_around()
        assert len(found) == 1


def lose(roster, hands, name, reason="dead"):
    hand = hands.pop(name)
    patch, found = hiring(roster, hands)
    with patch:
        roster.lost(hand, reason)
    return found


def test_a_loss_is_made_good_where_it_was_and_elsewhere_if_that_host_is_gone():
    there = Place(nodes=("b",))
    roster, hands = roster_of(2)
    roster._fleet.losses = 0
    sites = roster._sites
    sites.vacant.return_value = [Place(), there]
    assert lose(roster, hands, "sampler-0") == [("sampler-0", Place())]
    assert sites.vacant.call_args == mock.call([Place()], wish=Place())
    sites.vacant.return_value = [there]
    assert lose(roster, hands, "sampler-0") == [("sampler-0", there)]
    sites.vacant.return_value = []
    assert lose(roster, hands, "sampler-0") == []
    assert lose(roster, hands, "sampler-1") == []
    said = [call.args[0] for call in roster._say.call_args_list]
    assert [text.partition("; ")[2] for text in said] == [
        "another takes its place",
        "another takes its place",
        "",
        "the run waits for a host that joins",
    ]


def test_a_loss_counts_once_another_speaks_there_so_that_hosts_may_go_as_they_like():
    roster, hands = roster_of(9)
    fleet, sites = roster._fleet, roster._sites
    fleet.losses = 0
    names = [f"sampler-{i}" for i in range(9)]
    # All hosts went, and the cluster still lists them.
    sites.vacant.return_value = [Place()]
    for name in names:
        assert lose(roster, hands, name) == [(name, Place())]
    assert fleet.losses == 0
    # Two were processes alone that had died; the rest go with their hosts.
    for name in names[:2]:
        roster.beat(hands[name])
        roster.beat(hands[name])
    assert fleet.losses == 2
    sites.vacant.return_value = []
    for name in names[2:]:
        assert lose(roster, hands, name) == []
    assert fleet.losses == 2
    assert roster._failure is None


def test_what_was_lost_before_an_update_does_not_count_behind_it():
    roster, hands = roster_of(3)
    roster._fleet.losses = 2
    roster._sites.vacant.return_value = [Place()]
    for i in range(3):
        lose(roster, hands, f"sampler-{i}")
    roster.progressed()
    for hand in hands.values():
        roster.beat(hand)
    assert roster._fleet.losses == 0


def test_a_process_that_dies_again_and_again_before_it_speaks_ends_the_run():
    roster, hands = roster_of(2)
    roster._fleet.losses = 0
    roster._sites.vacant.return_value = [Place()]
    num = 0
    while roster._failure is None and num < 100:
        lose(roster, hands, "sampler-0", "no memory")
        num += 1
    assert num == roster._train.cluster.losses_max + 2
    assert "lost without an update between" in str(roster._failure)
    assert "no memory" in str(roster._failure)


def test_a_host_that_says_that_it_goes_is_left_out_before_its_sampler_is_replaced():
    roster, hands = roster_of(1)
    sites = roster._sites
    roster._fleet.losses = 0
    roster._fleet.retire.side_effect = lambda hand: hands.pop(hand.name)
    hand = hands["sampler-0"]
    sites.leave.return_value = False
    roster.leaving(hand)
    assert [name for name, *_ in sites.method_calls] == ["leave", "vacant"]
    assert roster._fleet.losses == 0
    # It said so before, and stayed.
    hands["sampler-0"] = hand
    sites.leave.return_value = True
    roster.leaving(hand)
    assert roster._fleet.losses == 1


def test_a_loss_that_many_tell_of_counts_once_and_not_beside_the_learner_s():
    roster, hands = roster_of(1)
    roster._fleet.losses = 0
    for _ in range(8):
        roster.failed("training", "PayloadLostError", "gone", "")
    assert roster._fleet.losses == 1
    assert type(roster._failure) is CrewLostError
    # A helper's, of a learner that has gone.
    roster._failure = None
    del hands["learner"]
    roster.failed("helping", "PayloadLostError", "gone", "")
    assert roster._fleet.losses == 1
    assert roster._failure is None
    roster.failed("helping", "ValueError", "why", "trace")
    assert type(roster._failure) is WorkerFailedError


def test_a_place_that_a_new_life_has_filled_is_not_filled_again_for_who_was_lost():
    roster, hands = roster_of(1)
    old = hands["sampler-0"]
    hands["sampler-0"] = Hand("sampler-0", "sample", 2, Place(), Sent())
    patch, found = hiring(roster, hands)
    with patch:
        roster.lost(old, "dead")
        assert found == []
        # Another was hired under its name, elsewhere.
        roster._sites.vacant.return_value = [Place()]
        roster.lost(old, "dead")
    assert found == [("sampler-1", Place())]


@pytest.mark.parametrize("kind", ["PayloadLostError", "the learner"])
def test_lives_that_end_without_an_update_between_end_the_run(kind):
    roster, hands = roster_of(1)
    roster._fleet.losses = 0
    losses_max = roster._train.cluster.losses_max
    failures = []
    for _ in range(losses_max + 1):
        roster._failure = None
        if kind == "the learner":
            roster.lost(hands["learner"], "dead")
        else:
            roster.failed("training", kind, "gone", "")
        failures.append(roster._failure)
    assert {type(error) for error in failures[:-1]} == {CrewLostError}
    assert type(failures[-1]) is RuntimeError
    assert str(failures[-1]).startswith(f"{losses_max + 1} workers were lost")


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
