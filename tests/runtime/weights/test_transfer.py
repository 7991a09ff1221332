"""JAX's transfer server, whose silent and endless cases the carrier must end."""

import gc
import threading
import weakref

import numpy as np
import pytest

from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.weights import CarrierError
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.carriers.transfer import TransferCarrier
from jigsaw_jax.runtime.weights.piece import Piece
from tests.runtime.weights import two_meshes as two

SIZES = (5, 0, 100_000, 7)
SENT = [np.full(size, place, np.uint8) for place, size in enumerate(SIZES)]
PIECES = [Piece.of(data) for data in SENT]


def carrier(**options):
    return TransferCarrier("127.0.0.1:0", clock=Clock(), **options)


@pytest.fixture(scope="module")
def near():
    return carrier(receivers=2, offer_s=20.0)


def get(far, ticket, sizes=SIZES, wait_s=10.0):
    return far.get(ticket, sizes, Clock().now_s() + wait_s)


def test_a_version_arrives_on_a_mesh_cut_otherwise(near):
    params = two.learner_tree()
    far = carrier()
    offer = two.sender(near).publish(params, 0)
    two.assert_same_bits(two.receiver(params, far).receive(offer), params)


def test_each_receiver_takes_its_own_offer_and_only_once(near):
    ticket = near.put("a", PIECES, 0.0)
    for receiver in range(2):
        got = get(carrier(receiver=receiver), ticket)
        assert [len(piece) for piece in got] == list(SIZES)
        for piece, sent in zip(got, SENT, strict=True):
            np.testing.assert_array_equal(piece, sent)
    clock, far = Clock(), carrier()
    start_s = clock.now_s()
    with pytest.raises(CarrierError, match="not deliver in time"):
        get(far, ticket, wait_s=0.3)
    assert clock.now_s() - start_s < 20
    with pytest.raises(CarrierError, match="receiver must be under 2, got 2"):
        get(carrier(receiver=2), ticket)


def test_an_offer_of_other_sizes_is_an_error_and_the_next_one_arrives(near):
    far = carrier()
    ticket = near.put("a", PIECES, 0.0)
    with pytest.raises(CarrierError, match=r"cannot pull|in time"):
        get(far, ticket, (5, 0, 99_999, 7), wait_s=2.0)
    assert len(get(far, near.put("b", PIECES, 0.0))[2]) == 100_000


def test_an_address_where_nobody_listens_is_given_up_at_the_deadline():
    with pytest.raises(CarrierError, match=r"cannot pull|in time"):
        get(carrier(), ("127.0.0.1:9", (1,)), wait_s=0.3)


@pytest.mark.slow
def test_memory_of_an_offer_that_nobody_takes_is_held_until_it_has_expired():
    near, pause = carrier(offer_s=0.5), threading.Event()
    memory = Arena().lease(1 << 20)
    held = weakref.ref(memory.base)
    near.put("a", [Piece.of(memory)], 0.0)
    del memory
    gc.collect()
    assert held() is not None
    pause.wait(1.0)
    near.put("b", PIECES[:1], 0.0)
    for _ in range(100):
        gc.collect()
        if held() is None:
            return
        pause.wait(0.05)
    raise AssertionError("an expired offer must let go of its memory, and does not")
