from __future__ import annotations

import pytest

from fairmp.cli.options import adjustable_command


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("fairmp train --data nba", "fairmp train --data nba"),
        ("fairmp train --target 0.3 --data nba", "fairmp train --data nba"),
        ("fairmp train --criterion=dp --out 'my folder' --k 2", "fairmp train --k 2"),
        ("fairmp train --overwrite 'a b.csv' --lambda-f 3", "fairmp train 'a b.csv'"),
        ("fairmp debias p.csv --on probabilities --temperature 0.5", "fairmp debias p.csv"),
    ],
)
def test_adjustable_command_replaces_what_the_page_chooses(typed: str, kept: str) -> None:
    assert adjustable_command(typed) == f"{kept} --criterion {{criterion}} --target {{target}}"
