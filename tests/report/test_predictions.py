"""What the page and the warnings of predictions say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fairmp.metrics import evaluate
from fairmp.report.evaluations import floor, per_node_warning
from fairmp.report.predictions import recorded_warning
from tests.report.documents import decided


def test_per_node_correction_that_does_not_help_is_a_warning(tmp_path: Path) -> None:
    sens, y, before, _ = decided()
    measured = evaluate(y, before, sensitive_features=sens, bootstrap=0)
    fairer, worse = replace(measured, dp=0.015), replace(measured, dp=0.13)
    assert per_node_warning(worse, fairer) == ""
    warning = per_node_warning(fairer, worse)
    assert "13.0 points, worse than without a correction (1.5)" in warning
    within_sampling_error = replace(measured, dp=fairer.dp + 0.9 * floor(measured))
    assert per_node_warning(fairer, within_sampling_error) == ""

    assert recorded_warning(tmp_path) == ""
    record = {"run": {"uncorrected": fairer.to_dict()}, "per_node": worse.to_dict()}
    for content, expected in ((record, warning), ({**record, "per_node": None}, "")):
        (tmp_path / "records.jsonl").write_text(json.dumps(content) + "\n", encoding="utf-8")
        assert recorded_warning(tmp_path) == expected
    for damaged in ("", "[]", "{", '{"run": {"uncorrected": 1}, "per_node": 2}'):
        (tmp_path / "records.jsonl").write_text(damaged, encoding="utf-8")
        assert recorded_warning(tmp_path) == ""
