"""``fairmp shard``."""

from __future__ import annotations

import json
import shlex
import time
from typing import Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options


def command(
    results: options.Results,
    graph: options.Graph,
    parts: Annotated[
        int, typer.Option(min=1, help="Parts: the number of training processes, or a multiple.")
    ] = 4,
    order: Annotated[
        str,
        typer.Option(
            help="Order of the nodes: 'locality' (reverse Cuthill-McKee), 'metis' (fewest rows "
            "exchanged; all edges in memory), or 'given' (as in the table)."
        ),
    ] = "locality",
    splits: options.Splits = 3,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Write a graph as shards, to train on several processes or machines.

    Your own tables are read once, and may be larger than memory. Train on the shards with
    'torchrun --nproc-per-node 4 -m fairmp train --shards DIR'.
    """
    start = time.perf_counter()
    folder = outputs.free_name("fairmp-shards") if results.out is None else results.out

    from fairmp.distributed import shard, shard_tables
    from fairmp.distributed.shard_format import check_target

    check_target(folder, overwrite=results.overwrite)
    common: dict[str, Any] = {"parts": parts, "order": order, "overwrite": results.overwrite}
    common["split_seeds"] = range(seed, seed + splits)
    with options.typed({"parts": "--parts", "order": "--order"}):
        if graph.given():
            with graph.files() as tables:
                manifest = shard_tables(folder=folder, **tables, **common)
        else:
            manifest = shard(graph.load(), folder, **common)
    part_sizes = [
        {
            "nodes": part.stop - part.start,
            "entries": part.entries,
            "halo": part.halo,
            "bytes": sum(file.bytes for file in part.files.values()),
        }
        for part in manifest.parts
    ]
    if as_json:
        keys = ("name", "nodes", "edges", "order", "fingerprint", "report")
        record = {"folder": str(folder), **{key: getattr(manifest, key) for key in keys}}
        typer.echo(json.dumps({**record, "parts": part_sizes}, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for line in manifest.report:
        console.print(line)
    table = Table(title=f"{manifest.name}: {len(part_sizes)} parts, order {manifest.order}")
    for title in ("part", "nodes", "entries", "halo nodes", "MB"):
        table.add_column(title, justify="right")
    for index, part in enumerate(part_sizes[:16]):
        sizes = [f"{part[key]:,}" for key in ("nodes", "entries", "halo")]
        table.add_row(str(index), *sizes, f"{part['bytes'] / 1e6:,.1f}")
    if len(part_sizes) > 16:
        table.add_row(f"… {len(part_sizes) - 16} more", "", "", "", "")
    console.print(table)
    seconds = time.perf_counter() - start
    rate = manifest.edges / max(seconds, 1e-9)
    console.print(f"{seconds:.0f} s, {rate:,.0f} edges per second. Shards in {folder}; train with")
    words = ["torchrun", "--nproc-per-node", str(len(part_sizes)), "-m", "fairmp", "train"]
    words += ["--shards", str(folder)]
    seeds = manifest.split_seeds
    if seeds[0] is not None:  # None: the split came with the graph
        words += ["--splits", str(len(seeds)), "--seed", str(seeds[0])]
    console.print(f"  {shlex.join(words)}", soft_wrap=True)
