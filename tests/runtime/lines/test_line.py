"""Frames arrive whole and in order, however the bytes come, or the line has ended."""

import select
import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from tests.runtime.lines.pairs import line_pair

FRAMES = st.lists(
    st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=8
)


@settings(deadline=None, max_examples=30)
@given(frames=FRAMES, cuts=st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_frames_come_whole_however_their_bytes_are_cut(frames, cuts):
    data = b"".join(struct.pack("<II", len(h), len(b)) + h + b for h, b in frames)
    one, two = socket.socketpair(socket.AF_UNIX)
    line = Line.__new__(Line)
    # A pair of sockets of the system's own has no delay to switch off.
    line._sock, line._received = two, bytearray()
    found, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        one.sendall(data[at : at + size])
        found += line.arrived()
        at, turn = at + size, turn + 1
    one.close()
    assert found == frames
    with pytest.raises(LineClosedError):
        line.arrived()
    two.close()


def test_what_is_sent_is_received_at_either_end_by_either_way():
    near, far = line_pair()
    near.send(b"a", b"body")
    near.post(b"b")
    assert far.receive() == (b"a", b"body")
    assert far.receive() == (b"b", b"")
    far.send(b"", b"c")
    assert near.receive() == (b"", b"c")
    near.close()
    with pytest.raises(LineClosedError):
        far.receive()
    far.close()


def test_a_body_goes_into_memory_that_is_there_and_nowhere_beside_it():
    near, far = line_pair()
    memory = bytearray(b"-" * 10)
    near.send(b"a", memoryview(b"body"))
    assert far.receive_into(memoryview(memory)[2:8]) == (b"a", 4)
    assert memory == b"--body----"
    near.send(b"b", b"7 bytes")
    with pytest.raises(LineClosedError, match="at most 6 bytes, got 7"):
        far.receive_into(memoryview(memory)[2:8])
    assert memory == b"--body----"
    near.close()
    far.close()


def test_posting_never_waits_and_the_rest_goes_out_when_there_is_room():
    near, far = line_pair()
    bodies = [bytes([number]) * (1 << 20) for number in range(24)]
    for body in bodies:
        # Nobody reads yet: more than any buffer of the system holds.
        near.post(b"n", body)
    assert near.has_unsent
    received = []

    def read():
        received.extend(bytes(far.receive()[1]) for _ in bodies)

    reader = threading.Thread(target=read)
    reader.start()
    while near.has_unsent:
        near.push()
    reader.join(30.0)
    assert received == bodies
    near.close()
    far.close()


def test_a_frame_longer_than_is_allowed_ends_the_line_before_memory_is_taken():
    near, far = line_pair()
    near.send(b"x" * 100)
    with pytest.raises(LineClosedError, match="at most 99 bytes, got 100"):
        far.receive(99)
    near._sock.sendall(struct.pack("<II", 1 << 31, 1 << 31))
    near.close()
    far.close()
    near, far = line_pair()
    near._sock.sendall(struct.pack("<II", 1 << 31, 1 << 31))
    select.select([far], [], [], 10.0)
    with pytest.raises(LineClosedError, match="at most"):
        far.arrived()
    near.close()
    far.close()


def test_posting_to_an_end_that_is_gone_is_told_by_what_arrives():
    near, far = line_pair()
    far.close()
    for _ in range(100):
        near.post(b"x", b"y" * 10_000)
    assert not near.has_unsent
    select.select([near], [], [], 10.0)
    with pytest.raises(LineClosedError):
        near.arrived()
    near.close()


def test_a_bound_on_waiting_holds_for_receiving():
    near, far = line_pair()
    near.wait_at_most(0.05)
    with pytest.raises(LineClosedError, match="timed out"):
        near.receive()
    near.close()
    far.close()
