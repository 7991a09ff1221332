"""A box out of parts, written band by band: the bytes and checksum of the whole."""

import numpy as np
import pytest

from jigsaw_jax.runtime.weights import piece
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.checksum import checksum
from jigsaw_jax.runtime.weights.piece import Piece

WHOLE = np.arange(7 * 6, dtype=np.uint32).reshape(7, 6)
CUTS = {
    "rows": [np.s_[0:3, 0:6], np.s_[3:7, 0:6]],
    "columns": [np.s_[0:7, 4:6], np.s_[0:7, 0:4]],
    "a grid": [np.s_[a, b] for a in (np.s_[0:2], np.s_[2:7]) for b in (np.s_[0:1],)]
    + [np.s_[0:7, 1:6]],
    "one": [(slice(None), slice(None))],
}


@pytest.mark.parametrize("band_bytes", [1, 24, 70, 10_000])
@pytest.mark.parametrize("cut", CUTS)
def test_a_box_is_the_same_however_it_lies_in_parts_and_bands(
    cut, band_bytes, monkeypatch
):
    monkeypatch.setattr(piece, "BAND_BYTES", band_bytes)
    box = Piece(WHOLE.shape, [(WHOLE[place], place) for place in CUTS[cut]])
    into_u8 = np.full(box.num_bytes, 255, np.uint8)
    box.write(into_u8)
    whole_u8 = WHOLE.reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(into_u8, whole_u8)
    assert box.checksum == checksum(whole_u8)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_a_box_of_hardly_anything_is_written_too(shape, monkeypatch):
    monkeypatch.setattr(piece, "BAND_BYTES", 1)
    values = np.full(shape, 7, np.uint16)
    box = Piece(shape, [(values, (slice(None),) * len(shape))])
    into_u8 = np.zeros(box.num_bytes, np.uint8)
    box.write(into_u8)
    assert (into_u8.view(np.uint16) == 7).all()
    assert box.checksum == checksum(into_u8)


def test_values_that_lie_column_by_column_are_sent_row_by_row():
    columns = np.asfortranarray(WHOLE)
    box = Piece(WHOLE.shape, [(columns, (slice(None), slice(None)))])
    (data_u8,) = piece.gather([box], Arena())
    np.testing.assert_array_equal(data_u8, WHOLE.reshape(-1).view(np.uint8))
    assert box.checksum == checksum(data_u8)
