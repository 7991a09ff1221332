"""TensorBoard files, written behind the caller's back."""

import struct

import pytest
from tensorboardX.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]
)

from jigsaw_jax.store.board import Board
from jigsaw_jax.store.files import StoreError


def events(path):
    """The events of a file: each has its length in front, and two checksums around."""
    content, found = path.read_bytes(), []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    return found


def test_the_numbers_of_each_update_are_there_under_their_names_and_in_order(tmp_path):
    board = Board(tmp_path / "tensorboard")
    for update in range(3, 8):
        board.write(update, {"reward/mean": update / 4, "tokens/sampled": update})
    board.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = [
        (event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in events(path)
        if event.summary.value
    ]
    assert found == [
        (update, {"reward/mean": update / 4, "tokens/sampled": float(update)})
        for update in range(3, 8)
    ]


def test_a_directory_that_cannot_be_is_told_at_once_and_raised_at_the_end(tmp_path):
    (tmp_path / "file").write_text("")
    failed = []
    board = Board(tmp_path / "file" / "board", on_failed=failed.append)
    board.write(0, {"reward/mean": 0.5})
    with pytest.raises(StoreError, match="Not a directory"):
        board.close()
    assert [type(error) for error in failed] == [StoreError]
