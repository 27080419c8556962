"""Reports and model cards made from what commands wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.postprocessing.solver import debias
from fairmp.report import Document
from fairmp.report.content import Metric
from fairmp.report.document import cards, html, write
from fairmp.report.evaluations import meanings
from fairmp.report.from_results import (
    card,
    document_of,
    from_corrected,
    recorded_evaluation,
    to_markdown,
    together,
)
from fairmp.report.panel import reliability
from tests.report.documents import decided, document_for

GRAPH = {
    "name": "g",
    "nodes": 4,
    "edges": 2,
    "average_degree": 1.0,
    "homophily": {"raw": 0.5, "chance": 0.5},
    "classes": ["no", "yes"],
    "groups": [],
}


def test_document_of_corrected_predictions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sens = rng.integers(0, 2, 500)
    p = 1 / (1 + np.exp(-rng.normal(size=500) - sens))
    y = (rng.random(500) < p).astype(int)
    result = debias(p, sens, target=0.02, y=y, full_output=True)
    record = result.to_dict()
    (tmp_path / "corrected.json").write_text(json.dumps(record))
    document = document_of(tmp_path)
    assert document["metrics"][0]["name"] == "accuracy"
    assert document["metrics"][1]["target"] == 0.02
    for g, group in enumerate(document["groups"]):
        assert group["nodes"] == (sens == g).sum()
        assert group["before"][1] == pytest.approx((p[sens == g] > 0.5).mean())
    page = html(document)
    metrics = {metric["key"]: metric for metric in document["metrics"]}
    assert metrics["ppv"]["after"] == pytest.approx(
        evaluate(y, result.predictions, sensitive_features=sens, bootstrap=0).ppv
    )
    assert metrics["impact_ratio"]["unit"] == "ratio"
    assert "impact ratio" in page
    assert [card.label for card in cards(document)][-1] == "who pays"
    for title in ("Result", "Changed decisions", "Assumptions"):
        assert title in page
    assert document_of(tmp_path / "corrected.json") == document
    assert from_corrected({**record, "command": "fairmp debias x"})["command"] == "fairmp debias x"


def test_together_makes_one_page_of_several_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        document: Document = {"title": f"Report {name}", "assumptions": ["none"], "summary": "s"}
        write(document, tmp_path / name)
    page = together([tmp_path / "one", tmp_path / "two"])
    assert "Report one" in page
    assert "Report two" in page
    assert page.count('class="chapter"') == 3
    ids = [part.split('"')[0] for part in page.split('<section id="')[1:]]
    assert len(ids) == len(set(ids)) == 3
    assert page.count("<li>none</li>") == 1  # what they share is said once


def test_together_starts_with_a_comparison(tmp_path: Path) -> None:
    for k, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        metric: Metric = {"key": "dp", "name": "ΔDP", "before": 0.1, "after": 0.01 * k}
        write({"title": name, "metrics": [metric], "graph": GRAPH}, tmp_path / name)
    page = together([tmp_path / "one", tmp_path / "two"])
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["Comparison", "one", "Result", "The graph", "two", "Result"]
    assert "10.0 → 1.0" in page
    contents = page[page.index("<nav") : page.index("</nav>")] if "<nav" in page else ""
    assert "Result" not in contents


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("corrected.json", "{"),
        ("corrected.json", '{"classes": 1}'),
        ("corrected.json", "[1]"),
        ("report.json", "{"),
        ("report.json", "[1]"),
    ],
)
def test_damaged_results_raise_one_line(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        document_of(tmp_path)
    assert caught.value.argument == "results"
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has none of report\.json"):
        document_of(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        document_of(tmp_path / "nowhere")


def test_card_has_the_figures_of_the_document() -> None:
    document = document_for()
    sens, y, _, _ = decided()
    document["reliability"] = reliability([0.3, 0.6] * 200, sens, y)
    sections = {section.title: section for section in card(document, "A person decides.")}
    assert list(sections) == [
        "Intended use",
        "Result",
        "Groups",
        "Criteria and gaps",
        "Calibration",
        "Limits",
        "Origin",
    ]
    assert sections["Intended use"].text[0] == "A person decides."
    assert [row[0] for row in sections["Groups"].rows] == ["group <0>", "group <1>"]
    dp = next(metric for metric in document["metrics"] if metric["name"] == "ΔDP")
    row = next(row for row in sections["Criteria and gaps"].rows if row[0] == "ΔDP")
    assert row[2].startswith(f"{100 * dp['after']:.1f} (")
    assert row[3:] == ["≤ 2.0"]
    assert any(line.startswith("ΔDP: ") for line in sections["Criteria and gaps"].bullets)
    text = to_markdown("T", list(sections.values()))
    assert text.startswith("# T\n\n## Intended use\n\nA person decides.")
    assert "```\nfairmp train --out x\n```" in text
    assert "- Groups are known." in text
    assert "Not stated" in to_markdown("T", card(document))


@pytest.mark.parametrize(
    "document",
    [{"title": "audit", "assumptions": ["none"]}, document_for() | {"describes_model": False}],
)
def test_card_of_a_document_without_model_is_refused(document: Document) -> None:
    with pytest.raises(InputError, match="describes no model"):
        card(document)


def test_recorded_evaluation_is_that_of_the_first_split(tmp_path: Path) -> None:
    sens, y, before, after = decided()
    first, second = (
        evaluate(y, scores, sensitive_features=sens, bootstrap=0) for scores in (before, after)
    )
    lines = [json.dumps({"run": {"test": test.to_dict()}}) for test in (first, second)]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    assert recorded_evaluation(tmp_path) == first


@pytest.mark.parametrize("line", [None, "", "{", "[]", '{"run": {"test": {"groups": []}}}'])
def test_recorded_evaluation_of_other_folders_is_refused(tmp_path: Path, line: str | None) -> None:
    if line is not None:
        (tmp_path / "records.jsonl").write_text(line)
    with pytest.raises(InputError) as caught:
        recorded_evaluation(tmp_path)
    assert caught.value.argument == "run"
    assert "\n" not in str(caught.value)


def test_each_gap_of_corrected_predictions_has_its_own_definition() -> None:
    sens, y, before, _ = decided()
    content = debias(before, sens, y=y, target=0.02, full_output=True).to_dict()
    document = from_corrected(json.loads(json.dumps(content)))
    gaps = [m for m in document["metrics"] if m.get("key") in ("dp", "eo", "fpr", "odds")]
    assert len({metric["meaning"] for metric in gaps}) == len(gaps) == 4
    expected = meanings(document["classes"])
    for metric in gaps:
        assert metric["meaning"].startswith(expected[metric["key"]].removesuffix("."))
