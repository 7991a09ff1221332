"""Many lines are read by one thread, each in its order and to its end."""

import threading

import pytest

from jigsaw_jax.runtime.lines.intake import Intake
from jigsaw_jax.runtime.lines.line import LineClosedError
from tests.runtime.lines.pairs import line_pair
from tests.waiting import wait_until

NUM_LINES, NUM_FRAMES = 12, 40
# More than one chunk, so that frames come in pieces.
BODY = bytes(range(256)) * 1000


def test_what_many_lines_bring_comes_whole_and_in_order_on_one_thread():
    found, threads, failures = {}, set(), []

    def take(source, head, body):
        threads.add(threading.get_ident())
        found.setdefault(source, []).append((head, body))

    intake = Intake("test", take, failures.append)
    pairs = [line_pair() for _ in range(NUM_LINES)]
    for number, (_, far) in enumerate(pairs):
        intake.add(f"w/{number}", far)
    sent = [(b"%d" % i, BODY[: (i * 7919) % len(BODY)]) for i in range(NUM_FRAMES)]

    def send(near):
        for head, body in sent:
            near.send(head, body)

    senders = [threading.Thread(target=send, args=(near,)) for near, _ in pairs]
    for one in senders:
        one.start()
    for one in senders:
        one.join()
    wait_until(lambda: sum(map(len, found.values())) == NUM_LINES * NUM_FRAMES)
    assert found == {f"w/{number}": sent for number in range(NUM_LINES)}
    assert len(threads) == 1
    assert not failures
    intake.close()
    for near, _ in pairs:
        near.close()


def test_a_line_that_ends_is_let_go_and_the_others_are_read_on():
    found, failures = [], []
    intake = Intake("test", lambda *told: found.append(told), failures.append)
    (one, far), (other, far_too) = line_pair(), line_pair()
    intake.add("a", far)
    intake.add("b", far_too)
    one.send(b"last")
    one.close()
    wait_until(lambda: len(intake._selector.get_map()) == 1)
    assert found == [("a", b"last", b"")]
    other.send(b"more")
    wait_until(lambda: found[1:] == [("b", b"more", b"")])
    intake.close()
    # Who sends is told, and who comes later too.
    with pytest.raises(LineClosedError):
        other.receive()
    late, far_late = line_pair()
    intake.add("c", far_late)
    with pytest.raises(LineClosedError):
        late.receive()
    assert not failures
    other.close()
    late.close()


def test_what_can_not_be_taken_ends_the_intake_and_is_told():
    failures = []

    def refuse(source, head, body):
        del source, body
        raise ValueError(head)

    intake = Intake("test", refuse, failures.append)
    near, far = line_pair()
    intake.add("a", far)
    near.send(b"bad")
    wait_until(lambda: failures)
    assert (failures[0].thread, str(failures[0].error)) == ("test", "b'bad'")
    with pytest.raises(LineClosedError):
        near.receive()
    near.close()
