"""``fairmp demo``."""

from __future__ import annotations

import json
from pathlib import Path

from fairmp import FairClassifier
from fairmp.datasets import social_network
from tests.cli.conftest import Program


def test_demo_writes_records_of_every_method_page_and_model(
    fairmp: Program, tmp_path: Path
) -> None:
    status, shown, err = fairmp("demo --nodes 1000 --splits 1 --out out")
    assert status == 0, err
    assert "sensitive homophily 92.0 %" in shown
    out = tmp_path / "out"
    names = sorted(p.name for p in out.iterdir())
    assert names == [
        *("model", "records.jsonl", "report.html", "report.json", "table.md", "tradeoff.png")
    ]
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    methods = list(dict.fromkeys(record["name"] for record in records))
    assert len(records) == len(methods)
    solvers = {(record["run"]["config"]["propagation"] or {}).get("solver") for record in records}
    assert solvers == {None, "paper", "papc", "projection"}
    assert (out / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    for method in methods:
        assert method in page
        assert method in shown
    data = social_network(n=1000)
    assert FairClassifier.load(out / "model").predict(data).shape == (1000,)
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["out"]

    status, _, err = fairmp("demo --out out")
    assert status == 2
    assert err == "fairmp: --out: out is not empty; give another folder, or add --overwrite\n"
