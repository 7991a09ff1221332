import pytest

from jigsaw_jax.settings import Simulation
from jigsaw_jax.simulation import compare
from jigsaw_jax.simulation.compare import Check

SIMULATION = Simulation(
    published={
        "any": {"b": {"wait_ratio": (0.1, 0.3)}},
        "one": {"b": {"train_end_s": 100.0, "wait_ratio": (0.2, 0.4)}},
    },
    bounds={"b": {"train_end_s": "within", "wait_ratio": "at_most"}},
)


def check(ours, published, rule):
    return Check(
        scenario="one",
        policy="b",
        number="n",
        ours=ours,
        published=published,
        rule=rule,
    )


@pytest.mark.parametrize(
    ("ours", "published", "rule", "is_met"),
    [
        (107.9, 100.0, "within", True),
        (108.1, 100.0, "within", False),
        (92.1, 100.0, "within", True),
        (91.9, 100.0, "within", False),
        (641.0, (641.0, 712.0), "within", True),
        (640.9, (641.0, 712.0), "within", False),
        (712.1, (641.0, 712.0), "within", False),
        (0.5, (0.3, 0.4), "at_least", True),
        (0.29, (0.3, 0.4), "at_least", False),
        (0.2, (0.3, 0.4), "at_most", True),
        (0.41, (0.3, 0.4), "at_most", False),
        (5.0, None, "within", True),
    ],
)
def test_a_bound_is_met_up_to_its_edge(ours, published, rule, is_met):
    assert check(ours, published, rule).is_met == is_met


def test_a_scenario_says_more_than_any():
    ours = {"a": {}, "b": {"train_end_s": 101.0, "wait_ratio": 0.35}}
    first, second = compare.checks(SIMULATION, "one", ours)
    assert (first.published, first.is_met) == (100.0, True)
    assert (second.published, second.is_met) == ((0.2, 0.4), True)
    first, second = compare.checks(SIMULATION, "two", ours)
    assert (first.published, first.is_met) == (None, True)
    assert (second.published, second.is_met) == ((0.1, 0.3), False)


def test_a_sweep_of_a_scenario_is_compared_with_the_scenario():
    for title, value in (("one", 100.0), ("one SLOTS=3", 100.0), ("oneself", None)):
        found = compare.published(SIMULATION, title, "b", "train_end_s")
        assert found == value


def test_published_values_read_as_people_write_them():
    assert compare.shown(None, is_share=True) == "not published"
    assert compare.shown((641.0, 712.0), is_share=False) == "641-712"
    assert compare.shown((0.307, 0.423), is_share=True) == "30.7%-42.3%"
    assert compare.shown(363.0, is_share=False) == "363"
