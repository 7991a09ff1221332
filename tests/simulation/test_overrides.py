import pytest

from jigsaw_jax.simulation import overrides
from tests.simulation.make_train import make


def test_a_sweep_is_read_with_numbers_as_numbers_and_words_as_text():
    options = ["R=32, 64", "ADMISSION=fifo,frontier_strict", "SIGMA=0.5"]
    assert overrides.parse_sweep(options) == {
        "R": (32, 64),
        "ADMISSION": ("fifo", "frontier_strict"),
        "SIGMA": (0.5,),
    }


def test_a_grid_has_every_choice_and_an_empty_one_has_one():
    swept = overrides.parse_sweep(["R=2,4", "U=1,2"])
    assert overrides.combinations(swept) == [
        {"R": 2, "U": 1},
        {"R": 2, "U": 2},
        {"R": 4, "U": 1},
        {"R": 4, "U": 2},
    ]
    assert overrides.combinations({}) == [{}]


@pytest.mark.parametrize("option", ["R", "=3", "R=", "R=1,,2", "R=1,"])
def test_a_sweep_of_another_form_is_refused(option):
    with pytest.raises(ValueError, match="--sweep must be NAME=VALUE,VALUE"):
        overrides.parse_sweep([option])


def test_a_sweep_that_names_a_setting_twice_is_refused():
    with pytest.raises(ValueError, match="--sweep must name R once"):
        overrides.parse_sweep(["R=1", "R=2"])


def test_letters_and_names_change_the_run_and_nothing_else_does():
    train = make()
    changed = overrides.apply(train, {"R": 8, "Workload.length_mean": 7})
    assert changed.pipeline.groups_per_round == 8
    assert changed.simulation.workload.length_mean == 7.0
    assert changed.decoder is train.decoder
    assert overrides.apply(train, {}) == train


def test_settings_that_only_fit_together_are_set_together():
    changed = overrides.apply(make(), {"R": 9, "U": 3})
    assert changed.pipeline.groups_per_update == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"Pipeline.mod": "sync"},
            "Pipeline.mod must be a setting of the run; did you",
        ),
        ({"U": 3}, "groups_per_round .R. must be a multiple"),
        ({"R": "many"}, "Pipeline.groups_per_round must be int, got 'many'"),
        ({"ADMISSION": "lifo"}, "Pipeline.admission must be one of"),
        ({"Workload.flat_rate": 2}, r"Workload.flat_rate must be in \[0, 1\]"),
        ({"Workload.lengths": "recorded"}, "Workload.record must be set exactly"),
        ({"Workload.lengths": "empirical"}, "length_samples must hold lengths exactly"),
        ({"Costs.source": "plan"}, "Costs.path must be set exactly"),
        ({"Costs.decode_s": 0.0}, "Costs.decode_s must be greater than 0"),
        ({"Fleet.pools": {"a": {"chips": 3}}}, "A key of Fleet.pools"),
        ({"Fleet.pools": {"a": 3}}, "must be a dict"),
    ],
)
def test_what_a_run_can_not_be_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        overrides.apply(make(), values)
