"""The page in a real browser: it asks for nothing, complains of nothing, and shows its chart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairmp.datasets import social_network
from fairmp.experiments import single
from fairmp.experiments.trials import one_split

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_report_in_a_browser(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    data = social_network(n=600, average_degree=8)
    make = lambda: single.classifier("projection", 0.0, 3, 3.0, 1.0, 0.0, epochs=5)  # noqa: E731
    record, model = one_split("projection", make, data, split=0, bootstrap=100)
    single.write(data, [record], model, tmp_path)

    asked: list[str] = []
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_load_state("networkidle")
        chart = page.locator("svg").first.bounding_box()
        wide = page.evaluate("document.documentElement.scrollWidth")
        heading = page.locator("h1").inner_text()
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert complaints == []
    assert chart is not None
    assert chart["width"] > 400
    assert chart["height"] > 200
    assert wide <= 1000  # nothing sticks out sideways
    assert heading == "embedded network: a trained classifier"
