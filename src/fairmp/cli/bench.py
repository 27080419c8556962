"""``fairmp bench``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fairmp.cli import options
from fairmp.errors import InputError
from fairmp.progress import bar

# What the largest network of the table, GAT, holds at once, in bytes: roughly.
_BYTES_AN_EDGE, _BYTES_A_FEATURE = 1500, 16


def command(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; by default cuda where there is one.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=4, help="Nodes; by default as many as Pokec-z has.")
    ] = None,
    edges: Annotated[int | None, typer.Option(min=2, help="Directed edges.")] = None,
    features: Annotated[int | None, typer.Option(min=1, help="Features.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each epoch is timed, in turns.")] = 10,
    as_json: options.AsJson = False,
) -> None:
    """Time an epoch of FMP on this machine, beside what would be used instead.

    All networks are timed in turns in one run on a made graph, by default of Pokec-z's size where
    memory allows and of a tenth of it where not: compare the ratios, not the times.
    """
    import torch

    from fairmp.comparison import speed
    from fairmp.outputs import check_free, results

    if out is not None:
        check_free(out, overwrite=overwrite)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device", "'cuda' is not there", "torch sees no CUDA device, use 'cpu'")
    if device not in ("cpu", "cuda"):
        raise InputError("device", f"{device!r} is unknown", "choose 'cpu' or 'cuda'")
    tenth = 10 if device == "cpu" and not _fits(*speed.POKEC_Z) else 1
    usual = [number // tenth for number in speed.POKEC_Z]
    size = (nodes or usual[0], edges or usual[1], features or usual[2])
    problem = speed.made(*size)
    count = rounds * len(speed.NETWORKS)
    with bar(count, "timing") as advance:
        found = speed.measure(problem, rounds=rounds, device=device, on_round=advance)
    found = {"command": _command(size, rounds, device), **found}
    if out is not None:
        with results(out, overwrite=overwrite) as folder:
            text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
            (folder / "bench.json").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        _show(found, out)


def _show(found: dict[str, Any], out: Path | None) -> None:
    from rich.console import Console

    from fairmp.report.formats import Table, rich_table

    graph = found["graph"]
    rows = [
        [
            name,
            f"{time:.2f}",
            f"{found['times_the_mlp'][name]:.2f}",
            f"{found['times_fmp'][name]:.2f}",
        ]
        for name, time in found["milliseconds"].items()
    ]
    title = (
        f"One epoch, {graph['nodes']:,} nodes, {graph['directed_edges']:,} directed edges, "
        f"{graph['features']} features"
    )
    console = Console(highlight=False)
    console.print(rich_table(Table(title, ["network", "ms", "× MLP", "× FMP"], rows)))
    place = found["machine"]["gpu"] or f"{found['machine']['threads']} CPU threads"
    console.print(
        f"{place}, {found['kernels']}. debias takes {found['debias_milliseconds']:.1f} ms.",
        soft_wrap=True,
    )
    if out is not None:
        console.print(f"Written to {out / 'bench.json'}.", soft_wrap=True)


def _command(size: tuple[int, int, int], rounds: int, device: str) -> str:
    nodes, edges, features = size
    return (
        f"fairmp bench --nodes {nodes} --edges {edges} --features {features} "
        f"--rounds {rounds} --device {device}"
    )


def _fits(nodes: int, edges: int, features: int) -> bool:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return True
    return edges * _BYTES_AN_EDGE + nodes * features * _BYTES_A_FEATURE < free
