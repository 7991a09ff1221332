import numpy as np
import pytest

from jigsaw_jax.runtime.weights import CarrierError, FolderCarrier
from jigsaw_jax.runtime.weights.piece import Piece
from tests.runtime.weights import two_meshes as two

PIECES = [Piece.of(np.arange(size, dtype=np.uint8)) for size in (5, 0)]


@pytest.fixture
def folder(tmp_path):
    return FolderCarrier(tmp_path / "weights", is_durable=False)


def test_a_version_comes_out_of_files_as_it_went_in(folder):
    params = two.learner_tree()
    offer = two.sender(folder).publish(params, 0)
    two.assert_same_bits(two.receiver(params, folder).receive(offer), params)


def test_a_sampler_that_finds_the_posted_offer_needs_no_learner(folder, tmp_path):
    params = two.learner_tree()
    other = FolderCarrier(tmp_path / "weights")
    assert other.find() is None
    folder.post(two.sender(folder).publish(params, 4))
    found = other.find()
    assert found is not None
    receiver = two.receiver(params, other)
    two.assert_same_bits(receiver.receive(found), params)
    assert receiver.version == 4


def test_pieces_come_back_and_are_gone_when_dropped(folder):
    ticket = folder.put("a", PIECES, 0.0)
    got = folder.get(ticket, [5, 0], 0.0)
    assert [piece.tolist() for piece in got] == [[0, 1, 2, 3, 4], []]
    folder.drop(ticket)
    folder.drop(ticket)
    with pytest.raises(CarrierError, match="cannot read"):
        folder.get(ticket, [5, 0], 0.0)


@pytest.mark.parametrize("sizes", [[4, 0], [6, 0], [5, 1]])
def test_a_file_of_another_size_is_refused(folder, sizes):
    ticket = folder.put("a", PIECES, 0.0)
    with pytest.raises(CarrierError, match=r"must have \d bytes"):
        folder.get(ticket, sizes, 0.0)


def test_a_write_that_fails_leaves_nothing_behind(folder, tmp_path):
    (tmp_path / "weights" / "a").mkdir(parents=True)
    with pytest.raises(CarrierError, match="cannot write"):
        folder.put("a", PIECES, 0.0)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["a"]


@pytest.mark.parametrize("ticket", ["../a", "/etc/passwd", "", "..", "a/b"])
def test_a_ticket_does_not_lead_out_of_the_folder(folder, ticket):
    with pytest.raises(CarrierError, match="plain file name"):
        folder.get(ticket, [1], 0.0)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"manifest": ""}', '{"manifest": "", "tickets": []}']
)
def test_a_posted_file_that_is_no_offer_is_refused(folder, tmp_path, text):
    folder.put("a", PIECES, 0.0)
    (tmp_path / "weights" / "offer.json").write_text(text)
    with pytest.raises(CarrierError, match=r"must hold"):
        folder.find()
