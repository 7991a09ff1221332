"""Which places a run has as hosts come and go, without Ray."""

import dataclasses
from unittest import mock

import pytest

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.head import ClusterError, Head, Place
from jigsaw_jax.runtime.cluster.sites import JOINING_S, LEAVING_S, SETTLE_S, Sites
from jigsaw_jax.runtime.cluster.slices import Slice
from jigsaw_jax.runtime.crew import ClusterLostError
from jigsaw_jax.settings import Cluster, Mesh
from tests.runtime.test_local import make_train


class Hosts:
    """A cluster whose slices come and go, and the places of a run there.

    A slice is written "a+b"; "a+b/3" where it says that it has three hosts, "a+b/?"
    where it doesn't say. `later` comes when somebody waits, one after another.
    """

    def __init__(
        self, *slices, is_learners=False, num_local=0, mesh=None, later=(), **cluster
    ):
        self.is_learners = is_learners
        self.later = list(later)
        self.said = []
        self.now_s = 0.0
        self.now(*slices)
        head = mock.Mock(spec=Head, num_local=num_local, slices=lambda: self.slices)
        clock = mock.Mock(spec=Clock, now_s=lambda: self.now_s)
        train = dataclasses.replace(
            make_train(), cluster=Cluster(**cluster), mesh=mesh or Mesh()
        )
        self.sites = Sites(head, train, clock, self.wait)
        self.num = self.sites.open(self.said.append)

    def now(self, *slices):
        self.slices = [self.slice_of(text) for text in slices]
        own = dataclasses.replace(self.slices[0], is_learners=self.is_learners)
        others = [one for one in self.slices[1:] if one.is_whole]
        self.slices = [own, *others]

    def slice_of(self, text):
        names, _, num = text.partition("/")
        nodes = tuple(names.split("+"))
        num_hosts = 0 if num == "?" else int(num or len(nodes))
        is_whole = num_hosts in (0, len(nodes))
        return Slice(nodes=nodes, num_hosts=num_hosts, is_whole=is_whole)

    def wait(self, seconds):
        self.now_s += seconds
        if self.later:
            self.now(*self.later.pop(0))

    def vacant(self, *taken, wish=None):
        found = self.sites.vacant(map(place, taken), wish=wish and place(wish))
        return ["+".join(map(str, one.nodes)) for one in found]


def place(nodes):
    return Place(nodes=tuple(nodes.split("+")))


def test_processes_here_are_replaced_one_for_one():
    here = Hosts("l", num_local=4, mesh=Mesh(fsdp=2), learner_hosts=2)
    assert here.num == 3
    assert here.sites.learner() == Place(nodes=(None, None))
    one = Place(nodes=(None,))
    assert here.sites.vacant([]) == [one] * 3
    assert here.sites.vacant([one] * 2, wish=one) == [one]
    assert here.sites.vacant([one] * 3) == []
    here.sites.leave(one)
    assert here.sites.vacant([one] * 2) == [one]


def test_every_other_slice_has_a_sampler_and_one_that_joins_gets_one():
    there = Hosts("l", "a", "b")
    assert there.num == 2
    assert there.sites.learner() == place("l")
    assert there.vacant() == ["a", "b"]
    assert there.vacant("a") == ["b"]
    there.now("l", "a", "b", "c")
    assert there.vacant("a", "b") == ["c"]
    # What has no room is not wished for with success; what has comes first.
    assert there.vacant("a", wish="c") == ["c", "b"]
    assert there.vacant("a", wish="gone") == ["b", "c"]


def test_the_learner_s_slice_has_samplers_only_if_it_had_at_first():
    alone = Hosts("l")
    assert alone.num == 1
    assert alone.vacant() == ["l"]
    assert alone.vacant("l") == []
    alone.now("l", "a")
    assert alone.vacant("l") == ["a"]
    # All others went: a sampler beside the learner would take its chips.
    for samplers in (0, 2):
        apart = Hosts("l", "a", "b", samplers=samplers)
        apart.now("l", "a")
        assert apart.vacant("a") == []
        apart.now("l")
        assert apart.vacant() == []
        apart.now("l", "a", "c")
        assert apart.vacant("a") == ["c"]


