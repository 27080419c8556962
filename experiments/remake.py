"""Make the records under ``benchmarks/results`` again that other code made.

    python -m experiments.remake                      # which records are stale, and their commands
    python -m experiments.remake --run --jobs 16      # run them all; the same command continues
    python -m experiments.remake --run group-free attribution

A record of the present code is not made again, and a record that is made again leaves
``stale.json``. Records that need a GPU, several machines or an earlier version of the code have no
command here: their files say how they were made.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import RESULTS, ROOT, doc_tables
from experiments.committed import TITLES
from experiments.provenance import KNOWN_STALE, code_hash, known_stale, recorded_codes, scope_of

JOBS = "{jobs}"
BUILD = f"build/records/{code_hash('models')}"  # parts of records; other code starts anew
ALL_GRAPHS = " ".join(f"--graph {name}" for name in TITLES)


@dataclass(frozen=True)
class Recipe:
    """How some records are made.

    Attributes:
        records: their names, as files under ``benchmarks/results`` without the ending.
        commands: arguments of ``python -m``, one command after the other; each continues where an
            earlier one stopped, or is short.
        made: files that the commands leave elsewhere and that become the records.
    """

    records: tuple[str, ...]
    commands: tuple[str, ...]
    made: tuple[str, ...] = ()


def _benchmark(record: str, arguments: str) -> Recipe:
    return Recipe((record,), (f"benchmarks.{arguments}",))


GRIDS = ("table", "fairgnn", "unsmoothed", "pareto", "hyperparameters")
RECIPES: tuple[Recipe, ...] = (
    Recipe(
        ("attribution",),
        (f"experiments attribution --out {BUILD}/attribution --jobs {JOBS} {ALL_GRAPHS}",),
        (f"{BUILD}/attribution/attribution.json",),
    ),
    Recipe(
        ("rivals",),
        (f"experiments external --out {BUILD}/rivals --jobs {JOBS} {ALL_GRAPHS}",),
        (f"{BUILD}/rivals/rivals.json",),
    ),
    _benchmark("group-free", f"group_free --jobs {JOBS} --parts {BUILD}/group-free"),
    _benchmark("promises", f"promises --jobs {JOBS} --parts {BUILD}/promises"),
    _benchmark(
        "defaults-crossfit",
        f"defaults --first 20 --workers {JOBS} --out benchmarks/results/defaults-crossfit.json",
    ),
    _benchmark("baselines", f"baselines --workers {JOBS} --log {BUILD}/baselines.jsonl"),
    Recipe(
        tuple(f"compare/{name}" for name in GRIDS),
        (
            f"experiments.graph_files {BUILD}/graphs",
            f"experiments.bare_grid --npz {BUILD}/graphs --experiment recorded "
            f"--workers {JOBS} --out {BUILD}/compare",
        ),
        tuple(f"{BUILD}/compare/{name}.jsonl.gz" for name in GRIDS),
    ),
    Recipe(
        ("synthetic",),
        (f"experiments synthetic --out {BUILD}/synthetic --overwrite",),
        (f"{BUILD}/synthetic/synthetic.json",),
    ),
    Recipe(
        ("promise",),
        (
            f"tests.fuzz.promise --problems 5000 --gradients 2000 --jobs {JOBS} "
            "--out benchmarks/results/promise.json",
        ),
    ),
    _benchmark("audit", "pictures audit"),
    _benchmark("studies", f"studies --workers {JOBS}"),
    _benchmark("decisions", "decisions"),
    _benchmark("odds", "odds"),
    _benchmark("facebook", "facebook"),
    _benchmark("balanced", "balanced"),
    _benchmark(
        "balanced-nifty",
        "balanced --data german+nifty bail+nifty credit+nifty "
        "--out benchmarks/results/balanced-nifty.json",
    ),
    _benchmark("mini-batches", "mini_batches"),
    _benchmark("intervals", "intervals --repeats 400"),
    _benchmark("fair-layers", "fair_layers"),
    _benchmark("intervals-communities", "intervals --communities --repeats 400"),
    _benchmark("large-tables", "large_tables"),
    _benchmark("many-groups", "many_groups"),
    _benchmark("service", "service"),
    _benchmark("load", "load --repeat 5"),
    _benchmark("report-page", "report_page"),
)


def stale_records(results: Path = RESULTS) -> list[str]:
    """Names of the records that other code made, or that are not there."""
    codes = recorded_codes(results)
    names = {*codes, *(name for recipe in RECIPES for name in recipe.records)}
    return sorted(name for name in names if codes.get(name) != {code_hash(scope_of(name))})


def run_recipe(recipe: Recipe, jobs: int) -> bool:
    """Run the commands of some records and put them in place; whether all succeeded."""
    (ROOT / BUILD).mkdir(parents=True, exist_ok=True)
    for command in recipe.commands:
        words = command.replace(JOBS, str(jobs)).split()
        print(f"python -m {' '.join(words)}", flush=True)
        if subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False).returncode:
            return False
    for record, made in zip(recipe.records, recipe.made or (), strict=bool(recipe.made)):
        shutil.copyfile(ROOT / made, RESULTS / f"{record}{''.join(Path(made).suffixes)}")
    return True


def forget_fresh(results: Path = RESULTS) -> None:
    """Take records of the present code out of the list of stale ones."""
    stale = set(stale_records(results))
    listed = {name: reason for name, reason in known_stale(results).items() if name in stale}
    text = json.dumps(listed, indent=1, ensure_ascii=False)
    (results / KNOWN_STALE).write_text(text + "\n", encoding="utf8")


def main(arguments: Sequence[str] | None = None) -> int:
    """List the stale records, or make them again; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="*", help="by default every stale one with a command")
    parser.add_argument("--run", action="store_true", help="run the commands")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    recipes = {name: recipe for recipe in RECIPES for name in recipe.records}
    unknown = [name for name in options.records if name not in recipes]
    if unknown:
        parser.error(f"no command makes {', '.join(unknown)}: one of {', '.join(recipes)}")
    stale = stale_records()
    wanted = [name for name in options.records or recipes if name in stale]
    if not options.run:
        for name in stale:
            commands = recipes[name].commands if name in recipes else ("(see its file)",)
            print(f"{name}: {'; '.join(commands)}")
        return 0
    failed = [
        " ".join(recipe.records)
        for recipe in dict.fromkeys(recipes[name] for name in wanted)
        if not run_recipe(recipe, options.jobs)
    ]
    forget_fresh()
    doc_tables.main([])
    print(f"failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
