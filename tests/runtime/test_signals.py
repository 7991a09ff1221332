import os
import signal
import subprocess
import sys

import pytest

from jigsaw_jax.runtime import signals
from jigsaw_jax.runtime.signals import Signals

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in NUMBERS]


def test_both_signals_ask_while_it_is_entered_and_the_old_handlers_come_back():
    asked = []
    before = handlers()
    with Signals(lambda: asked.append(1)):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked == [1, 1]
    assert handlers() == before


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_both_signals_raise_what_knows_the_exit_code(number, code):
    before = handlers()
    with pytest.raises(KeyboardInterrupt) as caught, signals.interrupting():
        os.kill(os.getpid(), getattr(signal, number))
    assert isinstance(caught.value, signals.SignalledError)
    assert caught.value.code == code
    assert handlers() == before


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize(
    "line",
    [
        "signals.leave_at_once(); {kill}",
        "with signals.interrupting():\n with signals.leaving_at_once():\n  {kill}",
        # The second, whatever the first has interrupted.
        "with signals.interrupting():\n"
        " try:\n  {kill}\n except KeyboardInterrupt:\n  {kill}",
        # Held back while a process begins anew.
        "signal.pthread_sigmask(signal.SIG_BLOCK, signals.NUMBERS); {kill}\n"
        "signals.leave_at_once()",
    ],
)
def test_a_process_that_leaves_at_once_says_one_line(line, number, code):
    kill = f"os.kill(os.getpid(), signal.{number})"
    program = "import os, signal\nfrom jigsaw_jax.runtime import signals\n"
    program += line.format(kill=kill) + "\nprint('still here')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", signals.STOPPED)
