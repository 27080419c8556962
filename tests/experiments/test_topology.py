from __future__ import annotations

from pathlib import Path


def test_command_draws_each_graph(experiments, tmp_path: Path) -> None:
    status, _, err = experiments("topology --quick --data embedded:240 --out r")
    assert status == 0, err
    picture = tmp_path / "r" / "topology-embedded-network.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (tmp_path / "r" / "report.html").read_text("utf8")
