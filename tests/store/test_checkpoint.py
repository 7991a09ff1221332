import logging
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jigsaw_jax.store import files
from jigsaw_jax.store.checkpoint import Checkpoints
from jigsaw_jax.store.files import StoreError


def _arrays(value=0):
    return {
        "params": {"w": jnp.arange(12.0).reshape(3, 4) + value},
        "moments": (jnp.full((), value, jnp.int32), None, jnp.ones((5,), jnp.bfloat16)),
    }


def _save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, _arrays(step), {"step": step}, wait=True)


def _payload(path):
    """The largest file of a checkpoint: array data."""
    return max(path.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)


def test_arrays_and_record_come_back_together(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    record = {"ledger": [["main/1", 0, 3]], "seed": 2**53 - 1, "uid": "ä", "none": None}
    durable = []
    checkpoints.save(7, _arrays(7), record, on_durable=durable.append)
    checkpoints.close()
    assert durable == [7]

    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest_step() == 7
    assert checkpoints.read_record(7) == record
    arrays, found = checkpoints.restore(7, jax.eval_shape(_arrays))
    checkpoints.close()
    assert found == record
    assert jax.tree.structure(arrays) == jax.tree.structure(_arrays())
    for leaf, expected in zip(
        jax.tree.leaves(arrays), jax.tree.leaves(_arrays(7)), strict=True
    ):
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(leaf, expected)


def test_only_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, kept=2)
    _save(checkpoints, 1, 5, 9, 12)
    checkpoints.close()
    assert checkpoints.steps() == [9, 12]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-00000009",
        "step-00000012",
    ]


def test_nothing_saved_is_no_checkpoint(tmp_path):
    assert Checkpoints(tmp_path / "new").latest_step() is None
    assert Checkpoints(tmp_path / "none", read_only=True).latest_step() is None
    assert not (tmp_path / "none").exists()


def test_durable_is_told_only_when_it_is_whole_on_disk(tmp_path):
    seen = []

    def durable(step):
        found = Checkpoints(tmp_path, read_only=True).latest_step()
        seen.append((step, found, threading.current_thread() is caller))

    caller = threading.current_thread()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, _arrays(), {}, on_durable=durable)
    checkpoints.close()
    assert seen == [(3, 3, False)]


def test_donating_the_arrays_right_after_the_call_does_not_reach_the_file(tmp_path):
    poison = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    checkpoints = Checkpoints(tmp_path)
    x = jnp.arange(500_000.0)
    checkpoints.save(0, {"x": x}, {})
    for _ in range(5):
        x = poison(x)
    x.block_until_ready()
    checkpoints.wait()
    arrays, _ = checkpoints.restore(0, {"x": x})
    checkpoints.close()
    np.testing.assert_array_equal(arrays["x"], np.arange(500_000.0))


def test_a_later_change_of_the_record_does_not_reach_the_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    record = {"groups": [1]}
    checkpoints.save(0, _arrays(), record)
    record["groups"].append(2)
    checkpoints.close()
    assert checkpoints.read_record(0) == {"groups": [1]}


def _mesh(num):
    return jax.make_mesh(
        (num,), ("fsdp",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:num]
    )


def test_restoring_on_another_number_of_devices_gives_the_same_values(tmp_path):
    sharded = NamedSharding(_mesh(8), PartitionSpec("fsdp"))
    values = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"w": jax.device_put(values, sharded)}, {}, wait=True)
    for num in (4, 1):
        target = NamedSharding(_mesh(num), PartitionSpec("fsdp"))
        abstract = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=target)
        arrays, _ = checkpoints.restore(1, {"w": abstract})
        assert arrays["w"].sharding == target
        np.testing.assert_array_equal(arrays["w"], values)
    checkpoints.close()


def _truncate(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "truncated": lambda step: _truncate(_payload(step)),
    "one bit": lambda step: _flip(_payload(step)),
    "file gone": lambda step: _payload(step).unlink(),
    "record": lambda step: (step / "record.json").write_text("{}"),
    "no manifest": lambda step: (step / "manifest.json").unlink(),
    "manifest": lambda step: _truncate(step / "manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path, damage, caplog):
    checkpoints = Checkpoints(tmp_path)
    _save(checkpoints, 1, 2)
    checkpoints.close()
    damage(tmp_path / "step-00000002")
    checkpoints = Checkpoints(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.latest_step() == 1
    assert "step-00000002 is damaged" in caplog.text
    arrays, record = checkpoints.restore(1, _arrays())
    assert record == {"step": 1}
    np.testing.assert_array_equal(arrays["params"]["w"], _arrays(1)["params"]["w"])
    # The run goes on, comes to the same step again, and that one counts.
    _save(checkpoints, 2)
    checkpoints.close()
    assert Checkpoints(tmp_path).latest_step() == 2


def test_none_usable_is_an_error_that_names_the_directory(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    _save(checkpoints, 1, 2)
    checkpoints.close()
    for step in ("step-00000001", "step-00000002"):
        _truncate(_payload(tmp_path / step))
    with pytest.raises(StoreError, match="no usable checkpoint in") as raised:
        Checkpoints(tmp_path, read_only=True).latest_step()
    assert str(tmp_path) in str(raised.value)


def test_a_reader_changes_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    _save(checkpoints, 1, 2)
    checkpoints.close()
    (tmp_path / "saving-00000003").mkdir()
    _truncate(_payload(tmp_path / "step-00000002"))
    before = sorted(p.name for p in tmp_path.iterdir())
    assert Checkpoints(tmp_path, read_only=True).latest_step() == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_what_a_kill_left_is_removed_at_the_next_start(tmp_path):
    left = tmp_path / "saving-00000004" / "arrays"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    assert Checkpoints(tmp_path).latest_step() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"w": jnp.zeros((2, 3))}, r"\['w'\] is \[\[2, 2\], 'float32'\]"),
        ({"w": jnp.zeros((2, 2), jnp.bfloat16)}, "'bfloat16'"),
        ({"w": jnp.zeros((2, 2)), "b": jnp.zeros(1)}, r"\['b'\] is missing"),
        ({}, "missing in the run"),
    ],
)
def test_arrays_of_another_run_are_refused_by_name(tmp_path, wanted, said):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"w": jnp.zeros((2, 2))}, {}, wait=True)
    with pytest.raises(StoreError, match=said):
        checkpoints.restore(1, wanted)
    checkpoints.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write checkpoints to"):
        Checkpoints(tmp_path / "file" / "checkpoints")


