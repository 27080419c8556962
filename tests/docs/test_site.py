"""The documentation is built strictly, links lead somewhere, and pages ask no host for anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

from tests.conftest import serious

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


def test_formulas_are_set(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}theory/")
    page.wait_for_load_state("networkidle")
    formulas, errors = page.locator(".katex").count(), page.locator(".katex-error").count()
    page.goto(address)
    pictures = page.locator("article img").count()
    page.close()
    assert formulas > 50
    assert errors == 0
    assert pictures == 2


def test_explainer_follows_its_sliders(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900}, reduced_motion="reduce")
    page.goto(address)
    explainer = page.locator("#explainer")

    def state() -> dict[str, Any]:
        page.evaluate("new Promise(requestAnimationFrame)")
        return json.loads(explainer.get_attribute("data-state") or "{}")

    before = state()
    page.get_by_label("Steps of averaging over friends").focus()
    page.keyboard.press("ArrowRight")
    more_steps = state()
    page.get_by_label("Friendships within a group").fill("50")
    unsorted = state()
    words = explainer.locator(".words").inner_text()
    people = explainer.locator(".person").count()
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert more_steps["settings"]["steps"] == before["settings"]["steps"] + 1
    assert more_steps["measured"] == before["measured"]
    assert unsorted["measured"][3] < more_steps["measured"][3] - 0.3
    fair, plain = more_steps["rates"]["fair"], more_steps["rates"]["plain"]
    assert abs(fair[1] - fair[0]) < 0.01 < 0.2 < abs(plain[1] - plain[0])
    assert f"{100 * unsorted['measured'][0]:.0f} points from a person's own score" in words
    assert people == 200
    assert wide <= 390


def test_home_without_javascript_keeps_the_picture(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#explainer").inner_text().strip()
    assert page.locator("article img").first.is_visible()
    context.close()


OVERFLOWING = """() => [
    ...document.querySelectorAll(".md-typeset__scrollwrap, article pre > code, .katex-display"),
].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.trim().slice(0, 60))"""
STILL = "*, *::before, *::after { transition: none !important; animation: none !important; }"
SHOW_SCHEME = """(scheme) => {
    if (document.body.dataset.mdColorScheme)
        document.body.dataset.mdColorScheme = scheme === "dark" ? "slate" : "default";
}"""


@dataclass(frozen=True)
class View:
    """A width and a colour scheme, and what is checked in it."""

    width: int
    scheme: str
    checks: str


# Contrast takes most of the time. An article has the same colours at every width, so its contrast
# is computed once per scheme, and that of what surrounds it in each view. Every other rule is
# checked at both widths.
QUICK = "resultTypes: ['violations'], selectors: false"
ALL_RULES = f"axe.run({{{QUICK}}})"
CONTRAST = f"axe.run({{runOnly: ['color-contrast'], {QUICK}}})"
CONTRAST_AROUND = f"axe.run({{exclude: ['article']}}, {{runOnly: ['color-contrast'], {QUICK}}})"
OTHER_RULES = f"axe.run({{rules: {{'color-contrast': {{enabled: false}}}}, {QUICK}}})"
VIEWS = (
    View(1280, "light", ALL_RULES),
    View(1280, "dark", CONTRAST),
    View(390, "dark", CONTRAST_AROUND),
    View(390, "light", CONTRAST_AROUND),
    View(390, "light", OTHER_RULES),
)


def test_every_page_fits_is_accessible_and_asks_no_other_host(
    browser: Any, site: Path, address: str, axe: str
) -> None:
    asked: list[str] = []
    found: list[tuple[str, int, str, list[str]]] = []
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    for name in names:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{address}{name}")
        page.add_style_tag(content=STILL)
        page.evaluate(axe)
        if overflowing := page.evaluate(OVERFLOWING):
            found.append((name, 1280, "overflow", overflowing))
        for view in VIEWS:
            page.emulate_media(color_scheme=view.scheme)
            page.evaluate(SHOW_SCHEME, view.scheme)
            page.set_viewport_size({"width": view.width, "height": 900})
            page.evaluate("new Promise(requestAnimationFrame)")
            wide = page.evaluate("document.documentElement.scrollWidth")
            problems = serious(page.evaluate(view.checks))
            if wide > view.width or problems:
                found.append((name, view.width, view.scheme, [f"{wide} px wide", *problems]))
    page.close()
    assert found == []
    assert len(names) > 40
    assert [url for url in asked if not url.startswith(address)] == []


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("install", "Installation"),
        ("predict", "fairmp predict"),
        ("criterion", "Choose a criterion"),
        ("group", "When you may not use the group"),
    ],
)
def test_search_finds_the_right_page_first(
    browser: Any, address: str, words: str, title: str
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.get_by_role("textbox", name="Search").press_sequentially(words)  # it listens to keys
    first = page.locator(".md-search-result__item").first
    first.wait_for()
    text = first.inner_text()
    page.close()
    assert title in text


def test_copying_leaves_out_prompts_and_output(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}tutorials/first-steps/")
    copied = page.evaluate("""() => [...document.querySelectorAll("pre > code")].map((code) => {
        code.setAttribute("data-md-copying", "");
        return code.innerText;
    })""")
    page.close()
    assert "from fairmp import" in copied[0]
    assert not any(">>>" in text or "$ fairmp" in text for text in copied)
    assert not any("torch.Size" in text for text in copied)


def test_every_command_has_its_options(site: Path) -> None:
    from fairmp.cli import COMMANDS

    text = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    assert "options of" not in text
    assert [name for name in COMMANDS if f'id="fairmp-{name}"' not in text] == []
    assert "--no-graph" in text
    assert "--sensitive" in text


def test_reference_has_the_public_names(site: Path) -> None:
    import fairmp

    text = "".join(
        path.read_text(encoding="utf-8") for path in (site / "reference").rglob("*.html")
    )
    missing = [name for name in fairmp.__all__ if name[0] != "_" and f".{name}</span>" not in text]
    assert [name for name in missing if f'.{name}"' not in text] == []
