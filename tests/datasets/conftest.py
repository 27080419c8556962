"""A separate cache per test, the real data, and a web server on the loopback interface."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "fairmp"


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRMP_DATA", raising=False)
    monkeypatch.delenv("FAIRMP_MIRROR", raising=False)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooch waits a second or more between two attempts."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.fixture
def real_data() -> Path:
    named = os.environ.get("FAIRMP_DATA")
    if not named:
        pytest.skip("FAIRMP_DATA is unset: it names the folder with the raw files")
    return Path(named)


class Server:
    """A local web server whose pages are functions of how often they were requested."""

    def __init__(self) -> None:
        self.pages: dict[str, Callable[[int], tuple[int, bytes, int | None]]] = {}
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                page = server.pages.get(self.path)
                code, body, length = (
                    page(server.requests.count(self.path)) if page else (404, b"", 0)
                )
                self.send_response(code)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def serve(self, path: str, body: bytes, *, claim: int | None = None) -> None:
        self.pages[path] = lambda _: (200, body, claim)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # Requests to the loopback interface must not go through a proxy.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server()
    yield running
    running.close()
