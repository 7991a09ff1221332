import dataclasses

import pytest

from jigsaw_jax import settings
from jigsaw_jax.planning import flops, programs

DECODER = settings.Decoder(
    vocab_size=4096,
    num_layers=3,
    model_dim=512,
    hidden_dim=1536,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    qk_norm=True,
    scan_layers=True,
)
TRAIN = settings.Train(
    updates=1,
    decoder=DECODER,
    sampler=settings.Sampler(slots=16, prompt_buckets=(128,), new_tokens_max=128),
    learner=settings.Learner(rows=4, row_tokens=256, row_shapes=1),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("remat", "rank"),
    [
        pytest.param(None, None, marks=pytest.mark.slow),
        ("nothing", None),
        pytest.param("products", None, marks=pytest.mark.slow),
        pytest.param(None, 16, marks=pytest.mark.slow),
        pytest.param("nothing", 16, marks=pytest.mark.slow),
    ],
)
def test_analytic_operations_are_those_of_the_unrolled_program(remat, rank):
    learner = dataclasses.replace(
        TRAIN.learner, remat=remat is not None, remat_save=remat or "nothing"
    )
    decoder = dataclasses.replace(DECODER, lora=settings.Lora(rank=rank))
    changed = dataclasses.replace(TRAIN, learner=learner, decoder=decoder)
    train = programs.unrolled(changed)
    counted = programs.unrolled_flops(train)
    ours = {
        "gradient": flops.gradient(train, 4),
        "generate": flops.generate(train),
        "prefill": flops.prefill(train),
    }
    # XLA counts elementwise work too: a few operations an activation, where products
    # have 2 x 512 and more. Decoding has more softmax to each product.
    for name, over in (("gradient", 1.01), ("generate", 1.05), ("prefill", 1.01)):
        assert 1 <= counted[name] / ours[name].program < over, name


def test_the_model_needs_half_the_attention_and_no_second_forward_pass():
    learner = dataclasses.replace(TRAIN.learner, remat=True, logprob_chunk=64)
    train = dataclasses.replace(TRAIN, learner=learner)
    counted = flops.gradient(train, 4)
    tokens, trained = 4 * 256, 4 * 128
    layer = 512 * 64 * (2 * 8 + 2 * 4) + 3 * 512 * 1536
    layers = 2 * tokens * 3 * layer
    attention = 3 * 4 * 4 * 256 * 256 * 8 * 64
    head = 2 * trained * 512 * 4096
    assert counted.model == 3 * (layers + attention / 2 + head)
    last = 2 * tokens * 3 * 512 * 1536
    assert counted.program == 4 * (layers + attention + head) - last


def test_the_kernel_computes_the_blocks_that_causality_and_a_window_leave():
    square = 4 * 2 * 1024 * 1024 * 8 * 64.0
    decoder = dataclasses.replace(DECODER, num_layers=1)
    # Blocks of 512: three of four forward; both keys' blocks are one column backward.
    forward, backward = flops.kernel_flops(decoder, 2, 1024)
    assert (forward, backward) == (0.75 * square, 5 / 2 * square)
    # Four blocks a side, and two kernels: 4 + 3 products in the backward pass.
    forward, backward = flops.kernel_flops(decoder, 2, 2048)
    assert forward == 4 * square * 10 / 16
    assert backward == 7 / 2 * forward
    # A window of 512 reaches one block back, of 513 too, of 514 two.
    for window, blocks in ((512, 7), (513, 7), (514, 9)):
        local = dataclasses.replace(decoder, sliding_window=window, global_every=0)
        assert flops.kernel_flops(local, 2, 2048)[0] == 4 * square * blocks / 16


def test_on_a_tpu_the_kernels_output_is_kept_and_its_blocks_are_counted():
    learner = settings.Learner(
        rows=2, row_tokens=1024, row_shapes=1, remat=True, remat_save="products"
    )
    decoder = dataclasses.replace(DECODER, dtype="bfloat16")
    train = dataclasses.replace(TRAIN, decoder=decoder, learner=learner)
    on_cpu = flops.gradient(train, 2)
    on_tpu = flops.gradient(train, 2, platform="tpu")
    assert on_tpu.model == on_cpu.model
    assert on_tpu.attention == sum(flops.kernel_flops(decoder, 2, 1024))
    attention = flops.attention_flops(decoder, 2, 1024)
    # Einsums are whole squares: forward, again, and backward.
    assert on_cpu.attention == 4 * attention
    assert on_cpu.program - on_tpu.program == on_cpu.attention - on_tpu.attention


def test_a_reference_costs_a_forward_pass():
    objective = settings.Objective(kl="k3", kl_coefficient=0.1)
    train = dataclasses.replace(TRAIN, objective=objective)
    assert flops.gradient(train, 4).model == 4 / 3 * flops.gradient(TRAIN, 4).model
