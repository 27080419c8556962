from __future__ import annotations

import json
from pathlib import Path


def test_command_describes_the_data_sets_that_are_found(experiments, tmp_path: Path) -> None:
    status, out, err = experiments("statistics --quick --out s")
    assert status == 0, err
    assert "Left out, NBA: " in err
    assert "embedded network" in out
    record = json.loads((tmp_path / "s" / "statistics.json").read_text("utf8"))
    assert record["embedded:1000"]["nodes"] == 1000
    assert "Left out" in (tmp_path / "s" / "report.html").read_text("utf8")
