"""An engine whose mesh spans two processes does what it does in one."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest

from tests.sample.two_hosts import sample

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_an_engine_over_two_processes_samples_as_over_one():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.sample.two_hosts", address, "2"]
    processes = [
        subprocess.Popen(
            [*command, str(index)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for index in range(2)
    ]
    try:
        here = sample()
        outs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert len(here) == 5
    for out in outs:
        # Gloo prints too.
        rows = json.loads(out.strip().splitlines()[-1])
        assert [row[:2] for row in rows] == [row[:2] for row in here]
        # Sums of four terms, whose order over hosts is another.
        for row, wanted in zip(rows, here, strict=True):
            assert row[2] == pytest.approx(wanted[2], abs=1e-5)