def _fail_to_write(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(files, "write_text", refuse)


def test_a_background_save_that_fails_is_told_at_once(tmp_path, monkeypatch):
    failed = queue.SimpleQueue()
    checkpoints = Checkpoints(tmp_path, on_failed=failed.put)
    _save(checkpoints, 1)
    _fail_to_write(monkeypatch, StoreError("no space"))
    checkpoints.save(2, _arrays(), {})
    error = failed.get(timeout=30)
    assert isinstance(error, StoreError)
    assert "cannot save checkpoint 2" in str(error)
    assert "[1] are kept" in str(error)
    with pytest.raises(StoreError, match="cannot save checkpoint 2"):
        checkpoints.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_background_save_never_dies_in_silence(tmp_path, monkeypatch):
    failed = queue.SimpleQueue()
    checkpoints = Checkpoints(tmp_path, on_failed=failed.put)
    _fail_to_write(monkeypatch, ZeroDivisionError("ours"))
    checkpoints.save(1, _arrays(), {})
    assert "ours" in str(failed.get(timeout=30))
    with pytest.raises(StoreError, match="ours"):
        checkpoints.close()


def _program(body):
    return f"""
import resource, signal, sys
import jax
jax.config.update("jax_platforms", "cpu")
import jax.numpy as jnp
import numpy as np
from jigsaw_jax.store.checkpoint import Checkpoints
from jigsaw_jax.store.files import StoreError
checkpoints = Checkpoints(sys.argv[1], kept=2)
{body}
"""


FULL_DISK = _program("""
small = {"w": jnp.ones(10)}
checkpoints.save(1, small, {}, wait=True)
# No file may grow over 100 kB: to the writer that is a disk without room.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
noise = np.random.default_rng(0).normal(size=300_000)
told = []
checkpoints.save(2, {"w": noise}, {}, on_durable=told.append)
try:
    checkpoints.wait()
except StoreError as error:
    print(error)
assert not told
checkpoints.save(3, small, {}, wait=True)
print(checkpoints.steps())
checkpoints.close()
""")


def test_a_full_disk_is_one_clear_line_and_older_checkpoints_stay(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    message, steps = done.stdout.strip().split("\n")
    assert message.startswith(f"cannot save checkpoint 2 to {tmp_path}: ")
    assert message.endswith("checkpoints [1] are kept")
    assert steps == "[1, 3]"
    assert done.stderr == ""
    assert done.returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-00000001",
        "step-00000003",
    ]


SAVE_FOR_EVER = _program("""
first = checkpoints.latest_step() or 0
for step in range(first + 1, 1_000_000):
    w = jnp.full((400_000,), step, jnp.float32)
    checkpoints.save(step, {"w": w}, {"step": step},
                     on_durable=lambda step: print(step, flush=True))
""")


@pytest.mark.slow
def test_there_is_always_a_whole_checkpoint_after_a_kill(tmp_path):
    rng = np.random.default_rng(0)
    last = 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=pathlib.Path(__file__).parents[2],
        )
        assert process.stdout is not None
        # Saves take tens of milliseconds: kills fall into every part of one.
        told = int(process.stdout.readline())
        deadline_s = time.monotonic() + rng.uniform(0, 0.3)
        while time.monotonic() < deadline_s:
            told = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        told = int(rest.split()[-1]) if rest.split() else told

        checkpoints = Checkpoints(tmp_path)
        step = checkpoints.latest_step()
        assert step is not None
        assert step >= told > last
        arrays, record = checkpoints.restore(step, {"w": jnp.zeros((400_000,))})
        checkpoints.close()
        assert record == {"step": step}
        np.testing.assert_array_equal(arrays["w"], np.full(400_000, step))
        assert not list(tmp_path.glob("damaged-*"))
        last = step
