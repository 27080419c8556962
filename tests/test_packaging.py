from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_oldest_constraints_are_the_lower_bounds() -> None:
    text = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        name, bound = requirement.split(">=")
        assert f"{pins[name]}.".startswith(f"{bound}."), name