def test_more_samplers_than_slices_go_by_turns_and_come_back_as_many():
    there = Hosts("l", "a", "b", samplers=6)
    assert there.num == 6
    assert there.vacant() == ["a", "b", "l", "a", "b", "l"]
    left = ["l", "l", "a", "a"]
    there.now("l", "a")
    assert there.vacant(*left) == []
    there.now("l", "a", "b2")
    assert there.vacant(*left) == ["b2", "b2"]
    assert there.vacant(*left, "b2") == ["b2"]
    # One that is lost there goes back there, though another has fewer.
    assert there.vacant("a", "b2", "b2", wish="a") == ["a", "l", "l"]


def test_fewer_samplers_than_slices_leave_some_in_reserve():
    there = Hosts("l", "a", "b", "c", samplers=2)
    assert there.vacant() == ["a", "b"]
    assert there.vacant("a", "b") == []
    assert there.vacant("a", wish="b") == ["b"]
    there.now("l", "a", "c")
    assert there.vacant("a", wish="b") == ["c"]
    # Its loss is not told yet.
    assert there.vacant("a", "b") == []


def test_a_learner_s_host_waits_for_samplers_and_never_has_one():
    later = [["l"], ["l", "a"]]
    there = Hosts("l", is_learners=True, samplers=2, later=later)
    places = (
        "there is a place for 1 of Cluster.samplers = 2, a slice each; others start"
    )
    assert there.said[0] == "waiting for a slice that samples"
    assert there.said[1].startswith(places)
    assert there.num == 2
    # The second comes when it comes, as does any in place of one that went.
    assert there.vacant() == ["a"]
    assert there.vacant("a") == []
    there.now("l", "a", "b")
    assert there.vacant("a") == ["b"]
    there.now("l")
    assert there.vacant() == []
    assert Hosts("l", "a", "b", is_learners=True).vacant() == ["a", "b"]


def test_nobody_is_hired_beside_a_dead_host_whose_slice_has_another_form_now():
    there = Hosts("l", "a+b", mesh=Mesh(sampler_tensor=2))
    there.now("l", "a+b2")
    assert there.vacant("a+b") == []
    assert there.vacant() == ["a+b2"]


def test_a_host_that_is_about_to_go_is_left_alone_for_a_while():
    there = Hosts("l", "a", "b")
    there.sites.leave(place("a"))
    assert there.vacant("b", wish="a") == []
    there.now_s = LEAVING_S - 1
    assert there.vacant("b") == []
    # It has not gone.
    there.now_s = LEAVING_S
    assert there.vacant("b") == ["a"]


def test_who_says_again_and_again_that_it_is_about_to_go_is_known():
    there = Hosts("l", "a", "b")
    # Two samplers that were on one host.
    assert not there.sites.leave(place("a"))
    assert not there.sites.leave(place("a"))
    there.now_s = LEAVING_S
    assert not there.sites.leave(place("b"))
    assert there.sites.leave(place("a"))


def test_a_slice_that_does_not_say_how_many_hosts_it_has_is_used_once_it_has_as_many():
    there = Hosts("l", "a+b/?", mesh=Mesh(sampler_tensor=2))
    start_s = there.now_s
    there.now("l", "a+b/?", "c/?", "d+e/?")
    assert there.vacant("a+b") == ["d+e"]
    # It may not be all there, as the other was not.
    assert there.sites.take_unfit() == []
    there.now_s = start_s + JOINING_S - 1
    there.now("l", "a+b/?", "c/?", "d+e/?", "f/?")
    assert there.vacant("a+b", "d+e") == []
    there.now_s = start_s + JOINING_S
    there.now("l", "a+b/?", "c/?", "d+e/?", "f+g/?")
    assert there.vacant("a+b", "d+e") == ["f+g"]
    assert there.sites.take_unfit() == [
        "a slice of 1 hosts takes no sampler: it does not say how many hosts it has, "
        "and the first ones had 2"
    ]
    assert there.vacant("a+b", "d+e", "f+g") == []
    assert there.sites.take_unfit() == []


