"""``fairmp shard``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import option
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.distributed import Manifest

MAX_PARTS = 16  # that are printed


def command(
    results: options.Results,
    graph: options.Graph,
    parts: int = option("Parts: the number of training processes, or a multiple.", 4, min=1),
    order: str = option(
        "Order of nodes: 'locality', 'metis' (edges in memory) or 'given'.", "locality"
    ),
    splits: options.Splits = 3,
    seed: options.Seed = 0,
) -> None:
    """Write a graph as shards, to train on several processes or machines.

    Your own tables are read once, and may be larger than memory; a folder of Parquet files is a
    table too. Train on the shards with 'torchrun --nproc-per-node 4 -m fairmp train --shards DIR'.
    """
    graph.without_weights()
    if graph.edge_weight is not None:
        value = f"{graph.edge_weight!r}, but edges of shards have no weights"
        raise InputError("--edge-weight", value, "leave it out, or train without shards")
    folder = outputs.free_name("fairmp-shards") if results.out is None else results.out

    from fairmp.distributed import shard, shard_tables
    from fairmp.distributed.shard_format import check_target

    check_target(folder, overwrite=results.overwrite)
    common: dict[str, Any] = {"parts": parts, "order": order, "overwrite": results.overwrite}
    common["split_seeds"] = range(seed, seed + splits)
    if graph.has_tables():
        with graph.files() as tables:
            manifest = shard_tables(folder=folder, **tables, **common)
    else:
        manifest = shard(graph.load(), folder, **common)
    rate = f"{output.elapsed():.0f} s, {manifest.edges / output.elapsed():,.0f} edges per second"
    output.report(
        results.as_json,
        _record(manifest, folder),
        *manifest.report,
        _table(manifest),
        f"{rate}. Shards in {folder}; train with",
        f"  {_train_command(manifest, folder)}",
    )


def _record(manifest: Manifest, folder: Path) -> dict[str, Any]:
    """What is printed for programs."""
    return {
        "folder": str(folder),
        "name": manifest.name,
        "nodes": manifest.nodes,
        "edges": manifest.edges,
        "order": manifest.order,
        "fingerprint": manifest.fingerprint,
        "report": manifest.report,
        "parts": [
            {
                "nodes": part.num_nodes,
                "entries": part.entries,
                "halo": part.halo,
                "bytes": part.num_bytes,
            }
            for part in manifest.parts
        ],
    }


def _table(manifest: Manifest) -> Any:
    from fairmp.report.formats import Table, rich_table

    rows = []
    for k, part in enumerate(manifest.parts[:MAX_PARTS]):
        counts = f"{part.num_nodes:,}", f"{part.entries:,}", f"{part.halo:,}"
        rows.append([str(k), *counts, f"{part.num_bytes / 1e6:,.1f}"])
    if len(manifest.parts) > MAX_PARTS:
        rows.append([f"… {len(manifest.parts) - MAX_PARTS} more", "", "", "", ""])
    title = f"{manifest.name}: {len(manifest.parts)} parts, order {manifest.order}"
    return rich_table(Table(title, ["part", "nodes", "entries", "halo nodes", "MB"], rows))


def _train_command(manifest: Manifest, folder: Path) -> str:
    words = ["torchrun", "--nproc-per-node", str(len(manifest.parts)), "-m", "fairmp", "train"]
    words += ["--shards", str(folder)]
    seeds = manifest.split_seeds
    if seeds[0] is not None:  # None: the split came with the graph
        words += ["--splits", str(len(seeds)), "--seed", str(seeds[0])]
    return shlex.join(words)
