"""A browser, and the accessibility checker that runs in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=BROWSER,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which ``make node_modules`` fetches from npm."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: run make node_modules (needs npm)")
    return AXE.read_text(encoding="utf-8")


def violations(page: Any, axe: str) -> list[str]:
    """Serious and critical accessibility violations of a page."""
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
