"""What the compiled learner holds in memory."""

import dataclasses
import functools

import jax
import pytest

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.train.programs import Programs

VOCABULARY = 8192
TRAIN = settings.Train(
    updates=1,
    decoder=settings.Decoder(
        vocab_size=VOCABULARY,
        num_layers=1,
        model_dim=16,
        hidden_dim=32,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
    ),
    sampler=settings.Sampler(prompt_buckets=(32,), new_tokens_max=96),
    learner=settings.Learner(rows=4, row_tokens=128, row_shapes=1),
)
# Float32 logits of all trained places of a batch.
WHOLE = 4 * (4 * 96) * VOCABULARY


def _memory(lower, **changes):
    learner = dataclasses.replace(TRAIN.learner, **changes)
    train = dataclasses.replace(TRAIN, learner=learner)
    mesh = meshes.learner_mesh(train.mesh, jax.devices())
    shapes = jax.eval_shape(functools.partial(model.init_params, train.decoder), 0)
    lowered = lower(Programs(train, mesh, shapes))
    analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    gradients = 4 * sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return analysis, gradients


def _lower_policy(programs):
    return programs.lower_policy(4)


@pytest.mark.slow
def test_logits_of_all_tokens_are_never_there_at_once():
    chunked, gradients = _memory(_lower_policy, logprob_chunk=16)
    whole, _ = _memory(_lower_policy)
    # Without chunks they are, so that this test can fail.
    assert whole.temp_size_in_bytes > WHOLE
    # Five arrays of a chunk, each 1/24 of the whole, and activations of the layer.
    assert chunked.temp_size_in_bytes - gradients < WHOLE / 2


def test_sums_and_moments_are_updated_in_place():
    added, gradients = _memory(_lower_policy)
    assert added.alias_size_in_bytes >= gradients
    # Params are not donated: samplers may hold them.
    stepped, _ = _memory(Programs.lower_step)
    assert stepped.alias_size_in_bytes >= 3 * gradients
    assert stepped.output_size_in_bytes - stepped.alias_size_in_bytes < 1.1 * gradients
