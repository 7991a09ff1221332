"""Serves a page that follows a run, and its numbers for Prometheus.

    GET /            the page, which asks for /data.json every two seconds
    GET /data.json   what it shows; with ?stamp=S only {"stamp": S} if nothing is new
    GET /metrics     Prometheus text

On localhost whoever has an account here may read; a request must name this host, so
that no page of another site can reach it through a name of its own (DNS rebinding). On
any other address each request must carry a token: as `Authorization: Bearer TOKEN`, or
once as `?token=TOKEN`, which becomes a cookie. Nothing is ever written or executed.
"""

import hmac
import http.server
import importlib.resources
import ipaddress
import json
import secrets
import socket
import urllib.parse
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any

from jigsaw_jax.store import prometheus
from jigsaw_jax.store.watch import Watch

SCRIPTS = ("dom.js", "charts.js", "timeline.js", "rollouts.js", "live.js")
PATHS = ("/", "/data.json", "/metrics")
COOKIE = "jigsaw_token"
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveServer(http.server.ThreadingHTTPServer):
    """Serves one run; call `serve_forever`, and `server_close` at the end.

    Args:
      watch: of the run.
      host: address or name to listen on.
      port: 0 takes a free one.

    Attributes:
      token: what a request must carry; None on localhost.
      url: to open in a browser, the token with it.

    Raises:
      OSError: the address can't be listened on.
    """

    daemon_threads = True

    def __init__(self, watch: Watch, *, host: str, port: int) -> None:
        self.watch = watch
        self.token = None if is_loopback(host) else secrets.token_urlsafe(32)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/"
        if self.token is not None:
            self.url += f"?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle is nobody's error."""


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach an address or a name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(http.server.BaseHTTPRequestHandler):
    server: LiveServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "jigsaw"
    sys_version = ""
    # A connection that says nothing holds a thread no longer.
    timeout = 10

    def do_GET(self) -> None:
        """Answer, or refuse."""
        path, _, words = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(words))
        if self.server.token is None:
            if not is_loopback(self._named_host()):
                self._say(HTTPStatus.FORBIDDEN, "the Host must be localhost\n")
                return
        elif self._is_token(query.get("token")):
            self._keep_token(path)
            return
        elif not any(map(self._is_token, self._tokens())):
            self._say(HTTPStatus.UNAUTHORIZED, "a token is needed; see the terminal\n")
            return
        if path not in PATHS:
            self._say(HTTPStatus.NOT_FOUND, "nothing is here\n")
            return
        self.server.watch.refresh()
        match path:
            case "/":
                self._page()
            case "/data.json":
                self._data(query.get("stamp"))
            case _:
                self._metrics()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line, and would show the token."""

    def _named_host(self) -> str:
        named = self.headers.get("Host", "")
        try:
            return urllib.parse.urlsplit(f"//{named}").hostname or ""
        except ValueError:
            return ""

    def _tokens(self) -> list[str]:
        found = []
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer":
            found.append(value.strip())
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            cookie = SimpleCookie()
        if COOKIE in cookie:
            found.append(cookie[COOKIE].value)
        return found

    def _is_token(self, given: str | None) -> bool:
        if given is None or self.server.token is None:
            return False
        # In constant time, so that no part of it can be found by its delay.
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _keep_token(self, path: str) -> None:
        """Away from the address line, where histories and screenshots keep it."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", path if path in PATHS else "/")
        self.send_header(
            "Set-Cookie",
            f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/",
        )
        self._end_headers(0)

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; "
            f"script-src 'nonce-{nonce}'; frame-ancestors 'none'; base-uri 'none'"
        )
        body = _html(nonce)
        self._say(HTTPStatus.OK, body, _HTML, {"Content-Security-Policy": policy})

    def _data(self, stamp: str | None) -> None:
        watch = self.server.watch
        if stamp == str(watch.stamp):
            # Ages grow though nothing is new.
            facts = watch.facts()
            data = {"stamp": watch.stamp} | {k: facts[k] for k in ("status", "workers")}
        else:
            data = watch.page()
        self._say(HTTPStatus.OK, json.dumps(data, allow_nan=False), _JSON)

    def _metrics(self) -> None:
        text = prometheus.text(self.server.watch.facts())
        self._say(HTTPStatus.OK, text, prometheus.CONTENT_TYPE)

    def _say(
        self,
        status: HTTPStatus,
        body: str,
        kind: str = _TEXT,
        headers: dict[str, str] | None = None,
    ) -> None:
        # A folder's name may hold bytes that are no text.
        encoded = body.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self._end_headers(len(encoded))
        self.wfile.write(encoded)

    def _end_headers(self, length: int) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _html(nonce: str) -> str:
    folder = importlib.resources.files("jigsaw_jax.store") / "html"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    parts = {
        "STYLE": read("page.css") + read("live.css"),
        "SCRIPT": "\n".join(map(read, SCRIPTS)),
        "NONCE": nonce,
    }
    return "".join(parts.get(piece, piece) for piece in read("live.html").split("%%"))
