"""CONTRIBUTING.md shows the code that runs, and its map has every part of the package."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from fairmp.nn.solvers import projection

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fairmp"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.compile(r"`([\w./-]+(?:\.py|/))`")
PLACEHOLDERS = {"cli/NAME.py"}


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def rows() -> list[tuple[str, str]]:
    """The rows of the map: the packages of each, and what they are for."""
    lines = [line for line in section("The map").splitlines() if line.startswith("| `")]
    return [(cells[1], cells[2]) for cells in (line.split("|") for line in lines)]


MAPPED = [path for packages, _ in rows() for path in PATH.findall(packages)]


def test_path_of_one_call_shows_the_loop_of_projection() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", section("The path of one call"), re.DOTALL)
    shown = [line.strip() for line in block.splitlines()]
    source = [line.strip() for line in inspect.getsource(projection).splitlines()]
    start = source.index(shown[0])
    assert source[start : start + len(shown)] == shown


@pytest.mark.parametrize("path", MAPPED)
def test_mapped_package_exists(path: str) -> None:
    assert (PACKAGE / path).exists()


@pytest.mark.parametrize(("packages", "purpose"), rows())
def test_modules_named_for_a_package_are_in_it(packages: str, purpose: str) -> None:
    folders = [PACKAGE / path for path in PATH.findall(packages)]
    for path in PATH.findall(purpose):
        assert any((folder / path).exists() for folder in folders), path


def test_map_has_every_module_and_package() -> None:
    modules = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("_")}
    packages = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert set(MAPPED) == modules | packages
    assert len(MAPPED) == len(set(MAPPED))


def test_paths_exist() -> None:
    prose = "\n".join(line for line in TEXT.splitlines() if not line.startswith("|"))
    for path in set(PATH.findall(prose)) - PLACEHOLDERS:
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path
