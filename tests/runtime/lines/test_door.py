"""Nobody comes in without the token, and a stranger keeps nobody waiting."""

import socket

import pytest

from jigsaw_jax.runtime.lines.door import dial, make_token
from jigsaw_jax.runtime.lines.line import Line, LineClosedError
from tests.runtime.lines.pairs import HOST, call, door


def test_who_has_the_token_comes_in_with_a_ticket():
    one, entered = door("secret")
    near = call(one, "secret", "sampler-0")
    ticket, far = entered.get(timeout=10)
    assert ticket == "sampler-0"
    near.send(b"hello")
    assert far.receive()[0] == b"hello"
    for line in (near, far, one):
        line.close()


def test_another_token_is_refused_and_others_still_come_in():
    one, entered = door("secret")
    with pytest.raises(LineClosedError, match=f"no line to {HOST}:{one.address[1]}"):
        call(one, "guess", "sampler-0")
    # One that says nothing, and one that speaks another tongue.
    silent = socket.create_connection(one.address)
    noisy = socket.create_connection(one.address)
    noisy.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    near = call(one, "secret", "sampler-1")
    ticket, far = entered.get(timeout=10)
    assert ticket == "sampler-1"
    assert entered.empty()
    for line in (near, far, one, silent, noisy):
        line.close()


def test_a_door_that_does_not_know_the_token_learns_nothing_and_is_left():
    one, _ = door("other")
    with pytest.raises(LineClosedError):
        call(one, "secret", "sampler-0")
    one.close()


def test_what_one_greeting_showed_opens_no_other():
    one, entered = door("secret")
    with socket.create_server((HOST, 0)) as between:
        # Overhears a whole greeting, and says the same again.
        spy = socket.create_connection(one.address)
        line = Line(spy)
        line.wait_at_most(20.0)
        number, _ = line.receive()
        del between
    honest = socket.create_connection(one.address)
    heard = Line(honest)
    heard.wait_at_most(20.0)
    other, _ = heard.receive()
    assert number != other
    line.send(b"sampler-0", b"0" * 64)
    with pytest.raises(LineClosedError):
        line.receive()
    assert entered.empty()
    for one_line in (line, heard, one):
        one_line.close()


def test_where_nobody_answers_the_address_is_named():
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LineClosedError, match=f"no line to {HOST}:{port}: "):
        dial((HOST, port), "secret", "t", within_s=0.2)


def test_tokens_are_long_and_differ():
    assert len({make_token() for _ in range(8)}) == 8
    assert len(make_token()) >= 32
