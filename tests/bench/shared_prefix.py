"""Print how many FLOPs a shared prompt saves in the learner's compiled program.

Run `python -m tests.bench.shared_prefix`: a prompt of 512 tokens with 8 completions of
128, in rows of their own and behind one prompt; at least 2.2 times fewer are asked.
"""

import dataclasses
import functools

import jax
import numpy as np

from jigsaw_jax import config
from jigsaw_jax import mesh as meshes
from jigsaw_jax.model import decoder as model
from jigsaw_jax.settings import Train
from jigsaw_jax.train import gradient, packing, programs

PROMPT, COMPLETION, SAMPLES = 512, 128, 8


def flops(train: Train, rows: int, row_tokens: int, *, shared: bool) -> float:
    """FLOPs of one gradient program, as XLA counts them."""
    learner = dataclasses.replace(
        train.learner,
        rows=rows,
        row_tokens=row_tokens,
        row_shapes=1,
        shared_prefix=shared,
    )
    sampler = dataclasses.replace(
        train.sampler, prompt_buckets=(PROMPT,), new_tokens_max=COMPLETION
    )
    train = dataclasses.replace(train, learner=learner, sampler=sampler)
    mesh, _ = meshes.build_meshes(train.mesh, jax.devices())
    params = model.init_params(train.decoder, 0)
    own = programs.Programs(train, mesh, params)
    _, totals = own.start()
    rewards_PG = np.zeros((1, SAMPLES), np.float32)
    program = functools.partial(gradient.add_policy_gradients, train)
    lowered = jax.jit(program).lower(
        params,
        gradient.Policies(round=None, reference=None),
        totals,
        batch=packing.empty_batch(rows, packing.shapes_of(train)),
        rewards=gradient.Rewards(
            rewards_PG=rewards_PG,
            lengths_PG=np.zeros((1, SAMPLES), np.int32),
            kl_PG=rewards_PG,
            version=np.int32(0),
        ),
    )
    costs = lowered.compile().cost_analysis()
    assert costs is not None
    return costs["flops"]


def main() -> None:
    """Compile both programs and print their FLOPs and the ratio."""
    jax.config.update("jax_num_cpu_devices", 2)
    train = config.load(["configs/bench/tiny_qwen3.gin"]).train
    # Two layers of SmolLM2-135M: in narrower ones attention outweighs the rest.
    layers = config.load(["configs/smollm2_135m_cpu.gin"]).train.decoder
    decoder = dataclasses.replace(layers, num_layers=2, vocab_size=512)
    train = dataclasses.replace(train, decoder=decoder)
    alone = flops(train, SAMPLES, PROMPT + COMPLETION, shared=False)
    shared = flops(train, 1, PROMPT + SAMPLES * COMPLETION, shared=True)
    print(f"alone {alone:.3e}  shared {shared:.3e}  {alone / shared:.2f} times fewer")


if __name__ == "__main__":
    main()
