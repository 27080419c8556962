"""Which code made a record: a hash of the modules that decide its numbers.

Comments, docstrings and blank lines do not count. ``python -m experiments.doc_tables --check``
lists the records under ``benchmarks/results`` that other code made. Those in ``stale.json`` are
known, with a reason; the check fails on any other, and on one that is listed although it is fresh.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import os
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import fairmp
from experiments import RESULTS

SOURCE = Path(fairmp.__file__).parent
Scope = Literal[
    "layer",
    "models",
    "comparison",
    "rivals",
    "distributed",
    "tables",
    "metrics",
    "report",
    "analysis",
    "serving",
]
LAYER = ("groups.py", "graph.py", "kernels", "nn")
GRAPHS = "../../benchmarks/graphs.json"
"""What the benchmark graphs contain, which a test compares with what the readers return."""
SPLITS = tuple(f"datasets/{name}.py" for name in ("splits", "protocols", "transforms", "synthetic"))
MODELS = (*LAYER, "metrics", GRAPHS, *SPLITS, "postprocessing", "training")
RIVALS = "../../experiments/rivals"
SCOPES: dict[Scope, tuple[str, ...]] = {
    "layer": LAYER,
    "models": MODELS,
    "comparison": (*MODELS, "comparison", RIVALS),
    "rivals": ("metrics", GRAPHS, *SPLITS, RIVALS),
    "distributed": (*LAYER, "distributed"),
    "tables": ("datasets",),
    "metrics": ("metrics",),
    "report": ("report",),
    "analysis": (*LAYER, "metrics", GRAPHS, *SPLITS, "analysis"),
    "serving": (
        "datasets/new_nodes.py",
        "datasets/plain_rows.py",
        "training/compact.py",
        "training/known_graph.py",
        "training/new_inputs.py",
        "training/new_people.py",
    ),
}
"""Modules and packages that decide the numbers of a kind of record.

The script that measures is not among them: the record has its command.
"""
TABLES_AND_FILES = frozenset(
    {
        *(f"postprocessing/{name}.py" for name in ("correction_files", "debias_table")),
        *(f"postprocessing/{name}.py" for name in ("evaluate_table", "prediction_columns")),
        *(f"postprocessing/{name}.py" for name in ("prediction_table",)),
        *(f"training/{name}.py" for name in ("compact", "explanation", "known_graph")),
        *(f"training/{name}.py" for name in ("model_files", "new_inputs", "new_people", "tables")),
    }
)
"""Modules for users' tables, saved models and serving: records of "models" use benchmark graphs."""
INTERVALS = frozenset({"metrics/clusters.py"})
"""Modules for intervals of one evaluation: records but those of "metrics" are means over splits."""
COMPARISONS = (
    "table",
    "fairgnn",
    "unsmoothed",
    "pareto",
    "hyperparameters",
    "published",
    "runtime",
)
RECORD_SCOPES: dict[str, Scope] = {
    **dict.fromkeys(("audit", "synthetic"), "analysis"),
    **dict.fromkeys(("billion", "epoch", "epoch-gpu", "epoch-pokec-n"), "layer"),
    **dict.fromkeys(("epoch-sparse", "fair-layers", "gpu-tests", "kernels-cpu"), "layer"),
    **dict.fromkeys(("locality", "papers", "promise", "scale"), "layer"),
    **dict.fromkeys(
        ("distributed-bytes", "distributed-kills", "distributed-memory"), "distributed"
    ),
    **dict.fromkeys(("distributed-orders", "distributed-shard"), "distributed"),
    **dict.fromkeys(("fuzz", "load"), "tables"),
    **dict.fromkeys(("intervals", "intervals-communities"), "metrics"),
    **dict.fromkeys((f"compare/{name}" for name in COMPARISONS), "comparison"),
    "german-gcn": "comparison",
    "report-page": "report",
    "rivals": "rivals",
    "service": "serving",
}
"""Records that other modules decide than those of fitted models."""
KNOWN_STALE = "stale.json"


@cache
def code_hash(scope: Scope, source: Path = SOURCE) -> str:
    """Hash of the code that decides the numbers of a kind of record."""
    digest = hashlib.sha256()
    for path in modules(scope, source):
        digest.update(_relative(path, source).encode())
        digest.update(normalised(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def modules(scope: Scope, source: Path = SOURCE) -> list[Path]:
    """Files whose code decides the numbers of a kind of record."""
    left_out = frozenset() if scope == "metrics" else INTERVALS
    if scope in ("models", "comparison"):
        left_out |= TABLES_AND_FILES
    paths = []
    for part in SCOPES[scope]:
        root = source / part
        paths += [root] if root.is_file() else sorted(root.rglob("*.py"))
    return [path for path in paths if _relative(path, source) not in left_out]


def _relative(path: Path, source: Path) -> str:
    return Path(os.path.relpath(path, source)).as_posix()


def normalised(text: str) -> str:
    r"""Source without comments, docstrings, blank lines and trailing spaces.

    Example:
        >>> normalised('def f(x):\n    "The square."\n    return x * x  # exact\n')
        'def f(x):\n    return x * x'
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for docstring in _docstrings(ast.parse(text)):
        assert docstring.end_lineno is not None
        for row in range(docstring.lineno, docstring.end_lineno + 1):
            lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(node, clean=False) is not None:
                yield first


def stamp(scope: Scope = "models") -> dict[str, str]:
    """The field that a record carries."""
    return {"code": code_hash(scope)}


def scope_of(record: str) -> Scope:
    """The kind of code that decides a record, by the record's name."""
    return RECORD_SCOPES.get(record, "models")


def recorded_codes(results: Path = RESULTS) -> dict[str, set[str | None]]:
    """The hashes that each committed record carries; None where it carries none."""
    codes: dict[str, set[str | None]] = {}
    for path in sorted(results.glob("*.json")):
        if path.name != KNOWN_STALE:
            codes[path.stem] = {json.loads(path.read_text(encoding="utf-8")).get("code")}
    for path in sorted((results / "compare").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            codes[f"compare/{path.name.partition('.')[0]}"] = {
                json.loads(line).get("code") for line in file
            }
    return codes


def known_stale(results: Path = RESULTS) -> dict[str, str]:
    """Records that are known to be older than the code, with the reason they are kept."""
    path = results / KNOWN_STALE
    listed: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return listed


def problems(
    codes: Mapping[str, set[str | None]],
    listed: Mapping[str, str],
    current: Mapping[Scope, str] | None = None,
) -> list[str]:
    """Records that are stale and not listed, listed and fresh, or listed and absent."""
    lines = []
    for record, hashes in codes.items():
        scope = scope_of(record)
        expected = code_hash(scope) if current is None else current[scope]
        is_stale = hashes != {expected}
        if is_stale and record not in listed:
            lines.append(f"{record}: made by other code than this ({scope}); run it again")
        if not is_stale and record in listed:
            lines.append(f"{record}: fresh; take it out of {KNOWN_STALE}")
    lines += [f"{name}: listed in {KNOWN_STALE}, and not there" for name in listed.keys() - codes]
    return lines
