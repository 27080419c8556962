"""Reports made again from what commands wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fairmp.errors import InputError
from fairmp.report.document import Document, html, write
from fairmp.report.from_results import document_of, from_corrected, together
from fairmp.report.sections import Metric

GRAPH = {
    "name": "g",
    "nodes": 4,
    "edges": 2,
    "average_degree": 1.0,
    "homophily": {"raw": 0.5, "chance": 0.5},
    "classes": ["no", "yes"],
    "groups": [],
}


def test_corrected_predictions(tmp_path: Path) -> None:
    debias = pytest.importorskip("fairmp.postprocessing.solver").debias
    rng = np.random.default_rng(0)
    sens = rng.integers(0, 2, 500)
    p = 1 / (1 + np.exp(-rng.normal(size=500) - sens))
    y = (rng.random(500) < p).astype(int)
    result = debias(p, sens, target=0.02, labels=y, temperature="decisions", full_output=True)
    found = result.to_dict()
    (tmp_path / "corrected.json").write_text(json.dumps(found))
    document = document_of(tmp_path)
    assert document["metrics"][0]["name"] == "accuracy"
    assert document["metrics"][1]["target"] == 0.02
    for g, group in enumerate(document["groups"]):
        assert group["nodes"] == (sens == g).sum()
        assert group["before"][1] == pytest.approx((p[sens == g] > 0.5).mean())
    page = html(document)
    for title in ("Result", "Changed decisions", "Assumptions"):
        assert title in page
    assert document_of(tmp_path / "corrected.json") == document
    assert from_corrected({**found, "command": "fairmp debias x"})["command"] == "fairmp debias x"


def test_several_folders_make_one_page(tmp_path: Path) -> None:
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


def test_several_reports_are_compared_first(tmp_path: Path) -> None:
    for k, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        metric: Metric = {"name": "ΔDP", "before": 0.1, "after": 0.01 * k, "unit": "points"}
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
    ],
)
def test_damaged_results_are_one_line(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        document_of(tmp_path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_to_tell_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has none of report\.json"):
        document_of(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        document_of(tmp_path / "nowhere")
