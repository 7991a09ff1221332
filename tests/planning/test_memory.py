import dataclasses

import pytest

from jigsaw_jax import settings
from jigsaw_jax.planning import memory, plan, programs
from jigsaw_jax.planning.chips import parse_slice
from jigsaw_jax.settings import sizes

DECODER = settings.Decoder(
    vocab_size=1024,
    num_layers=2,
    model_dim=64,
    hidden_dim=128,
    num_heads=8,
    num_kv_heads=4,
    head_dim=16,
    dtype="bfloat16",
)
TRAIN = settings.Train(
    updates=1,
    decoder=DECODER,
    sampler=settings.Sampler(slots=16, prompt_buckets=(128,), new_tokens_max=128),
    learner=settings.Learner(rows=4, row_tokens=256),
    mesh=settings.Mesh(fsdp=4, sampler_tensor=4),
)


@pytest.mark.parametrize(("limit", "found"), [(7, 0), (8, 8), (100, 96), (129, 128)])
def test_the_largest_that_fits_is_found_by_doubling_and_halving(limit, found):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= limit

    assert memory.largest(fits, 8) == found
    assert len(asked) <= 10


def test_the_learner_holds_weights_sums_and_moments_spread_over_its_chips():
    held = memory.learner(TRAIN, temporaries=10e6)
    params = sizes.num_params(DECODER)
    # Weights, what was published of them, sums and a micro-batch's own gradients of 4
    # bytes each, moments of 8.
    assert sum(held.fixed.values()) == pytest.approx((4 + 4 + 4 + 8 + 4) * params / 4)
    assert held.scaled["temporaries"] == pytest.approx(10e6 - params)
    assert held.at(2) == pytest.approx(held.total + 10e6 - params)


@pytest.mark.parametrize(("kv_heads", "spread"), [(4, 4), (2, 1)])
def test_a_cache_is_whole_on_each_chip_where_heads_do_not_divide(kv_heads, spread):
    decoder = dataclasses.replace(DECODER, num_kv_heads=kv_heads)
    held = memory.sampler(dataclasses.replace(TRAIN, decoder=decoder))
    cache = 16 * 256 * 2 * 2 * kv_heads * 16 * 2
    assert held.scaled["KV cache"] == cache / spread


def test_nothing_is_refused_that_may_fit():
    held = memory.learner(TRAIN)
    assert memory.refusal("learner", held, int(held.total), 1.0) is None
    assert memory.refusal("learner", held, int(held.at(0.5)), 0.5) is None


@pytest.mark.parametrize("side", ["sampler", "learner"])
def test_a_model_that_fits_in_no_way_is_refused_before_the_compiler_runs(side):
    # As wide as the slices, so that nothing but its size stands against it.
    wide = dict.fromkeys(("vocab_size", "model_dim", "hidden_dim", "num_heads"), 4096)
    decoder = dataclasses.replace(DECODER, num_layers=400, scan_layers=True, **wide)
    mesh = dataclasses.replace(TRAIN.mesh, **_wide(side))
    train = dataclasses.replace(TRAIN, decoder=decoder, mesh=mesh, learner=_rows(mesh))
    with pytest.raises(programs.PlanError) as error:
        plan.make(
            train,
            sampler_topology="v5e:2x2" if side == "sampler" else "v5p:16x16x16",
            learner_topology="v5p:16x16x16",
            name="huge",
        )
    text = str(error.value)
    assert text.startswith(f"{side} must fit in ")
    assert "at the smallest shapes" in text
    assert f"--{side}_topology" in text


def _wide(side):
    if side == "sampler":
        return {"fsdp": 4096, "sampler_tensor": 4}
    return {"fsdp": 1, "tensor": 1, "data": 4096, "sampler_tensor": 4096}


def _rows(mesh):
    return settings.Learner(rows=mesh.data * mesh.fsdp, row_tokens=256)


def test_a_slice_is_read_from_its_name():
    found = parse_slice("--learner_topology", "v5p:2x2x4")
    assert found.num_chips == 16
    with pytest.raises(ValueError, match="--learner_topology must be a generation"):
        parse_slice("--learner_topology", "v9:2x2")


def test_a_slice_with_other_chips_than_the_mesh_is_refused():
    with pytest.raises(ValueError, match=r"as many chips as Mesh.*= 4, got 'v5e:2x4'"):
        plan.make(
            TRAIN, sampler_topology="v5e:2x2", learner_topology="v5e:2x4", name="x"
        )
