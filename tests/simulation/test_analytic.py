import dataclasses
import json

import pytest

from jigsaw_jax import config
from jigsaw_jax.planning.chips import CHIPS, Chip
from jigsaw_jax.settings import sizes
from jigsaw_jax.simulation import analytic, overrides
from jigsaw_jax.simulation.recorded import CostError
from tests.simulation.make_train import ROOT, make

QWEN = config.load([str(ROOT / "configs/sim/qwen3_1p7b_v5e.gin")]).train
PLAN = ROOT / "configs/sim/qwen3_1p7b_v5e.plan.json"
# A thousand bytes and operations a second, so that times can be done by hand.
SLOW = Chip(
    peak_flops=1e3, hbm_bytes=10**9, hbm_bytes_s=1e3, link_bytes_s=1e3, clock_hz=1.0
)


def test_at_a_plans_own_shapes_the_prediction_is_the_plan():
    plan = json.loads(PLAN.read_text())
    train = overrides.apply(QWEN, plan["settings"])
    model = analytic.model_of(train)
    decode = model.decode(train.sampler.slots, train.mesh.sampler_tensor)
    assert decode.steps_s(7, 0, 10) == pytest.approx(
        10 * plan["sampler"]["decode_step_s"]
    )
    training = model.training()
    gradient, step = (
        plan["learner"]["programs"][name]["time_s"] for name in ("gradient", "step")
    )
    assert training.micro_s == ((32, pytest.approx(gradient)),)
    assert training.step_s == pytest.approx(step)
    # Memory too, to what the compiler puts elsewhere.
    hbm = model.memory_bytes()
    assert hbm["learner"] == pytest.approx(plan["learner"]["hbm_bytes"], rel=0.1)
    assert hbm["sampler"] == pytest.approx(plan["sampler"]["hbm_bytes"], rel=0.1)


def test_each_side_takes_the_plan_of_as_many_chips_as_it_has():
    (path,) = QWEN.simulation.costs.more_plans
    four = json.loads((ROOT / path).read_text())
    at = overrides.apply(
        QWEN, {"Mesh.sampler_tensor": 4, "Sampler.slots": 96, "Learner.rows": 32}
    )
    model = analytic.model_of(at)
    assert model.planned() == {"sampler": True, "learner": True}
    step_s = four["sampler"]["decode_step_s"]
    assert model.decode(96, 4).steps_s(1, 0, 1) == pytest.approx(step_s)
    # Four chips for the sampler, eight still for the learner.
    eight = json.loads(PLAN.read_text())["learner"]["programs"]["gradient"]["time_s"]
    assert model.training().micro_s[0][1] == pytest.approx(eight)
    lone = analytic.model_of(overrides.apply(QWEN, {"Mesh.sampler_tensor": 1}))
    assert lone.planned()["sampler"] is False


def test_a_decode_step_reads_weights_and_cache_and_sums_over_chips():
    train = make(Sampler__slots=8, Mesh__sampler_tensor=2)
    kernels_s, wire_s = analytic.decode_parts_s(train, SLOW)
    params = sizes.num_params(train.decoder)
    read_s = (4 * params / 2 + sizes.cache_bytes(train) / 2) / 1e3
    assert kernels_s >= read_s
    layers, width = train.decoder.num_layers, train.decoder.model_dim
    # Two sums a layer; each moves half of the array twice over two links, and hops.
    array_s = 4 * 8 * width * 0.5 / 2e3
    assert wire_s == pytest.approx(2 * layers * 2 * (1e-6 + array_s))


def test_more_chips_make_a_gradient_quicker_until_the_wire_bounds_it():
    chip = CHIPS["v5e"]
    times = []
    for fsdp in (8, 16, 32):
        train = overrides.apply(QWEN, {"Mesh.fsdp": fsdp, "Learner.rows": 32})
        times.append(analytic.gradient_parts_s(train, chip))
    computes, wires = zip(*times, strict=True)
    assert (
        computes[0] == pytest.approx(2 * computes[1]) == pytest.approx(4 * computes[2])
    )
    # A ring of n moves (n - 1) / n of the array, however many it is.
    assert wires[2] == pytest.approx(wires[0], rel=0.15)


def test_memory_falls_with_chips_and_rises_with_rows():
    def hbm(**values):
        named = {name.replace("__", "."): value for name, value in values.items()}
        return analytic.model_of(overrides.apply(QWEN, named)).memory_bytes()

    plain = hbm(Mesh__fsdp=8)
    assert hbm(Mesh__fsdp=16)["learner"] < plain["learner"]
    assert hbm(Learner__rows=64)["learner"] > plain["learner"]
    assert hbm(Sampler__slots=512)["sampler"] > plain["sampler"]


def test_a_plan_of_another_model_and_no_plan_are_refused(tmp_path):
    smaller = dataclasses.replace(QWEN.decoder, num_layers=2)
    other = dataclasses.replace(QWEN, decoder=smaller)
    with pytest.raises(CostError, match="must be a plan of the run's model"):
        analytic.model_of(other)
    for text in ("{}", "nonsense"):
        path = tmp_path / "plan.json"
        path.write_text(text)
        with pytest.raises(CostError, match="must be a plan with its settings"):
            analytic.read_plan(str(path))
    with pytest.raises(CostError, match="must be an existing plan"):
        analytic.read_plan("nowhere.json")


def test_an_unknown_generation_is_refused():
    train = make(Costs__source="analytic", Costs__generation="v9")
    with pytest.raises(CostError, match="must be one of v4, v5e"):
        analytic.model_of(train)
