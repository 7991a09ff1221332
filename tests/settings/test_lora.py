import dataclasses

import jax
import pytest

from jigsaw_jax import model
from jigsaw_jax.model import lora
from jigsaw_jax.settings import Learner, Lora, Mesh, Objective, Train, sizes
from tests.settings.test_sizes import TINY


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (("query", "down"), ("query", "down")),
        ((".*",), ("query", "key", "value", "output", "gate", "up", "down")),
        (("down|up", "up"), ("up", "down")),
        (("[kv].*",), ("key", "value")),
    ],
)
def test_targets_are_names_or_patterns_of_whole_names(targets, names):
    assert Lora(rank=1, targets=targets).names == names
    assert Lora(targets=targets).names == ()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rank": 0}, "Lora.rank must be at least 1, got 0"),
        ({"rank": 1, "targets": ("query", "q_proj")}, "match one of .* got 'q_proj'"),
        ({"rank": 1, "targets": ("quer",)}, "got 'quer'"),
        ({"rank": 1, "targets": ()}, "must name a weight"),
        ({"rank": 1, "targets": ("(",)}, "must be a regular expression"),
        ({"rank": 1, "alpha": 0.0}, "Lora.alpha must be greater than 0"),
    ],
)
def test_what_can_not_train_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Lora(**bad)


def test_experts_have_no_adapters():
    changes = {"num_experts": 4, "experts_per_token": 2}
    with pytest.raises(ValueError, match="leave out the experts' gate, up and down"):
        dataclasses.replace(TINY, lora=Lora(rank=2), **changes)
    attention = Lora(rank=2, targets=("query", "output"))
    dataclasses.replace(TINY, lora=attention, **changes)


@pytest.mark.parametrize("targets", [(".*",), ("key", "down")])
def test_adapter_parameters_are_those_of_the_model(targets):
    decoder = dataclasses.replace(TINY, lora=Lora(rank=3, targets=targets))
    params = jax.eval_shape(lambda: model.init_params(decoder, 0))
    trained, frozen = lora.split(params)
    counts = [sum(x.size for x in jax.tree.leaves(t)) for t in (trained, frozen)]
    assert counts == [sizes.num_adapter_params(decoder), sizes.num_params(decoder)]
    assert sizes.num_trained(decoder) == counts[0]
    assert sizes.num_trained(TINY) == counts[1]


def test_memory_holds_one_base_where_sampler_and_learner_share_a_device():
    decoder = dataclasses.replace(TINY, lora=Lora(rank=2))
    objective = Objective(kl="k3", kl_coefficient=0.1)
    base, adapters = (
        4 * count(decoder) for count in (sizes.num_params, sizes.num_adapter_params)
    )
    for shared, of_base in ((True, 1), (False, 2)):
        memory = sizes.memory_bytes(
            Train(
                updates=1,
                decoder=decoder,
                objective=objective,
                learner=Learner(rows=2, row_tokens=96),
                mesh=Mesh(shared=shared),
            )
        )
        held = [memory[f"{who} parameters"] for who in ("learner", "sampler")]
        assert sum(held) == of_base * base + 2 * adapters
        assert memory["reference parameters"] == adapters
        assert memory["optimizer moments (float32)"] == 2 * adapters
