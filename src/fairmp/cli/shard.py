"""``fairmp shard``."""

from __future__ import annotations

import shlex
from typing import Any

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import option


def command(
    results: options.Results,
    graph: options.Graph,
    parts: int = option("Parts: the number of training processes, or a multiple.", 4, min=1),
    order: str = option("Of nodes: 'locality', 'metis' (edges in memory) or 'given'.", "locality"),
    splits: options.Splits = 3,
    seed: options.Seed = 0,
) -> None:
    """Write a graph as shards, to train on several processes or machines.

    Your own tables are read once, and may be larger than memory. Train on the shards with
    'torchrun --nproc-per-node 4 -m fairmp train --shards DIR'.
    """
    graph.without_weights()
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
    part_sizes = [
        {
            "nodes": part.stop - part.start,
            "entries": part.entries,
            "halo": part.halo,
            "bytes": sum(file.bytes for file in part.files.values()),
        }
        for part in manifest.parts
    ]
    keys = ("name", "nodes", "edges", "order", "fingerprint", "report")
    record = {"folder": str(folder), **{key: getattr(manifest, key) for key in keys}}
    from fairmp.report.formats import Table, rich_table

    sizes = ("nodes", "entries", "halo")
    rows = [
        [str(k), *(f"{part[key]:,}" for key in sizes), f"{part['bytes'] / 1e6:,.1f}"]
        for k, part in enumerate(part_sizes[:16])
    ]
    if len(part_sizes) > 16:
        rows.append([f"… {len(part_sizes) - 16} more", "", "", "", ""])
    title = f"{manifest.name}: {len(part_sizes)} parts, order {manifest.order}"
    table = Table(title, ["part", "nodes", "entries", "halo nodes", "MB"], rows)
    rate = f"{output.elapsed():.0f} s, {manifest.edges / output.elapsed():,.0f} edges per second"
    words = ["torchrun", "--nproc-per-node", str(len(part_sizes)), "-m", "fairmp", "train"]
    words += ["--shards", str(folder)]
    seeds = manifest.split_seeds
    if seeds[0] is not None:  # None: the split came with the graph
        words += ["--splits", str(len(seeds)), "--seed", str(seeds[0])]
    last = [f"{rate}. Shards in {folder}; train with", f"  {shlex.join(words)}"]
    record |= {"parts": part_sizes}
    output.report(results.as_json, record, *manifest.report, rich_table(table), *last)
