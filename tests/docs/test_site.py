"""The documentation is built strictly, links lead somewhere, and pages ask no host for anything."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

from tests.conftest import violations

ROOT = Path(__file__).parents[2]
HOST = "http://127.0.0.1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings", reason="the docs extra is not installed")
    if not (ROOT / "node_modules" / "katex").is_dir():
        pytest.skip("KaTeX is not installed: run make node_modules (needs npm)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Links(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.add(values.get("id") or values.get("name") or "")
        self.links += [value for key in ("href", "src") if (value := values.get(key)) is not None]


def test_every_link_leads_somewhere(site: Path) -> None:
    pages: dict[str, Links] = {}
    for path in site.rglob("*.html"):
        pages["/" + path.relative_to(site).as_posix()] = links = Links()
        links.feed(path.read_text(encoding="utf-8"))
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlparse(link)
            if parts.scheme or parts.netloc or name == "/404.html":
                assert parts.scheme in ("", "https", "data"), link
                continue
            target, anchor = urldefrag(urljoin(name, link))
            target = unquote(target) + ("index.html" if target.endswith("/") else "")
            anchors = pages[target].anchors if target in pages else {anchor}
            lost = anchor and unquote(anchor) not in {*map(unquote, anchors)}
            if lost or not (site / target.lstrip("/")).is_file():
                broken.append((name, link))
    assert broken == []
    assert len(pages) > 20


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"{HOST}:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_ask_no_other_host_and_set_formulas(
    browser: Any,
    address: str,
    scheme: str,
    axe: str,
) -> None:
    asked: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}theory/")
    page.wait_for_load_state("networkidle")
    assert page.locator(".katex").count() > 50
    assert page.locator(".katex-error").count() == 0
    page.goto(address)
    page.wait_for_load_state("networkidle")
    assert page.locator("article img").count() == 2
    assert violations(page, axe) == []
    page.close()
    assert [url for url in asked if not url.startswith(address)] == []


def test_reference_has_the_public_names(site: Path) -> None:
    import fairmp

    text = "".join(
        path.read_text(encoding="utf-8") for path in (site / "reference").rglob("*.html")
    )
    missing = [name for name in fairmp.__all__ if name[0] != "_" and f".{name}</span>" not in text]
    assert [name for name in missing if f'.{name}"' not in text] == []
