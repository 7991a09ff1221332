import json

import numpy as np
import pytest

from jigsaw_jax.store import files
from jigsaw_jax.store.metrics import MetricsLog, plain


def test_values_that_json_cannot_hold_become_null(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.record(
        0,
        {
            "nan": float("nan"),
            "inf": np.float32("inf"),
            "float32": np.float32(0.5),
            "count": np.int64(3),
            "none": None,
        },
    )
    log.close()
    (row,) = files.read_lines(tmp_path / "metrics.jsonl")
    assert row == {
        "update": 0,
        "nan": None,
        "inf": None,
        "float32": 0.5,
        "count": 3,
        "none": None,
    }
    assert isinstance(row["count"], int)


def test_a_jax_scalar_is_a_plain_number():
    jnp = pytest.importorskip("jax.numpy")
    assert plain(jnp.float32(0.25)) == 0.25
    assert plain(jnp.float32("nan")) is None


def test_updates_must_grow_also_over_a_restart(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.record(3, {})
    for update in (3, 2):
        with pytest.raises(ValueError, match="update must be greater than 3"):
            log.record(update, {})
    log.close()
    log = MetricsLog(path)
    with pytest.raises(ValueError, match="update must be greater than 3"):
        log.record(3, {})
    log.record(7, {})
    log.close()
    assert [row["update"] for row in files.read_lines(path)] == [3, 7]


def test_a_torn_last_line_does_not_swallow_the_next_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 0}\n{"upd')
    log = MetricsLog(path)
    log.record(1, {})
    log.close()
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [
        0,
        1,
    ]


def test_tensorboard_gets_the_numbers(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard")
    log.record(0, {"reward/mean": 0.5, "reward/none": None})
    log.close()
    (written,) = (tmp_path / "tensorboard").iterdir()
    content = written.read_bytes()
    assert b"reward/mean" in content
    assert b"reward/none" not in content
