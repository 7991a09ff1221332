import http.client
import json
import re
import shutil
import socket
import subprocess
import threading

import pytest

from jigsaw_jax.store import live, prometheus
from jigsaw_jax.store.run_dir import RunDir
from jigsaw_jax.store.watch import Watch
from tests.store.make_run import HOSTILE, make_run


@pytest.fixture
def serve(tmp_path):
    """Start a server; every one is closed at the end."""
    path = make_run(tmp_path / "run", rounds=2, is_finished=False)
    open_servers = []

    def start(host="127.0.0.1"):
        watch = Watch(RunDir(path), now_s=lambda: 0.0)
        server = live.LiveServer(watch, host=host, port=0)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        open_servers.append((server, thread))
        return server

    yield start
    for server, thread in open_servers:
        server.shutdown()
        server.server_close()
        thread.join()


def _get(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=names)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def test_it_serves_the_page_the_data_and_the_metrics(serve):
    server = serve()
    assert server.token is None
    status, headers, page = _get(server, "/")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    nonce = re.findall(r"script-src 'nonce-(\S+?)'", policy)[0]
    assert f'<script nonce="{nonce}">' in page
    assert "%%" not in page
    assert headers["X-Frame-Options"] == "DENY"
    status, headers, text = _get(server, "/data.json")
    data = json.loads(text)
    assert data["updates"] > 0
    assert data["rollouts"]["groups"]
    status, headers, text = _get(server, "/metrics")
    assert headers["Content-Type"] == prometheus.CONTENT_TYPE
    assert "jigsaw_reward_mean{" in text


def test_nothing_that_a_model_wrote_is_in_the_page_itself(serve):
    server = serve()
    groups = json.loads(_get(server, "/data.json")[2])["rollouts"]["groups"]
    texts = [member["text"] for group in groups for member in group["members"]]
    assert HOSTILE in texts
    assert "onerror" not in _get(server, "/")[2]
    assert _get(server, "/data.json")[1]["Content-Type"] == "application/json"


def test_what_is_not_new_is_not_sent_again(serve):
    server = serve()
    stamp = json.loads(_get(server, "/data.json")[2])["stamp"]
    again = json.loads(_get(server, f"/data.json?stamp={stamp}")[2])
    assert again["stamp"] == stamp
    assert set(again) == {"stamp", "status", "workers"}


@pytest.mark.parametrize("path", ["/x", "/../summary.json", "/config.gin", "//["])
def test_nothing_else_is_served(serve, path):
    assert _get(serve(), path)[0] == 404


@pytest.mark.slow
def test_clients_that_say_nothing_keep_nobody_from_the_page(serve):
    server = serve()
    address = ("127.0.0.1", server.server_address[1])
    silent = [socket.create_connection(address, timeout=30) for _ in range(100)]
    for one in silent[:50]:
        one.sendall(b"GET / HTTP/1.1\r\nHost: local")
    assert _get(server, "/data.json")[0] == 200
    for one in silent:
        one.close()


@pytest.mark.parametrize("query", ["stamp=" + "9" * 60_000, "&" * 60_000, "%ff=%00"])
def test_an_odd_query_is_answered(serve, query):
    assert _get(serve(), f"/data.json?{query}")[0] == 200


def test_a_line_that_is_too_long_is_refused(serve):
    assert _get(serve(), "/data.json?" + "9" * 70_000)[0] == 414


def test_numbers_that_json_has_not_and_lines_half_written_stop_nothing(serve):
    server = serve()
    run = server.watch._run
    with run.metrics.open("a") as log:
        log.write('{"update": 99, "reward/mean": NaN}\n{"update": 100, "rew')
    with run.evaluations.open("a") as log:
        log.write('{"updates": 9, "eval/accuracy": Infinity}\n')
    for path in run.rollouts.glob("*"):
        path.unlink()
    data = json.loads(_get(server, "/data.json")[2], parse_constant=pytest.fail)
    assert data["newest"] == {"update": 99, "reward/mean": None}
    assert data["rollouts"]["groups"] == []


def test_other_methods_are_refused(serve):
    server = serve()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("POST", "/", body="x")
    assert connection.getresponse().status == 501
    connection.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("[::1]:8600", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("[bad", 403),
    ],
)
def test_on_localhost_a_request_must_name_localhost(serve, host, status):
    assert _get(serve(), "/data.json", Host=host)[0] == status


def test_elsewhere_every_request_needs_the_token(serve):
    server = serve("0.0.0.0")
    assert server.token is not None
    assert len(server.token) >= 32
    for path in ("/", "/data.json", "/metrics", "/x"):
        assert _get(server, path)[0] == 401
        assert _get(server, path, Authorization="Bearer wrong")[0] == 401
        assert _get(server, path, Cookie="jigsaw_token=wrong")[0] == 401
        assert _get(server, f"{path}?token=wröng".replace("ö", "%C3%B6"))[0] == 401
    bearer = f"Bearer {server.token}"
    assert _get(server, "/metrics", Authorization=bearer)[0] == 200
    assert server.url.endswith(f"?token={server.token}")


def test_the_token_of_the_address_becomes_a_cookie_and_leaves_the_address(serve):
    server = serve("0.0.0.0")
    status, headers, _ = _get(server, f"/?token={server.token}")
    assert status == 303
    assert headers["Location"] == "/"
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert _get(server, "/", Cookie=cookie.split(";")[0])[0] == 200
    # No way to send a reader elsewhere.
    away = _get(server, f"//evil.example/?token={server.token}")[1]["Location"]
    assert away == "/"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.4", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_what_no_other_host_reaches(host, is_local):
    assert live.is_loopback(host) == is_local


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_the_run_and_runs_nothing_that_a_model_wrote(serve, tmp_path):
    assert CHROMIUM is not None
    words = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
    done = subprocess.run(
        [
            *(CHROMIUM, *words, "--disable-background-networking", "--disable-sync"),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=6000",
            "--dump-dom",
            serve().url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    body = re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
    for part in ("Workers", "Where samples are", "Curves", "Rollouts"):
        assert f"<h2>{part}</h2>" in body
    assert "Sampling and learning overlap" in body
    assert body.count("<svg") > 5
    assert "no answer" not in body
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in body
    assert "<img" not in body
