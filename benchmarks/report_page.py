"""Size of a report, time to open it, and time of a slider update, in a real browser.

    python -m benchmarks.report_page          # on Pokec-n, 66,569 nodes

Trains a small model, opens its ``report.html`` in headless Chromium with an empty cache several
times, and moves the slider of the live panel by mouse and by keyboard. An update lasts from the
input event to the frame in which the new figures are painted. Writes ``results/report-page.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import provenance

OPENINGS, MOVES = 10, 30
TRAIN = "fairmp train --data {} --backbone mlp --epochs 50 --splits 1 --target 0.02"
# Time of the handler and layout, and until the frame after it; the slider's own events.
WATCH = """() => {
    window.updates = [];
    const slider = document.querySelector(".panel input[type=range]");
    let start;
    slider.addEventListener("input", (event) => { start = performance.now(); }, true);
    slider.addEventListener("input", () => {
        document.body.getBoundingClientRect();
        const script = performance.now() - start, begun = start;
        requestAnimationFrame(() => setTimeout(() => {
            window.updates.push([script, performance.now() - begun]);
        }));
    });
}"""


def opened(browser: Any, address: str) -> dict[str, float]:
    """Milliseconds until the first content is painted and until the page is loaded."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address, wait_until="load")
    page.locator(".panel .live").wait_for()
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    times: dict[str, float] = page.evaluate("""() => ({
        painted: performance.getEntriesByName("first-contentful-paint")[0].startTime,
        loaded: performance.getEntriesByType("navigation")[0].loadEventEnd,
    })""")
    context.close()
    return times


def moved(browser: Any, address: str) -> list[list[float]]:
    """Milliseconds of each update: handler and layout, and until it is painted."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.evaluate(WATCH)
    slider = page.locator(".panel input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, middle)
    page.mouse.down()
    for k in range(1, MOVES + 1):
        page.mouse.move(box["x"] + 8 + k * (box["width"] - 16) / MOVES, middle)
    page.mouse.up()
    for k in range(MOVES):  # there and back, since a small gap has few steps
        page.keyboard.press("ArrowRight" if k % 2 else "ArrowLeft")
    page.wait_for_timeout(200)
    updates: list[list[float]] = page.evaluate("window.updates")
    page.close()
    return updates


def summary(values: list[float]) -> dict[str, float]:
    """Median and largest of times."""
    return {"median": round(statistics.median(values), 1), "largest": round(max(values), 1)}


def main() -> None:
    """Train, measure, and write the figures."""
    from playwright.sync_api import sync_playwright

    from fairmp.training.run import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="pokec-n-graph")
    parser.add_argument("--report", type=Path, help="measure this one, and train nothing")
    results = Path(__file__).parent / "results" / "report-page.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    chromium = (
        shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report, command = options.report, TRAIN.format(options.data)
        if report is None:
            words = [sys.executable, "-m", *command.split(), "--out", f"{folder}/run"]
            subprocess.run(words, check=True)
            report = Path(folder) / "run" / "report.html"
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        address = report.resolve().as_uri()
        openings = [opened(browser, address) for _ in range(OPENINGS)]
        updates = moved(browser, address)
        content = {
            **provenance("report"),
            "report": command if options.report is None else options.report.name,
            "versions": {**versions(), "chromium": browser.version},
            "megabytes": round(report.stat().st_size / 1e6, 3),
            "openings": OPENINGS,
            "first paint, ms": summary([sample["painted"] for sample in openings]),
            "loaded, ms": summary([sample["loaded"] for sample in openings]),
            "updates": len(updates),
            "update: script and layout, ms": summary([sample[0] for sample in updates]),
            "update: until painted, ms": summary([sample[1] for sample in updates]),
        }
        browser.close()
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
