"""The learner with adapters: they alone train, over a base that is there once."""

import dataclasses

import jax
import numpy as np
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model
from jigsaw_jax.model import lora
from jigsaw_jax.settings import Lora, Mesh
from jigsaw_jax.train.learner import Learner
from tests.train.make_groups import (
    DECODER,
    OBJECTIVES,
    assert_near,
    assert_same,
    make_groups,
    run,
)
from tests.train.test_learner import PAIRS, mixed_groups, naive_gradient

ADAPTED = dataclasses.replace(DECODER, lora=Lora(rank=3, targets=("query", "down")))


def make_learner(train, *, is_first=False):
    """A learner whose adapters already do something, unless they are the first."""
    params = model.init_params(train.decoder, 0)
    trained, frozen = lora.split(params)
    if not is_first:
        rng = np.random.default_rng(0)
        trained = jax.tree.map(
            lambda x: 0.3 * rng.standard_normal(x.shape).astype(np.float32), trained
        )
    mesh = meshes.learner_mesh(train.mesh, jax.devices())
    learner = Learner(train, mesh, {**frozen, **trained})
    learner.begin_round(0)
    return learner


def pointers(params):
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("kl_loss", {}),
        pytest.param("recompute", {"shared_prefix": True}, marks=pytest.mark.slow),
        pytest.param("kl_reward", {"remat": True}, marks=pytest.mark.slow),
    ],
)
def test_two_updates_are_those_of_a_naive_learner_on_the_adapters_alone(name, changes):
    train = run(OBJECTIVES[name], decoder=ADAPTED, **changes)
    learner = make_learner(train)
    params = frozen = learner.params
    base = pointers(learner.frozen)
    for update, groups in enumerate((mixed_groups(), make_groups())):
        learner.accumulate(groups, update)
        metrics = learner.step(update)
        loss, gradient = naive_gradient(train, groups, params, frozen)
        gradient, _ = lora.split(gradient)
        # As for the whole model, in test_learner.
        assert metrics["loss"] == pytest.approx(float(loss), abs=1e-5)
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
        assert metrics["optim/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        if update == 0:
            stepped = jax.tree.map(
                lambda x, g: x - g / (np.abs(g) / 100 + 1),
                lora.split(params)[0],
                gradient,
            )
            assert_near(learner.export_params(), stepped, atol=1e-5)
        params = learner.params
    assert pointers(learner.frozen) == base


def test_state_and_export_hold_adapters_and_nothing_of_the_base():
    learner = make_learner(run(OBJECTIVES["kl_loss"], decoder=ADAPTED))
    shapes = [x.shape for x in jax.tree.leaves(learner.export_params())]
    assert sorted(shapes) == sorted([(16, 3), (3, 4, 8), (32, 3), (3, 16)])
    state = learner.state()
    for part in ("params", "reference_params"):
        assert [x.shape for x in jax.tree.leaves(state[part])] == shapes
    moments = [x.shape for x in jax.tree.leaves(state["opt_state"]) if x.ndim]
    assert sorted(moments) == sorted(2 * shapes)
    assert not {"ends", "layers"} & set(learner.export_params())


def test_the_base_and_the_reference_take_no_second_copy():
    train = run(OBJECTIVES["kl_loss"], decoder=ADAPTED)
    params = model.init_params(train.decoder, 0)
    mesh = meshes.learner_mesh(train.mesh, jax.devices())
    learner = Learner(train, mesh, params)
    assert pointers(learner.params) == pointers({**learner.frozen, **params})
    _, frozen = lora.split(params)
    assert pointers(learner.frozen) == pointers(frozen)


@pytest.mark.slow
def test_the_first_reference_is_the_base_with_adapters_off():
    learner = make_learner(run(OBJECTIVES["kl_loss"], decoder=ADAPTED), is_first=True)
    learner.accumulate(make_groups(), 0)
    assert learner.step(0)["policy/kl_ref"] == 0
    learner.accumulate(make_groups(), 1)
    assert learner.step(1)["policy/kl_ref"] > 1e-4
    reference = learner.state()["reference_params"]["adapters"]["000"]
    assert not any(np.any(pair["b"]) for pair in reference.values())


def test_warm_up_trains_adapters_and_its_policy_becomes_the_reference():
    learner = make_learner(run(OBJECTIVES["kl_loss"], decoder=ADAPTED), is_first=True)
    before = jax.device_get(learner.frozen)
    losses = [learner.warm_up_step(PAIRS) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    learner.end_warm_up()
    state = jax.device_get(learner.state())
    assert_same(state["reference_params"], state["params"])
    assert_same(jax.device_get(learner.frozen), before)


@pytest.mark.slow
def test_a_restored_learner_goes_on_bit_for_bit():
    train = run(OBJECTIVES["kl_loss"], decoder=ADAPTED)
    learner = make_learner(train)
    learner.accumulate(make_groups(), 0)
    learner.step(0)
    saved = jax.device_get(learner.state())
    learner.accumulate(make_groups(), 1)
    learner.step(1)
    other = make_learner(train, is_first=True)
    other.load_state(saved)
    other.begin_round(0)
    other.accumulate(make_groups(), 1)
    other.step(1)
    assert_same(jax.device_get(other.state()), jax.device_get(learner.state()))


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_eight_devices_and_scanned_layers_step_as_one_device_does(scan):
    def stepped(decoder, **mesh):
        learner = make_learner(run(decoder=decoder, mesh=Mesh(shared=True, **mesh)))
        learner.accumulate(make_groups(), 0)
        metrics = learner.step(0)
        return metrics, jax.device_get(learner.export_params())

    one = stepped(ADAPTED)
    other = dataclasses.replace(ADAPTED, scan_layers=scan)
    eight = stepped(other, data=2, fsdp=2, tensor=2)
    adapters = eight[1]["adapters"]
    if scan:
        adapters = {"000": jax.tree.map(lambda x: x[0], adapters)}
    assert_near(adapters, one[1]["adapters"], atol=1e-5)
    assert eight[0]["loss"] == pytest.approx(one[0]["loss"], abs=1e-5)
