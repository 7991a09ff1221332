"""Every family's logits and greedy continuation equal those of transformers."""

import numpy as np
import pytest

from jigsaw_jax.model.families import differing, family_of_config
from tests.parity import cases, compare

QUICK = ("llama3.1", "qwen3_moe", "gemma3")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in cases.CASES
    ],
)
def test_logits_and_greedy_tokens_equal_those_of_transformers(name, tmp_path):
    case = compare.load(name, tmp_path)
    assert np.abs(case.logits).max() > 2
    differences = compare.logit_differences(case)
    assert max(differences.values()) < compare.LOGITS_MAX, differences
    assert len(set(case.greedy.tolist())) > 5
    assert compare.greedy_agreement(case) == cases.NEW_TOKENS


@pytest.mark.parametrize("name", cases.CASES)
def test_older_and_newer_config_json_describe_one_decoder(name):
    older, newer = cases.CASES[name], compare.described(name)["config"]
    assert "rope_parameters" in newer
    assert "rope_parameters" not in older
    decoders = [family_of_config(c).decoder(c) for c in (older, newer)]
    assert not differing(*decoders)


def test_golden_files_are_small():
    assert sum(path.stat().st_size for path in cases.GOLDEN.iterdir()) < 500_000
