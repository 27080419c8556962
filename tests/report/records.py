"""Records of methods, and their table."""

from __future__ import annotations

from fairmp.report import Line, summarise


def record(name: str, accuracy: float, dp: float | None) -> dict[str, object]:
    test = {"accuracy": accuracy, "dp": dp, "eo": 0.1, "auc": 0.8}
    return {"name": name, "run": {"test": test, "seconds": 2.0}}


RECORDS = [record("A", 0.7, 0.2), record("B", 0.6, None), record("A", 0.8, 0.1)]


def lines() -> list[Line]:
    def run(accuracy: float, dp: float) -> dict[str, object]:
        return {"test": {"accuracy": accuracy, "dp": dp, "eo": None, "auc": 0.5}, "seconds": 1.0}

    return summarise(
        [
            {"name": "MLP", "run": run(0.8, 0.10)},
            {"name": "MLP", "run": run(0.9, 0.20)},
            {"name": "FMP λ_f=1 & more", "run": run(0.7, 0.01)},
        ]
    )
