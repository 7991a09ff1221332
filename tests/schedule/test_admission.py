import pytest

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.admission import admission
from jigsaw_jax.schedule.gap import Gap
from jigsaw_jax.schedule.lengths import Lengths
from jigsaw_jax.schedule.requests import Requests
from jigsaw_jax.settings import Pipeline


def requests_of(*orders, samples=2, **options):
    requests = Requests(**options)
    for order in orders:
        requests.add(order, [SampleId(f"p{order}", 0, i) for i in range(samples)])
    return requests


def rule(name, width=1):
    settings = Pipeline(admission=name, frontier_groups=width)
    return admission(settings, Gap(samples_per_group=2, width_min=width, width_max=8))


def drain(choice, requests):
    taken = []
    while (order := choice.choose(requests)) is not None:
        taken += requests.take(order)
    return [(int(s.uid[1:]), s.sample) for s in taken]


def test_fifo_takes_requests_as_they_arrived_whatever_their_group():
    requests = requests_of(5, 2)
    assert drain(rule("fifo"), requests) == [(5, 0), (5, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("name", ["fifo", "frontier_priority"])
def test_a_retry_waits_behind_what_waits_already(name):
    requests = requests_of(1, 2)
    choice = rule(name, width=2)
    assert choice.choose(requests) == 1
    (first,) = requests.take(1)
    requests.add(1, [first])
    assert drain(choice, requests) == [(1, 1), (2, 0), (2, 1), (1, 0)]


def test_a_strict_frontier_admits_its_own_groups_and_no_other():
    requests = requests_of(5, 2, 7)
    choice = rule("frontier_strict", width=2)
    assert drain(choice, requests) == [(5, 0), (5, 1), (2, 0), (2, 1)]
    # All of 2 and 5 run: they stay in the frontier until they are serving-complete.
    assert choice.choose(requests) is None
    requests.remove(2)
    assert drain(choice, requests) == [(7, 0), (7, 1)]


def test_a_priority_frontier_goes_first_and_others_fill_what_is_left():
    requests = requests_of(5, 7, 2)
    choice = rule("frontier_priority", width=1)
    assert drain(choice, requests) == [
        (2, 0),
        (2, 1),
        (5, 0),
        (5, 1),
        (7, 0),
        (7, 1),
    ]


def test_a_retry_brings_a_served_group_back_into_the_frontier():
    requests = requests_of(1, 2)
    choice = rule("frontier_strict")
    assert drain(choice, requests) == [(1, 0), (1, 1)]
    requests.remove(1)
    assert choice.choose(requests) == 2
    requests.add(1, [SampleId("p1", 0, 1)])
    assert choice.choose(requests) == 1


def test_a_removed_group_has_no_requests():
    requests = requests_of(1)
    requests.remove(1)
    requests.remove(1)
    assert rule("fifo").choose(requests) is None
    assert requests.frontier(3) == []


def test_an_adaptive_frontier_admits_the_lowest_orders_up_to_its_limit():
    gap = Gap(samples_per_group=2, width_min=2, width_max=8)
    gap.resized(8, 1)
    settings = Pipeline(admission="frontier_adaptive", frontier_groups=2)
    choice = admission(settings, gap)
    requests = requests_of(5, 2, 7, 9, is_by_order=True)

    def admit():
        taken = []
        while (order := choice.choose(requests)) is not None:
            taken.append((order, requests.take(order)[0].sample))
            gap.entered()
        return taken

    # One is alone until a step was timed.
    assert admit() == [(2, 0)]
    gap.timed(1, 0.1)
    assert admit() == [(2, 1), (5, 0), (5, 1)]
    gap.left(is_finished=False)
    # A retry of an early group goes before what arrived in time.
    requests.add(2, [SampleId("p2", 0, 0)])
    assert admit() == [(2, 0)]
    # Company costs nothing: all slots.
    gap.timed(4, 0.1)
    assert admit() == [(7, 0), (7, 1), (9, 0), (9, 1)]


@pytest.mark.parametrize("lengths", [None, Lengths()])
def test_what_was_stopped_goes_on_before_anything_new(lengths):
    requests = requests_of(1, 2, lengths=lengths)
    (stopped,) = requests.take(2)
    assert requests.first() == 1
    requests.put_back(2, stopped)
    assert requests.first() == 2


def test_ranks_that_are_out_of_date_do_not_pile_up():
    requests = Requests()
    for order in range(2000):
        requests.add(order, [SampleId(f"p{order}", 0, i) for i in range(2)])
        requests.take(order)
        requests.take(order)
        requests.remove(order)
    assert requests.first() is None
    assert len(requests._ranked) < 200


def test_an_adaptive_frontier_is_refused_where_nothing_trains_meanwhile():
    with pytest.raises(ValueError, match="'sync'"):
        Pipeline(admission="frontier_adaptive", mode="sync")


def longest_first(known, *orders, samples=2):
    lengths = Lengths()
    for order, length in known.items():
        lengths.add(f"p{order}", length)
    requests = Requests(lengths)
    for order in orders:
        requests.add(order, [SampleId(f"p{order}", 0, i) for i in range(samples)])
    return requests, lengths


def test_longest_first_probes_then_takes_the_unknown_then_the_longest():
    requests, _ = longest_first({1: 10, 2: 90, 3: 50}, 1, 2, 7, 3, 8)
    assert drain(rule("fifo"), requests) == [
        *[(7, 0), (8, 0)],
        *[(7, 1), (8, 1)],
        *[(2, 0), (2, 1), (3, 0), (3, 1), (1, 0), (1, 1)],
    ]


def test_a_finished_sibling_changes_when_a_request_enters():
    requests, lengths = longest_first({1: 10, 2: 20}, 1, 2, 3)
    assert rule("fifo").choose(requests) == 3
    requests.take(3)
    lengths.add("p3", 15)
    requests.rank(3)
    assert drain(rule("fifo"), requests) == [(2, 0), (2, 1), (3, 1), (1, 0), (1, 1)]


def test_another_epoch_of_a_prompt_is_found_although_its_rank_is_out_of_date():
    lengths = Lengths()
    requests = Requests(lengths)
    requests.add(1, [SampleId("main/7/0", 0, 0)])
    requests.add(2, [SampleId("main/7/1", 0, 0)])
    lengths.add("main/7/0", 5)
    requests.rank(1)
    taken = []
    while (order := requests.first()) is not None:
        taken.append(requests.take(order)[0].uid)
    assert sorted(taken) == ["main/7/0", "main/7/1"]


def test_the_longest_of_a_frontier_goes_before_a_longer_one_outside():
    requests, _ = longest_first({1: 10, 2: 20, 3: 90}, 3, 2, 1, samples=1)
    choice = rule("frontier_priority", width=2)
    assert drain(choice, requests) == [(2, 0), (1, 0), (3, 0)]


def test_what_is_put_back_goes_before_all_that_waits_in_its_order():
    requests = requests_of(1, 2)
    (first,), (second,) = requests.take(1), requests.take(1)
    requests.put_back(1, second)
    requests.put_back(1, first)
    assert drain(rule("fifo"), requests) == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_what_is_withdrawn_enters_no_more():
    requests = requests_of(1, 2)
    requests.withdraw(1, SampleId("p1", 0, 0))
    requests.withdraw(2, SampleId("p2", 0, 1))
    requests.withdraw(2, SampleId("p2", 0, 0))
    assert drain(rule("fifo"), requests) == [(1, 1)]
    assert requests.frontier(9) == [1, 2]
