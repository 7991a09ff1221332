"""Every family's logits and greedy continuation equal those of transformers."""

import numpy as np
import pytest

from jigsaw_jax.model.families import differing, family_of_config
from tests.parity import cases, compare


@pytest.mark.parametrize("name", cases.CASES)
def test_logits_and_greedy_tokens_equal_those_of_transformers(name, tmp_path):
    case = compare.load(name, tmp_path)
    assert np.abs(case.logits).max() > 2
    differences = compare.logit_differences(case)
    assert max(differences.values()) < compare.LOGITS_MAX, differences
    assert len(set(case.greedy.tolist())) > 10
    assert compare.greedy_agreement(case) == cases.NEW_TOKENS


@pytest.mark.parametrize("name", cases.CASES)
def test_older_and_newer_config_json_describe_one_decoder(name, tmp_path):
    newer = compare.load(name, tmp_path).decoder
    config = cases.CASES[name]
    older = family_of_config(config).decoder(config)
    assert not differing(older, newer)


def test_golden_files_are_small():
    assert sum(path.stat().st_size for path in cases.GOLDEN.iterdir()) < 500_000
