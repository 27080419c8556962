"""``Debiaser`` against fairlearn's ``ThresholdOptimizer``, on the scores of boosted trees.

    python -m benchmarks.odds --splits 10

Both are fitted on the same validation nodes and the same scores, and applied to the test nodes of
six graphs one by one, for equal opportunity and for demographic parity. Writes
``benchmarks/results/odds.json`` and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from fairlearn.postprocessing import ThresholdOptimizer
from sklearn.base import BaseEstimator, ClassifierMixin

from benchmarks.tree_scores import Case, cases, write
from experiments.provenance import code_hash
from fairmp import Debiaser
from fairmp.metrics import demographic_parity, equal_opportunity, mean_interval

FIGURES = ("accuracy", "dp", "eo")
CONSTRAINTS = {
    "equal_opportunity": "true_positive_rate_parity",
    "demographic_parity": "demographic_parity",
}


class Scores(ClassifierMixin, BaseEstimator):
    """Scores that are given, as a fitted classifier."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Scores:
        """Nothing to learn."""
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The scores."""
        return x[:, 0]


def decisions(case: Case) -> dict[str, np.ndarray]:
    """Decisions of every method on the test nodes of one split."""
    data, p = case.data, case.proba
    y, sens = data.y.numpy(), data.sens.numpy()
    val, test, train = (mask.numpy() for mask in (data.val_mask, data.test_mask, data.train_mask))
    by_method = {"as predicted": p[test] > 0.5}
    for criterion, constraint in CONSTRAINTS.items():
        for on, suffix in (("decisions", ", decisions"), ("probabilities", "")):
            corrector = Debiaser(criterion, on=on)
            corrector.fit(p[val], y[val], sensitive_features=sens[val])
            fair = corrector.transform(p[test], sensitive_features=sens[test])
            by_method[f"Debiaser, {criterion}{suffix}"] = np.asarray(fair) > 0.5
        rule = ThresholdOptimizer(
            estimator=Scores().fit(p[val, None], y[val]),
            constraints=constraint,
            prefit=True,
            predict_method="predict",
        )
        rule.fit(p[val, None], y[val], sensitive_features=sens[val])
        drawn = rule.predict(p[test, None], sensitive_features=sens[test], random_state=case.split)
        by_method[f"ThresholdOptimizer, {constraint}"] = np.asarray(drawn) == 1
    # Parity needs no labels: every node of known group outside the training and test nodes.
    held_out = (sens >= 0) & ~train & ~test
    labels = np.where(val, y, -1)[held_out]
    corrector = Debiaser().fit(p[held_out], labels, sensitive_features=sens[held_out])
    fair = corrector.transform(p[test], sensitive_features=sens[test])
    by_method["Debiaser, demographic_parity, decisions, unlabelled too"] = np.asarray(fair) > 0.5
    return by_method


def differences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Debiaser's decisions less those of ThresholdOptimizer, split by split."""
    figures = {(row["graph"], row["method"], row["split"]): row for row in rows}
    entries = []
    for graph in dict.fromkeys(row["graph"] for row in rows):
        for criterion, constraint in CONSTRAINTS.items():
            ours, theirs = f"Debiaser, {criterion}, decisions", f"ThresholdOptimizer, {constraint}"
            splits = [
                row["split"] for row in rows if (row["graph"], row["method"]) == (graph, ours)
            ]
            entry: dict[str, Any] = {"graph": graph, "criterion": criterion}
            for key in FIGURES:
                pairs = [
                    figures[graph, ours, k][key] - figures[graph, theirs, k][key] for k in splits
                ]
                entry[key] = mean_interval(pairs)[:3]
            entries.append(entry)
    return entries


def markdown(table: list[dict[str, Any]], difference: list[dict[str, Any]], criterion: str) -> str:
    """One row per graph: as predicted, Debiaser, ThresholdOptimizer, and the difference."""
    methods = ("as predicted", f"Debiaser, {criterion}, decisions")
    methods += (f"ThresholdOptimizer, {CONSTRAINTS[criterion]}",)
    gap = "eo" if criterion == "equal_opportunity" else "dp"
    title = "ΔEO" if gap == "eo" else "ΔDP"
    heads = [
        f"{name} {figure}"
        for name in ("plain", "Debiaser", "fairlearn", "difference")
        for figure in ("accuracy", title)
    ]
    lines = [f"| graph | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for graph in dict.fromkeys(entry["graph"] for entry in table):
        cells = [
            entry
            for name in methods
            for entry in table
            if (entry["graph"], entry["method"]) == (graph, name)
        ]
        cells += [e for e in difference if (e["graph"], e["criterion"]) == (graph, criterion)]
        shown = []
        for number, entry in enumerate(cells):
            sign = "+" if number == 3 else ""
            for key in ("accuracy", gap):
                mean, _, high = entry[key]
                shown.append(f"{100 * mean:{sign}.1f} ± {100 * (high - mean):.1f}")
        lines.append(f"| {graph} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run every graph and split, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/odds.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in cases(options.splits, options.cache):
        test = case.data.test_mask.numpy()
        y, sens = case.data.y.numpy()[test], case.data.sens.numpy()[test]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            by_method = decisions(case)
        for method, yes in by_method.items():
            pred = yes.astype(int)
            figures = {
                "accuracy": float((pred == y).mean()),
                "dp": demographic_parity(pred, sens),
                "eo": equal_opportunity(pred, y, sens),
            }
            rows.append({"graph": case.name, "split": case.split, "method": method, **figures})
    table: list[dict[str, Any]] = []
    for graph, method in dict.fromkeys((row["graph"], row["method"]) for row in rows):
        matching = [row for row in rows if (row["graph"], row["method"]) == (graph, method)]
        entry: dict[str, Any] = {"graph": graph, "method": method}
        entry |= {key: mean_interval([row[key] for row in matching])[:3] for key in FIGURES}
        table.append(entry)
    difference = differences(rows)
    for criterion in CONSTRAINTS:
        print(markdown(table, difference, criterion))
    record = {
        "command": f"python -m benchmarks.odds --splits {options.splits}",
        "code": code_hash("models"),
        "columns": "mean, low and high of a 95 % interval over splits, as fractions",
        "table": table,
        "differences": difference,
    }
    write(options.out, record, rows)


if __name__ == "__main__":
    main()
