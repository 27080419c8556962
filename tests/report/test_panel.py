"""The live panel shows what ``debias`` returns, by mouse, keyboard and without JavaScript."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairmp.metrics.evaluation import CRITERIA
from fairmp.postprocessing.solver import debias
from fairmp.report.document import html
from fairmp.report.from_results import from_corrected
from fairmp.report.panel import TARGETS, most_accurate, panel, reliability, table, unreached
from tests.conftest import violations

N = 400
RNG = np.random.default_rng(5)
SEX = np.where(RNG.random(N) < 0.4, "women", "men")
Y = (RNG.random(N) < np.where(SEX == "men", 0.55, 0.35)).astype(int)
P = 1 / (1 + np.exp(-(RNG.normal(size=N) + 1.4 * Y - 1 + 0.9 * (SEX == "men"))))
COMMAND = "fairmp debias p.csv --criterion {criterion} --target {target}"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    result = panel(P, SEX, Y, target=0.3, command=COMMAND, class_names=["no", "yes"])
    assert result is not None
    return result


@pytest.fixture(scope="module")
def report(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = debias(P, SEX, target=0.02, y=Y, full_output=True)
    curves = reliability(P, SEX, Y)
    content = {**result.to_dict(), "panel": record, "reliability": curves, "command": COMMAND}
    path = tmp_path_factory.mktemp("panel") / "report.html"
    path.write_text(html(from_corrected(json.loads(json.dumps(content)))), encoding="utf-8")
    return path


def solved(criterion: dict[str, Any], target: float) -> Any:
    return debias(P, SEX, target=target, criterion=criterion["name"], y=Y, full_output=True)


def test_steps_are_what_debias_returns(record: dict[str, Any]) -> None:
    assert [criterion["gap"] for criterion in record["criteria"]] == list(CRITERIA.values())
    for criterion in record["criteria"]:
        steps = criterion["steps"]
        gap = record["before"][criterion["gap"]]
        assert steps[0]["target"] == 0
        targets = [step["target"] for step in steps]
        assert targets[-2] < gap <= targets[-1]
        assert set(targets) - {0.3} <= set(TARGETS)
        for step in (steps[0], steps[len(steps) // 2], steps[-1]):
            result = solved(criterion, step["target"])
            decided = np.asarray(result.predictions) > 0.5
            assert step["accuracy"] == pytest.approx((decided == Y).mean(), abs=1e-5)
            rates = [decided[group == SEX].mean() for group in record["groups"]]
            assert np.ravel(step["rates"]) == pytest.approx(rates, abs=1e-5)
            assert step["dp"] == pytest.approx(abs(rates[0] - rates[1]), abs=1e-5)
            changed = decided != (P > 0.5)
            assert step["changed"] == [changed[group == SEX].sum() for group in record["groups"]]
            assert step["total"] == changed.sum()


def test_panel_contains_aggregates_only(record: dict[str, Any]) -> None:
    small, large = (len(json.dumps(panel(np.tile(P, k), np.tile(SEX, k), None))) for k in (1, 4))
    assert large < 1.2 * small
    assert len(json.dumps(record)) < 40_000


def test_panel_without_labels_has_parity_only_and_without_gap_nothing() -> None:
    alone = panel(P, SEX)
    assert alone is not None
    assert [criterion["name"] for criterion in alone["criteria"]] == ["demographic_parity"]
    assert alone["before"]["accuracy"] is None
    assert panel([0.2, 0.8, 0.2, 0.8], ["a", "a", "b", "b"]) is None
    assert reliability(P, SEX, None) == []
    # Of several classes the most likely one is looked at, right for half of those with a label.
    curve, _ = reliability([[0.625, 0.25, 0.125]] * 6, [0] * 5 + [1], [0, 0, 1, 2, -1, 0])
    assert (curve["predicted"], curve["observed"], curve["counts"]) == ((0.625,), (0.5,), (4,))


def test_commands_have_their_criterion(record: dict[str, Any]) -> None:
    parity, opportunity, _, odds = (criterion["command"] for criterion in record["criteria"])
    assert parity == "fairmp debias p.csv --criterion demographic-parity --target {target}"
    assert "--criterion equal-opportunity" in opportunity
    assert "--criterion equalized-odds" in odds


@pytest.mark.parametrize("target", [0.0, 0.123, 0.9])
def test_panel_starts_at_criterion_and_target(target: float) -> None:
    record = panel(P, SEX, Y, criterion="equal_opportunity", target=target)
    assert record is not None
    first = record["criteria"][record["start"]]
    assert first["name"] == "equal_opportunity"
    assert first["steps"][first["start"]]["target"] == min(target, first["steps"][-1]["target"])
    assert all("{" not in criterion["command"] for criterion in record["criteria"])


def test_table_has_every_step(record: dict[str, Any]) -> None:
    header, rows = table(record, "people")
    assert len(rows) == sum(len(criterion["steps"]) for criterion in record["criteria"])
    first = record["criteria"][0]["steps"][0]
    assert rows[0][header.index("ΔDP")] == f"{100 * first['dp']:.1f}"
    assert rows[0][-1] == f"{100 * first['rates'][-1][-1]:.1f}"


def test_choice_that_leaves_its_own_gap_is_not_recommended(record: dict[str, Any]) -> None:
    changed = copy.deepcopy(record)
    opportunity = next(c for c in changed["criteria"] if c["gap"] == "eo")
    first = opportunity["steps"][opportunity["start"]]
    first["accuracy"] = 1.0
    assert str(most_accurate(changed)).startswith("equal opportunity")
    for step in opportunity["steps"]:
        step["eo"] = changed["before"]["eo"]
    assert not str(most_accurate(changed)).startswith("equal opportunity")
    gap = f"{100 * changed['before']['eo']:.1f}"
    sentence = f"Equal opportunity does not reach its target of 0: {gap} is the smallest gap found."
    assert sentence in unreached(changed)
    page = html({"title": "t", "panel": changed})  # type: ignore[typeddict-item]
    assert sentence in page


def shown(page: Any) -> dict[str, float]:
    """The numbers on the page, which have one digit."""
    keys = ("accuracy", "dp", "eo", "fpr", "odds", "changed")
    texts = {key: page.locator(f"[data-figure={key}]").inner_text() for key in keys}
    rates = page.locator("[data-rate]").all_inner_texts()
    texts |= {f"rate {g}": text for g, text in enumerate(rates)}
    return {key: float(text.split()[0]) for key, text in texts.items()}


def expected(criterion: dict[str, Any], step: dict[str, Any]) -> Any:
    result = solved(criterion, step["target"])
    gaps = {one.criterion: one.decisions_after for one in (*result.criteria, *result.others)}
    numbers = {key: 100 * gaps[name] for name, key in CRITERIA.items()}
    numbers |= {"accuracy": 100 * result.accuracy_after, "changed": result.changed}
    numbers |= {f"rate {g}": 100 * one.decided_after[1] for g, one in enumerate(result.groups)}
    return pytest.approx(numbers, abs=0.0501)


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (768, "dark"), (1280, "light"), (1280, "dark")]
)
def test_slider_and_switch_show_what_debias_returns(
    browser: Any, report: Path, record: dict[str, Any], width: int, scheme: str
) -> None:
    asked: list[str] = []
    problems: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(report.as_uri())
    slider = page.locator(".panel input[type=range]")
    steps = record["criteria"][0]["steps"]
    assert slider.input_value() == str(record["criteria"][0]["start"])
    assert shown(page) == expected(record["criteria"][0], steps[int(slider.input_value())])
    # By mouse: drag the handle to the middle of the track.
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 8, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    place = int(slider.input_value())
    assert abs(place - (len(steps) - 1) / 2) <= 1
    assert shown(page) == expected(record["criteria"][0], steps[place])
    # By keyboard: arrow keys on the slider, then on the switch.
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert shown(page) == expected(record["criteria"][0], steps[place + 1])
    target = f"{100 * steps[place + 1]['target']:g} points"
    assert slider.get_attribute("aria-valuetext") == target
    assert page.locator(".panel output").inner_text() == target
    assert str(steps[place + 1]["target"]) in page.locator(".copy pre").inner_text()
    page.locator(".panel input[type=radio]").first.focus()
    page.keyboard.press("ArrowDown")
    slider.focus()
    page.keyboard.press("End")
    second = record["criteria"][1]
    assert int(slider.input_value()) == len(second["steps"]) - 1
    assert shown(page) == expected(second, second["steps"][-1])
    assert "equal-opportunity" in page.locator(".copy pre").inner_text()
    seconds = page.evaluate("""() => {
        const slider = document.querySelector(".panel input[type=range]");
        const start = performance.now();
        for (let k = 0; k < 20; k += 1) {
            slider.value = String(k % Number(slider.max));
            slider.dispatchEvent(new Event("input"));
            document.body.getBoundingClientRect();
        }
        return (performance.now() - start) / 20 / 1000;
    }""")
    assert seconds < 0.05
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert problems == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_page_with_panel_is_accessible(
    browser: Any, report: Path, width: int, scheme: str, axe: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(report.as_uri())
    assert violations(page, axe) == []
    page.close()


def test_copy_button_copies_the_command(browser: Any, report: Path, record: dict[str, Any]) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(report.as_uri())
    page.get_by_role("button", name="Copy the command").click()
    page.get_by_text("Copied", exact=True).wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert copied == record["criteria"][0]["command"].replace("{target}", "0.3")


def test_copied_command_gives_the_figures_shown(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the shell to the report, by the slider and the button back to the shell."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    table = pd.DataFrame({"score": P, "sex": SEX, "hired": np.where(Y, "yes", "no")})
    table["weight"], ends = RNG.integers(1, 4, N), RNG.integers(0, N, (800, 2))
    table.to_csv(tmp_path / "all people.csv", index=False)
    pd.DataFrame(ends).to_csv(tmp_path / "friends.csv", index=False)
    command = "fairmp debias 'all people.csv' --probabilities score --sensitive sex --label hired"
    command += " --positive yes --weight weight --edges friends.csv --k 2 --target 0.3 --out first"
    run = partial(subprocess.run, shell=True, cwd=tmp_path, check=True, capture_output=True)
    run(command)
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto((tmp_path / "first" / "report.html").as_uri())
    page.locator(".panel input[type=radio]").nth(1).check()
    page.locator(".panel input[type=range]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    promised = shown(page)
    page.get_by_role("button", name="Copy the command").click()
    page.get_by_text("Copied", exact=True).wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert "--criterion equal-opportunity" in copied
    run(f"{copied} --out second")
    done = json.loads((tmp_path / "second" / "corrected.json").read_text(encoding="utf-8"))
    gaps = {
        criterion["criterion"]: 100 * criterion["decisions_after"] for criterion in done["criteria"]
    }
    assert promised["eo"] == pytest.approx(gaps["equal_opportunity"], abs=0.0501)
    assert promised["accuracy"] == pytest.approx(100 * done["accuracy_after"], abs=0.0501)
    assert promised["changed"] == done["changed"]


def test_without_javascript_the_table_is_shown(
    browser: Any, report: Path, record: dict[str, Any]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert not page.locator(".panel .live").is_visible()
    rows = page.locator(".panel table tbody tr")
    assert rows.first.is_visible()
    assert rows.count() == sum(len(criterion["steps"]) for criterion in record["criteria"])
    assert rows.first.locator("th, td").all_inner_texts() == table(record, "people")[1][0]
    context.close()
