"""Make the records under ``benchmarks/results`` again that other code made.

    python -m experiments.remake                      # which records are stale, and their commands
    python -m experiments.remake --run --jobs 16      # run them all; the same command continues
    python -m experiments.remake --run --device cuda --jobs 16 baselines compare/table gpu-tests

A record of the present code is not made again, and a record that is made again leaves
``stale.json``. ``--device cuda`` is for the grids that gain from a GPU, and makes the records of a
GPU's speed too. Records of speed come last, and need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import RESULTS, ROOT, doc_tables
from experiments.committed import TITLES
from experiments.provenance import KNOWN_STALE, code_hash, known_stale, recorded_codes, scope_of

JOBS, DEVICE = "{jobs}", "{device}"
BUILD = f"build/records/{code_hash('models')}"  # parts of records; other code starts anew
MADE_HERE = "benchmarks/results"
ALL_GRAPHS = " ".join(f"--graph {name}" for name in TITLES)


@dataclass(frozen=True)
class Recipe:
    """How some records are made.

    Attributes:
        records: their names, as files under ``benchmarks/results`` without the ending.
        commands: arguments of ``python -m``, one command after the other; each continues where an
            earlier one stopped, or is short.
        made: files that the commands leave elsewhere and that become the records.
        needs_gpu: whether the commands run on a GPU only.
        threads: of OpenMP, where the figures are of so many.
    """

    records: tuple[str, ...]
    commands: tuple[str, ...]
    made: tuple[str, ...] = ()
    needs_gpu: bool = False
    threads: int | None = None


def _benchmark(record: str, arguments: str, *, needs_gpu: bool = False) -> Recipe:
    """A benchmark that writes its record itself."""
    return Recipe((record,), (f"benchmarks.{arguments}",), needs_gpu=needs_gpu)


def _timing(
    record: str, arguments: str, *, threads: int | None = None, needs_gpu: bool = False
) -> Recipe:
    """A benchmark of speed that writes where it is told to."""
    command = f"benchmarks.{arguments} --out {MADE_HERE}/{record}.json"
    return Recipe((record,), (command,), needs_gpu=needs_gpu, threads=threads)


def _experiment(record: str, arguments: str) -> Recipe:
    """An experiment whose runs are the record."""
    command = f"experiments {arguments} --out {BUILD}/{record}"
    return Recipe((f"compare/{record}",), (command,), (f"{BUILD}/{record}/records.jsonl",))


GRIDS = ("table", "fairgnn", "unsmoothed", "pareto", "hyperparameters")
FITTED = "--only MLP 'MLP + plain propagation' 'MLP + FMP' 'PyG MLP + APPNP, edge_index'"
FUZZED = "--seed 662607015 --tables 20000 --contents 20000 --damaged 10000 --numbers 20000"
FUZZED += " --promises 20000 --corrections 3000 --models 5000 --graphs 5000"
FUZZED += " --correction-files 5000 --archives 1000 --urls 3000 --around 3000 --kills 100"
PAPERS100M = "--nodes 111059956 --edges 1615685872 --features 128 --hidden 64"
RECIPES: tuple[Recipe, ...] = (
    _benchmark("group-free", f"group_free --jobs {JOBS} --parts {BUILD}/group-free"),
    _benchmark("promises", f"promises --jobs {JOBS} --parts {BUILD}/promises"),
    Recipe(
        ("attribution",),
        (f"experiments attribution --out {BUILD}/attribution --jobs {JOBS} {ALL_GRAPHS}",),
        (f"{BUILD}/attribution/attribution.json",),
    ),
    Recipe(
        ("rivals",),
        (
            f"experiments external --out {BUILD}/rivals --jobs {JOBS} --device {DEVICE} "
            f"{ALL_GRAPHS}",
        ),
        (f"{BUILD}/rivals/rivals.json",),
    ),
    _benchmark(
        "baselines",
        f"baselines --workers {JOBS} --device {DEVICE} --log {BUILD}/baselines.jsonl",
    ),
    Recipe(
        tuple(f"compare/{name}" for name in GRIDS),
        (
            f"experiments.graph_files {BUILD}/graphs",
            f"experiments.bare_grid --npz {BUILD}/graphs --experiment recorded "
            f"--workers {JOBS} --device {DEVICE} --out {BUILD}/compare",
        ),
        tuple(f"{BUILD}/compare/{name}.jsonl.gz" for name in GRIDS),
    ),
    _experiment("published", f"published --workers {JOBS} --device {DEVICE}"),
    _experiment("unknown", f"unknown --workers {JOBS} --overwrite"),
    Recipe(
        ("synthetic",),
        (f"experiments synthetic --out {BUILD}/synthetic --overwrite",),
        (f"{BUILD}/synthetic/synthetic.json",),
    ),
    Recipe(
        ("promise",),
        (
            f"tests.fuzz.promise --problems 5000 --gradients 2000 --jobs {JOBS} "
            f"--out {MADE_HERE}/promise.json",
        ),
    ),
    Recipe(("fuzz",), (f"tests.fuzz {FUZZED} --jobs {JOBS} --out {MADE_HERE}/fuzz.json",)),
    Recipe(
        ("soak",),
        (f"tests.fuzz.soak --fits 1000 --calls 100000 --out {MADE_HERE}/soak.json",),
        threads=1,
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
        f"--out {MADE_HERE}/balanced-nifty.json",
    ),
    _benchmark("german-gcn", "german_gcn"),
    _benchmark("mini-batches", "mini_batches"),
    _benchmark("intervals", "intervals --repeats 400"),
    _benchmark("intervals-communities", "intervals --communities --repeats 400"),
    *(
        _benchmark(f"distributed-{name}", f"distributed {name}")
        for name in ("orders", "bytes", "kills", "memory", "shard")
    ),
    # Records of speed.
    _experiment("runtime", "runtime --data german --data pokec-province --data nba"),
    _benchmark("fair-layers", "fair_layers"),
    _benchmark("many-groups", "many_groups"),
    _benchmark("service", "service"),
    _benchmark("load", "load --repeat 5"),
    _benchmark("report-page", "report_page"),
    _timing("kernels-cpu", "kernels_cpu"),
    _timing("epoch", "epoch --rounds 4"),
    _timing("epoch-pokec-n", "epoch --data pokec-n-graph --rounds 5"),
    _timing("epoch-sparse", "epoch --density 0.15 --rounds 3", threads=1),
    _timing(
        "fit",
        f"fit --graph '20,000 nodes, 32 features' --rounds 3 {FITTED} "
        "'PyG MLP + APPNP, sparse tensor'",
        threads=1,
    ),
    _timing("fit-pokec-z", f'fit --graph "Pokec-z\'s size" {FITTED}', threads=1),
    _timing("fit-pokec-z-dense", f'fit --graph "Pokec-z\'s size" --density 1 {FITTED}', threads=1),
    _timing("fit-pokec-n", f"fit --data pokec-n-graph {FITTED}", threads=1),
    _timing("locality", "locality", threads=1),
    _timing("scale", "scale"),
    _timing("billion", f"scale --billion {BUILD}/billion"),
    _benchmark("large-tables", "large_tables"),
    _benchmark("gpu-tests", f"gpu_tests -n {JOBS}", needs_gpu=True),
    _timing("epoch-gpu", "epoch --device cuda --rounds 8", needs_gpu=True),
    _timing("fit-gpu", "fit --device cuda --rounds 1", needs_gpu=True),
    _timing("papers", f"papers {PAPERS100M} --piece 1048576 --epochs 3", needs_gpu=True),
)


def stale_records(results: Path = RESULTS) -> list[str]:
    """Names of the records that other code made, or that are not there."""
    codes = recorded_codes(results)
    names = {*codes, *(name for recipe in RECIPES for name in recipe.records)}
    return sorted(name for name in names if codes.get(name) != {code_hash(scope_of(name))})


def run_recipe(recipe: Recipe, jobs: int, device: str = "cpu") -> bool:
    """Run the commands of some records and put them in place; whether all succeeded."""
    (ROOT / BUILD).mkdir(parents=True, exist_ok=True)
    threads = {} if recipe.threads is None else {"OMP_NUM_THREADS": str(recipe.threads)}
    for command in recipe.commands:
        words = shlex.split(command.replace(JOBS, str(jobs)).replace(DEVICE, device))
        print(shlex.join(["python", "-m", *words]), flush=True)
        ended = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=os.environ | threads, check=False
        )
        if ended.returncode:
            return False
    for record, made in zip(recipe.records, recipe.made or (), strict=bool(recipe.made)):
        _put_in_place(ROOT / made, record)
    return True


def _put_in_place(made: Path, record: str) -> None:
    """Copy a file that becomes a record; runs are packed."""
    if made.suffix == ".jsonl":
        packed = gzip.compress(made.read_bytes(), mtime=0)
        (RESULTS / f"{record}.jsonl.gz").write_bytes(packed)
    else:
        shutil.copyfile(made, RESULTS / f"{record}{''.join(made.suffixes)}")


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
    parser.add_argument("--device", default="cpu", help="of the grids: cpu or cuda")
    options = parser.parse_args(arguments)
    recipes = {name: recipe for recipe in RECIPES for name in recipe.records}
    unknown = [name for name in options.records if name not in recipes]
    if unknown:
        parser.error(f"no command makes {', '.join(unknown)}: one of {', '.join(recipes)}")
    stale = stale_records()
    if not options.run:
        for name in stale:
            commands = recipes[name].commands if name in recipes else ("of an earlier version",)
            print(f"{name}: {'; '.join(commands)}")
        return 0
    wanted = [
        recipe
        for recipe in RECIPES
        if set(recipe.records) & set(stale) & set(options.records or recipes)
        and (options.device != "cpu" or not recipe.needs_gpu)
    ]
    failed = [
        " ".join(recipe.records)
        for recipe in wanted
        if not run_recipe(recipe, options.jobs, options.device)
    ]
    forget_fresh()
    doc_tables.main([])
    print(f"failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
