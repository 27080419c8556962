"""Time of one training epoch, network by network, in one run on one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from experiments.random_graphs import POKEC_Z, Size, random_problem
from experiments.timing import measure
from fairmp.cli import options, output
from fairmp.cli.options import option
from fairmp.errors import InputError, check_choice
from fairmp.outputs import write_json
from fairmp.report.formats import Table, rich_table

# Peak memory of the largest network of the table, GAT, in bytes: roughly.
BYTES_PER_EDGE, BYTES_PER_FEATURE = 1500, 16


def command(
    target: options.Results,
    device: str | None = option("cpu or cuda; by default cuda if available."),
    nodes: int | None = option("Nodes; by default as many as Pokec-z has.", min=4),
    edges: int | None = option("Directed edges.", min=2),
    features: int | None = option("Features.", min=1),
    rounds: int = option("Times each epoch is timed, in turns.", 10, min=1),
) -> None:
    """Time an epoch of FMP on this machine, next to its alternatives.

    All networks are timed in turns in one run on a random graph, by default of Pokec-z's size if
    memory allows and of a tenth of it otherwise: compare the ratios, not the times.
    """
    out = None if target.out is None else target.folder("speed")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_choice("device", device, ("cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device", "CUDA is not available", "use 'cpu'")
    share = 10 if device == "cpu" and not _fits_in_memory(POKEC_Z) else 1
    size = Size(
        nodes or POKEC_Z.nodes // share,
        edges or POKEC_Z.edges // share,
        features or POKEC_Z.features // share,
    )
    rerun = (
        f"python -m experiments speed --nodes {size.nodes} --edges {size.edges} "
        f"--features {size.features} --rounds {rounds} --device {device}"
    )
    times = measure(random_problem(size), rounds=rounds, device=device)
    record = {"command": rerun, **times}
    written = []
    if out is not None:
        with target.staging(out) as folder:
            write_json(folder / "bench.json", record)
        written = [f"Written to {out / 'bench.json'}."]
    machine = record["machine"]["gpu"] or f"{record['machine']['threads']} CPU threads"
    note = f"{machine}, {record['kernels']}. debias takes {record['debias_milliseconds']:.1f} ms."
    output.report(target.as_json, record, rich_table(_table(record, size)), note, *written)


def _table(record: Mapping[str, Any], size: Size) -> Table:
    columns = {"ms": "milliseconds", "× MLP": "times_the_mlp", "× FMP": "times_fmp"}
    rows = [
        [name, *(f"{record[key][name]:.2f}" for key in columns.values())]
        for name in record["milliseconds"]
    ]
    title = (
        f"One epoch, {size.nodes:,} nodes, {size.edges:,} directed edges, {size.features} features"
    )
    return Table(title, ["network", *columns], rows)


def _fits_in_memory(size: Size) -> bool:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return True
    needed = size.edges * BYTES_PER_EDGE + size.nodes * size.features * BYTES_PER_FEATURE
    return needed < free
