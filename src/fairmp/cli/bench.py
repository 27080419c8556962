"""``fairmp bench``."""

from __future__ import annotations

import os

from fairmp.cli import options
from fairmp.cli.options import option
from fairmp.errors import InputError, check_choice
from fairmp.outputs import write_json

# Peak memory of the largest network of the table, GAT, in bytes: roughly.
_BYTES_PER_EDGE, _BYTES_PER_FEATURE = 1500, 16


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
    import torch

    from fairmp.comparison import speed

    out = None if target.out is None else target.folder("bench")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_choice("device", device, ("cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device", "CUDA is not available", "use 'cpu'")
    scale = 10 if device == "cpu" and not _fits(*speed.POKEC_Z) else 1
    usual = [number // scale for number in speed.POKEC_Z]
    size = (nodes or usual[0], edges or usual[1], features or usual[2])
    found = speed.measure(speed.random_problem(*size), rounds=rounds, device=device)
    arguments = "--nodes {} --edges {} --features {} --rounds {} --device {}"
    found = {"command": f"fairmp bench {arguments.format(*size, rounds, device)}", **found}
    if out is not None:
        with target.staging(out) as folder:
            write_json(folder / "bench.json", found)
    from fairmp.report.formats import Table, rich_table

    columns = {"ms": "milliseconds", "× MLP": "times_the_mlp", "× FMP": "times_fmp"}
    rows = [
        [name, *(f"{found[key][name]:.2f}" for key in columns.values())]
        for name in found["milliseconds"]
    ]
    title = "One epoch, {:,} nodes, {:,} directed edges, {} features".format(*size)
    table = rich_table(Table(title, ["network", *columns], rows))
    place = found["machine"]["gpu"] or f"{found['machine']['threads']} CPU threads"
    note = f"{place}, {found['kernels']}. debias takes {found['debias_milliseconds']:.1f} ms."
    where = [] if out is None else [f"Written to {out / 'bench.json'}."]
    options.report(target.as_json, found, table, note, *where)


def _fits(nodes: int, edges: int, features: int) -> bool:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return True
    return edges * _BYTES_PER_EDGE + nodes * features * _BYTES_PER_FEATURE < free
