"""Measure which temperature prediction wants, on every graph whose files are there.

    python benchmarks/temperature.py --data-dir FOLDER

One FMP classifier a split, trained with τ = 1; its test nodes are then predicted with each τ, so
that nothing but τ differs. Writes ``benchmarks/results/temperature.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import load, social_network
from fairmp.datasets.raw import listing
from fairmp.datasets.splits import with_split
from fairmp.metrics import mean_interval
from fairmp.training.model_files import versions

TEMPERATURE = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
SETTING = {"epochs": 100, "lr": 0.01, "eval_every": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/temperature.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    graphs = {"embedded": social_network()}
    for entry in listing(options.data_dir):
        if entry.found:
            try:
                graphs[entry.source.key] = load(entry.source.key, options.data_dir)
            except InputError as error:
                print(f"left out: {entry.source.title}: {error}")
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, data in graphs.items():
        found: dict[str, list[tuple[float, float, float]]] = {}
        for split in range(options.splits):
            graph = with_split(data, seed=split)
            plain = FairClassifier(PPR(5, 3.0), **SETTING).fit(graph, bootstrap=0, progress=False)
            found.setdefault("plain propagation", []).append(_figures(plain.test))
            model = FairClassifier(FMP(5, 3.0), **SETTING)
            model.fit(graph, bootstrap=0, progress=False)
            for temperature in TEMPERATURE:
                model.predict_temperature = temperature
                test = model.evaluate(graph, bootstrap=0)
                found.setdefault(f"projection, τ = {temperature:g}", []).append(_figures(test))
        results[name] = {}
        for method, rows in found.items():
            columns = {}
            for key, values in zip(("accuracy", "dp", "eo"), zip(*rows, strict=True), strict=True):
                interval = mean_interval(values)
                columns[key] = [interval.mean, interval.low, interval.high]
            results[name][method] = columns
            shown = " / ".join(f"{100 * column[0]:.1f}" for column in columns.values())
            print(f"{name:16} {method:24} {shown}", flush=True)
    options.out.write_text(
        json.dumps(
            {
                "command": f"python benchmarks/temperature.py --splits {options.splits}",
                "columns": "mean, low and high of a 95 % interval over splits, as fractions",
                "setting": SETTING | {"K": 5, "lambda_s": 3.0},
                "versions": versions(),
                "results": results,
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _figures(test: object) -> tuple[float, float, float]:
    return test.accuracy, test.dp, test.eo  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
