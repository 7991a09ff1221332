import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from jigsaw_jax import report
from tests.store.make_run import make_run

ROOT = pathlib.Path(__file__).parents[1]


def test_it_prints_the_paths_that_it_wrote(tmp_path, capsys):
    run = make_run(tmp_path / "run", rounds=1)
    trace = tmp_path / "trace.json"
    assert report.main([str(run), "--perfetto", str(trace)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(run / "report.html"),
        str(trace),
    ]
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_directory_without_a_run_is_one_line_and_exit_2(tmp_path, capsys):
    assert report.main([str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "must be a run directory" in said


def test_live_refuses_what_is_no_directory_and_a_port_in_use(tmp_path, capsys):
    assert report.main([str(tmp_path / "none"), "--live"]) == 2
    assert "must be a directory" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert report.main([str(tmp_path), "--live", "--port", port]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"got 127.0.0.1 and {port}" in said


def test_live_serves_until_ctrl_c_and_says_where(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "jigsaw_jax.report", tmp_path, "--live", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(f"{url}metrics", timeout=30) as answer:
            assert b'state="not begun"} 1' in answer.read()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_browser_draws_all_parts_and_runs_nothing_that_a_model_wrote(
    tmp_path, is_finished
):
    run = make_run(tmp_path / "run", rounds=3, is_finished=is_finished)
    report.main([str(run)])
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            f"file://{run / 'report.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    body = re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
    assert "Sampling and learning overlap" in body
    assert body.count("<svg") == 17
    assert ("has not finished" in body) == (not is_finished)
    # The last thing that the script draws, so nothing before it failed.
    assert "<summary>Configuration</summary>" in body
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in body
    assert "<img" not in body
