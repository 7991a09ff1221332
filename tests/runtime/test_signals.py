import os
import signal

from jigsaw_jax.runtime.signals import Signals


def test_both_signals_ask_while_it_is_entered_and_the_old_handlers_come_back():
    asked = []
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with Signals(lambda: asked.append(1)):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked == [1, 1]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
