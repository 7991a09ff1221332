"""A streamed run against its own groups, sampled and trained again one by one."""

import itertools
import json

import jax
import numpy as np
import pytest

from jigsaw_jax.records import Group, GroupId, SampleId
from jigsaw_jax.reward.score import score
from jigsaw_jax.runtime.build import build
from jigsaw_jax.runtime.evaluation import completion_text
from jigsaw_jax.runtime.sampler import request_for
from jigsaw_jax.sample.loop import SampleLoop
from tests.runtime.test_local import (
    assert_close,
    final_params,
    make_train,
    rollout_rows,
    run,
)

pytestmark = pytest.mark.slow


def sample_group(train, parts, loop, position):
    """The group of one prompt with nothing else in the engine."""
    prompt = parts.source.prompt(position)
    ids = [SampleId(prompt.uid, 0, i) for i in range(train.pipeline.samples_per_group)]
    for sample_id in ids:
        loop.submit(request_for(train, prompt, sample_id, train.sampler))
    found = {}
    while not loop.is_idle:
        found |= {sample.id: sample for sample in loop.step().finished}
    samples = tuple(found[sample_id] for sample_id in ids)
    texts = [completion_text(parts.tokenizer, sample) for sample in samples]
    return Group(
        id=GroupId(prompt.uid, 0),
        order=position,
        prompt=prompt,
        samples=samples,
        scores=tuple(score(prompt, text, train.reward) for text in texts),
    )


def test_a_run_with_two_updates_a_round_equals_a_serial_replay_of_its_order(tmp_path):
    train = make_train(updates=6, size=2)
    streamed = run(train, tmp_path)
    rows = rollout_rows(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    # Positions in the order in which the learner took their groups.
    orders = [
        list(dict.fromkeys(r["order"] for r in rows if r["update"] == update))
        for update in range(6)
    ]
    assert sorted(itertools.chain(*orders)) == list(range(12))
    tokens = {
        (row["order"], row["sample"]): tuple(
            token for segment in row["segments"] for token in segment["tokens"]
        )
        for row in rows
    }

    parts = build(train)
    learner, loop = parts.learner, None
    for update in range(6):
        if update % 2 == 0:
            params = parts.engine.load_params(
                parts.channel.send(learner.export_params())
            )
            loop = SampleLoop(parts.engine, params, update // 2)
            learner.begin_round(update // 2)
        for position in orders[update]:
            group = sample_group(train, parts, loop, position)
            for sample in group.samples:
                assert sample.tokens == tokens[position, sample.id.sample]
                assert {sample.version_min, sample.version_max} == {update // 2}
            learner.accumulate([group], update)
        metrics = learner.step(update)
        for name in ("loss", "optim/grad_norm", "policy/kl_behavior"):
            assert metrics[name] == pytest.approx(logged[update][name], abs=1e-5)
    # Six Adam steps of 1e-2 on gradients that differ by their order of summation.
    assert_close(jax.tree.map(np.asarray, learner.params), final_params(streamed), 1e-5)
    # The second update of a round is off its policy, so the replay shows that too.
    assert [r["policy/kl_behavior"] > 1e-4 for r in logged] == [False, True] * 3