def test_a_run_that_began_alone_knows_slices_by_its_own_size():
    there = Hosts("l/?")
    there.now("l/?", "a/?", "b+c/?")
    assert there.vacant("l") == ["a"]


def test_a_run_waits_until_no_more_hosts_come_where_slices_don_t_say_how_many():
    coming = [["l", "a/?"]] * 8 + [["l", "a+b/?"]]
    there = Hosts("l", "a/?", mesh=Mesh(sampler_tensor=2), later=coming)
    assert there.vacant() == ["a+b"]
    assert there.now_s >= SETTLE_S


def test_a_learner_waits_for_a_slice_that_fits_and_says_why_none_does():
    three = {"mesh": Mesh(sampler_tensor=2), "is_learners": True}
    there = Hosts("l", "a+b+c", later=[["l", "a+b+c"], ["l", "a+b+c", "d"]], **three)
    assert there.vacant() == ["d"]
    with pytest.raises(ClusterError, match="multiple of 3 sampler devices"):
        Hosts("l", "a+b+c", **three)


def test_half_of_the_learner_s_slice_has_no_sampler():
    there = Hosts("l+m", mesh=Mesh(fsdp=2, sampler_tensor=2))
    assert there.vacant() == ["l+m"]
    there.now("l/2")
    assert there.vacant() == []
    there.now("l+m+n/2")
    assert there.vacant() == []


def test_a_slice_that_does_not_fit_is_told_with_the_rule_and_not_used():
    there = Hosts("l", "a", "b+c+d", mesh=Mesh(sampler_tensor=2))
    assert there.num == 1
    there.now("l", "a", "b+c+d", "e+f")
    assert there.vacant("a") == ["e+f"]
    there.now_s = JOINING_S
    (reason,) = there.sites.take_unfit()
    assert reason.startswith("a slice of 3 hosts takes no sampler: Mesh must have a")


def test_a_learner_s_slice_is_waited_for_until_each_host_is_there_once():
    there = Hosts("l+m", "a", mesh=Mesh(fsdp=2))
    assert there.sites.learner() == place("l+m")
    # One has come back and is not seen yet to have been gone.
    there.now("l+m+n/2", "a")
    there.later = [["l/2", "a"], ["l+n", "a"]]
    assert there.sites.learner() == place("l+n")
    there.now("l/2", "a")
    with pytest.raises(ClusterLostError, match="must have 2 hosts, each once, got 1"):
        there.sites.learner()
    assert there.now_s < JOINING_S + 2


def test_a_run_does_not_begin_on_half_of_the_learner_s_slice():
    there = Hosts("l/2", "a", mesh=Mesh(fsdp=2), later=[["l+m", "a"]])
    assert there.sites.learner() == place("l+m")
    with pytest.raises(ClusterLostError, match="must have 2 hosts, each once, got 1"):
        Hosts("l/2", "a", mesh=Mesh(fsdp=2))


@pytest.mark.parametrize(
    ("slices", "settings", "rule"),
    [
        (("l", "a+b"), {"mesh": Mesh()}, "multiple of 2 sampler devices"),
        (("l+m", "a"), {"learner_hosts": 1}, "learner_hosts must be what the slices"),
        (("l", "a"), {"sampler_hosts": 2, "mesh": Mesh(sampler_tensor=2)}, "got 2"),
    ],
)
def test_slices_that_do_not_fit_are_refused_at_first(slices, settings, rule):
    with pytest.raises(ClusterError, match=rule):
        Hosts(*slices, **settings)
