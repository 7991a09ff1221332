"""How far sampler and learner are apart: `python -m tests.parity.mismatch`.

Samples from a small random decoder and takes the logprob of every sampled token again
in the learner's packed rows, with everything else equal. A row a variant: what is
varied, the mean and the largest difference, with shapes left to each side and with the
canonical option, which must be 0; exit 1 if it is not.
"""

import argparse
import dataclasses
import functools
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from jigsaw_jax import model
from jigsaw_jax.records import Prompt, Sample, SampleId
from jigsaw_jax.runtime.sampler import request_for
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.loop import SampleLoop
from jigsaw_jax.settings import Decoder, Learner, Mesh, Pipeline, Sampler, Train
from jigsaw_jax.train import gradient, packing, sequences

DECODER = Decoder(
    vocab_size=62,
    num_layers=2,
    model_dim=64,
    hidden_dim=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    qk_norm=True,
    init_scale=0.3,
)
TILE = 16
NUM_PROMPTS, NUM_SAMPLES = 6, 4
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "temperature 0.3": {"temperature": 0.3},
    "temperature 2": {"temperature": 2.0},
    "long rows": {"row_tokens": 128},
    "short rows": {"row_tokens": 21},
    "shared prefix": {"shared_prefix": True, "row_tokens": 64},
    "longer buckets": {"prompt_buckets": (16,)},
    "scanned layers": {"scan_layers": True},
}


class Pairs(NamedTuple):
    """Logprobs of the same tokens, one entry a token.

    sampler: as they were drawn.
    learner: of the learner's forward pass.
    with_gradient: of the same pass inside the program of its gradient.
    """

    sampler: np.ndarray
    learner: np.ndarray
    with_gradient: np.ndarray


def run_of(decoder: Decoder = DECODER, **changes: Any) -> Train:
    """A run of tiny sizes; each change goes to the settings that have its name."""

    def fitted(cls: type, **start: Any) -> Any:
        names = {f.name for f in dataclasses.fields(cls)} & changes.keys()
        return cls(**(start | {name: changes[name] for name in names}))

    names = {f.name for f in dataclasses.fields(Decoder)} & changes.keys()
    return Train(
        updates=1,
        decoder=dataclasses.replace(decoder, **{n: changes[n] for n in names}),
        mesh=Mesh(shared=True),
        learner=fitted(Learner, rows=4, row_tokens=48, row_shapes=1),
        sampler=fitted(Sampler, slots=12, prompt_buckets=(4, 8), new_tokens_max=12),
        pipeline=Pipeline(
            groups_per_round=NUM_PROMPTS,
            groups_per_update=NUM_PROMPTS,
            samples_per_group=NUM_SAMPLES,
        ),
    )


def measure(train: Train, seed: int = 0) -> Pairs:
    """Samples some groups with random weights and asks the learner for the same."""
    params = model.init_params(train.decoder, seed)
    prompts = _prompts(train, seed)
    samples = _sampled(train, params, prompts)
    by_uid = {prompt.uid: group for group, prompt in enumerate(prompts)}
    trajectories = [
        sequences.from_sample(
            prompts[by_uid[sample.id.uid]].tokens,
            sample,
            place=0,
            group=by_uid[sample.id.uid],
        )
        for sample in samples
    ]
    forward = jax.jit(functools.partial(_logprobs, train))
    backward = jax.jit(functools.partial(_logprobs_and_gradient, train))
    found = []
    for batch in packing.pack(trajectories, packing.shapes_of(train)):
        on_device = jax.device_put(batch)
        learner = (forward(params, on_device), backward(params, on_device)[1])
        found.append([x[batch.mask_RM] for x in (batch.logprobs_RM, *learner)])
    return Pairs(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _prompts(train: Train, seed: int) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    longest = min(train.sampler.prompt_buckets[-1], 8)
    lengths = rng.integers(1, longest + 1, NUM_PROMPTS)
    return [
        Prompt(
            uid=f"prompt-{i}",
            tokens=tuple(rng.integers(0, train.decoder.vocab_size, n).tolist()),
            text="",
            answer="",
            task="test",
        )
        for i, n in enumerate(lengths)
    ]


def _sampled(train: Train, params: Any, prompts: list[Prompt]) -> list[Sample]:
    engine = Engine(train.decoder, train.sampler, None, stop_tokens=(3,))
    loop = SampleLoop(engine, engine.load_params(params), version=0)
    for prompt in prompts:
        for g in range(NUM_SAMPLES):
            sample = SampleId(prompt.uid, 0, g)
            loop.submit(request_for(train, prompt, sample, train.sampler))
    samples: list[Sample] = []
    while not loop.is_idle:
        samples.extend(loop.step().finished)
    return samples


def _logprobs(train: Train, params: Any, batch: packing.Batch) -> jax.Array:
    return _pair(train, params, batch)[0]


def _pair(train: Train, params: Any, batch: packing.Batch) -> Any:
    return gradient.token_logprobs(train, params, batch, train.sampler.temperature)


def _logprobs_and_gradient(train: Train, params: Any, batch: packing.Batch) -> Any:
    def loss(params: Any) -> Any:
        logprobs, entropies = _pair(train, params, batch)
        return (logprobs + entropies).sum(), logprobs

    return jax.grad(loss, has_aux=True)(params)


def main() -> int:
    """Prints the table; returns the exit code."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    jax.config.update("jax_platforms", "cpu")
    print(f"{'':16} {'own shapes: mean':>17} {'max':>8} {'canonical: max':>15}")
    is_bad = False
    for name, changes in VARIANTS.items():
        own = measure(run_of(**changes))
        canonical = measure(run_of(**changes, canonical_tile=TILE))
        apart = np.abs(own.sampler - own.with_gradient)
        worst = np.abs(canonical.sampler - canonical.with_gradient).max()
        is_bad |= bool(worst != 0)
        print(f"{name:16} {apart.mean():17.1e} {apart.max():8.1e} {worst:15.1e}")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
