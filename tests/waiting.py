"""Waiting for what another thread or process brings about."""

import threading
import time


def wait_until(condition, timeout_s=20.0):
    """Return when it is so; fail where it has not come about in time."""
    changed = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        changed.wait(0.01)
