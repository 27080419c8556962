"""``fairmp train`` computes everything once, through few files, and can be repeated."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fairmp
from fairmp.cli import main
from fairmp.nn.models import Network
from fairmp.report.document import read

MAX_FILES = 77  # of them 17 read tables, and 14 compute and draw the report
SOURCE = Path(fairmp.__file__).parent


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    rng = np.random.default_rng(0)
    n = 200
    sex, age = rng.integers(0, 2, n), rng.integers(18, 70, n)
    hired = (rng.normal(size=n) + sex > 0.5).astype(int)
    people = pd.DataFrame({"hired": hired, "sex": sex, "age": age, "score": hired + sex})
    people.to_csv(tmp_path / "nodes.csv", index=False)
    edges = pd.DataFrame(rng.integers(0, n, (800, 2)), columns=["a", "b"])
    edges.to_csv(tmp_path / "edges.csv", index=False)
    monkeypatch.chdir(tmp_path)
    options = "--nodes nodes.csv --edges edges.csv --label hired --sensitive sex"
    words = ["fairmp", "train", *options.split(), "--splits", "1", "--epochs", "2"]
    words += ["--backbone", "mlp"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", "my results"])
    return sys.argv


def run() -> None:
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code


def count_calls(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], function: Any) -> None:
    """Count the calls of a function, under whatever name a module knows it."""

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[function.__name__] += 1
        return function(*arguments, **options)

    for name, module in list(sys.modules.items()):
        if name.startswith("fairmp"):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, attribute, counted)


def test_nothing_is_computed_twice(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fairmp.graph import normalise
    from fairmp.metrics import evaluate
    from fairmp.nn.solvers import projection

    calls: Counter[str] = Counter()
    for function in (normalise, evaluate, projection):
        count_calls(monkeypatch, calls, function)
    logits = Network.logits

    def counted(*arguments: Any) -> Any:
        calls["logits"] += 1
        return logits(*arguments)

    monkeypatch.setattr(Network, "logits", counted)
    run()
    assert calls == {
        # Training, the last validation, everything afterwards, per node, and without edges.
        "logits": 2 + 1 + 1 + 1 + 1,
        "projection": 2 + 1 + 3,  # and once for each part
        "evaluate": 3 + 2,  # the three parts, and the test nodes uncorrected and per node
        "normalise": 1,
    }
    assert shlex.split(read(Path("my results"))["command"]) == command


def test_few_files_are_involved(command: list[str]) -> None:
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        # A function, not the body of a module or of a class.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    code = [Path(f) for f in files if f.startswith(str(SOURCE)) and f.endswith(".py")]
    ours = sorted(str(file.relative_to(SOURCE)) for file in code)
    assert 10 < len(ours) <= MAX_FILES, ours
