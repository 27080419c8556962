"""Tables of the documentation on speed and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.committed import exists, read
from experiments.timing import FAIR, MLP_ALONE, PLAIN
from fairmp.report.formats import Table

FITS = (  # records of whole fits, and on what
    ("fit", "CPU"),
    ("fit-pokec-z-dense", "dense features, CPU"),
    ("fit-pokec-z", "CPU"),
    ("fit-pokec-n", "CPU"),
    ("fit-gpu", "H200"),
)
FITTED = {
    "MLP + plain propagation": "plain propagation",
    "MLP + FMP": "FMP",
    "PyG MLP + APPNP, edge_index": "PyG APPNP",
    "PyG MLP + APPNP, sparse tensor": "PyG APPNP, sparse",
    "PyG GCN": "PyG GCN",
}
PYG_MLP, SPARSE = "PyG MLP", "PyG MLP + APPNP, sparse tensor"
APPNP, FMP_FIT = "PyG MLP + APPNP, edge_index", "MLP + FMP"


@dataclass(frozen=True)
class Target:
    """A ratio of two times that was aimed at.

    Attributes:
        where: machine and graph, as the table says it.
        record: name of the record.
        slow, fast: names of numerator and denominator.
        limit: what the ratio is compared with.
        at_least: whether it should be at least the limit, and not at most.
    """

    where: str
    record: str
    slow: str
    fast: str
    limit: float
    at_least: bool = False

    def row(self, ratio: float, *others: str) -> list[str]:
        """A row with a verdict."""
        is_met = ratio >= self.limit if self.at_least else ratio <= self.limit
        sign = "≥" if self.at_least else "≤"
        title = f"{self.where}: {self.slow} / {self.fast}"
        met = "met" if is_met else "missed"
        return [title, f"{sign} {self.limit:g}", f"{ratio:.2f}", *others, met]


EPOCH_TARGETS = (
    Target("CPU", "epoch", FAIR, PYG_MLP, 1.3),
    Target("CPU", "epoch", FAIR, PLAIN, 1.15),
    Target("CPU", "epoch", "MLP + FMP (papc)", MLP_ALONE, 1.5),
    Target("CPU", "epoch", "MLP + FMP (paper)", MLP_ALONE, 1.5),
    Target("CPU", "epoch", APPNP, FAIR, 4, at_least=True),
    Target("CPU", "epoch", SPARSE, FAIR, 10, at_least=True),
    Target("CPU, sparse features", "epoch-sparse", FAIR, PYG_MLP, 0.75),
    Target("CPU, sparse features", "epoch-sparse", APPNP, FAIR, 5, at_least=True),
    Target("CPU, sparse features", "epoch-sparse", SPARSE, FAIR, 10, at_least=True),
    Target("CPU, Pokec-n", "epoch-pokec-n", APPNP, FAIR, 4, at_least=True),
    Target("CPU, Pokec-n", "epoch-pokec-n", SPARSE, FAIR, 10, at_least=True),
    Target("H200", "epoch-gpu", FAIR, PYG_MLP, 1.25),
)
FIT_TARGETS = (
    Target("20,000 nodes", "fit", FMP_FIT, MLP_ALONE, 1.5),
    Target("20,000 nodes", "fit", APPNP, FMP_FIT, 4, at_least=True),
    Target("Pokec-z's size", "fit-pokec-z", FMP_FIT, MLP_ALONE, 1.25),
    Target("Pokec-z's size", "fit-pokec-z", APPNP, FMP_FIT, 4, at_least=True),
    Target("Pokec-z's size, dense", "fit-pokec-z-dense", FMP_FIT, MLP_ALONE, 1.25),
    Target("Pokec-z's size, dense", "fit-pokec-z-dense", APPNP, FMP_FIT, 4, at_least=True),
    Target("Pokec-n", "fit-pokec-n", APPNP, FMP_FIT, 4, at_least=True),
)


def epoch_targets() -> Table:
    """Ratios of the times of an epoch that were aimed at, of the fastest epochs and of medians."""
    rows = []
    for target in EPOCH_TARGETS:
        record = read(target.record)
        fastest, medians = record["milliseconds"], record["median_milliseconds"]
        median = medians[target.slow] / medians[target.fast]
        rows.append(target.row(fastest[target.slow] / fastest[target.fast], f"{median:.2f}"))
    return Table("", ["ratio", "target", "fastest", "medians", ""], rows)


def fit_targets() -> Table:
    """Ratios of the times of whole fits on a CPU that were aimed at."""
    rows = []
    for target in FIT_TARGETS:
        [graph] = read(target.record)["graphs"].values()
        multiples = graph["times_the_mlp"]
        rows.append(target.row(multiples[target.slow] / multiples[target.fast]))
    return Table("", ["ratio", "target", "measured", ""], rows)


def kernels() -> Table:
    """Every kernel on the CPU against plain torch."""
    rows = [
        [
            f"`{name}`",
            f"{figures['ms']:.2f}",
            f"{figures['torch_ms']:.2f}",
            f"{figures['ratio']:.1f}",
            f"{figures['gb_per_s']:.0f}",
        ]
        for name, figures in read("kernels-cpu")["figures"].items()
    ]
    return Table("", ["kernel", "ms", "torch, ms", "ratio", "GB/s"], rows)


def papers() -> Table:
    """One product and one epoch at the size of ogbn-papers100M, on one GPU."""
    record: Any = read("papers")
    product, training = record["propagation"], record["training"]
    seconds, gib = training["epoch_seconds"], training["peak_reserved_gib"]
    ratio = product["torch_over_ours"]
    times = f"{product['ours_ms']:.0f} ms against {product['torch_csr_ms']:.0f}"
    rows = [
        ["Ã·F, n×2, against torch's sparse product", "≥ 3 ×", f"{ratio:.1f} × ({times})"],
        ["an exact training epoch", "≤ 0.67 s", f"{seconds:.2f} s"],
        ["memory", "≤ 110 GiB", f"{gib:.1f} GiB"],
    ]
    for part, spent in training["parts_seconds"].items():
        if part != "epoch":
            rows.append([f"of the epoch: {part.replace('_', ' ')}", "", f"{spent:.2f} s"])
    return Table("", ["", "target", "measured"], rows)


def fits() -> Table:
    """Seconds of whole fits of an MLP, and multiples of them, for every graph that was measured."""
    rows = []
    for name, device in FITS:
        if not exists(name):
            continue
        for graph, times in read(name)["graphs"].items():
            ratios = times["times_the_mlp"]
            cells = [f"× {ratios[method]:.2f}" if method in ratios else "–" for method in FITTED]
            rows.append([f"{graph}, {device}", f"{min(times['seconds']['MLP']):.1f} s", *cells])
    return Table("", ["graph", "MLP", *FITTED.values()], rows)


def epochs() -> Table:
    """Milliseconds of one epoch on three machines, and ratios to PyG's MLP."""
    names = {"CPU": "epoch", "Pokec-n": "epoch-pokec-n", "H200": "epoch-gpu"}
    machines = {title: read(name)["milliseconds"] for title, name in names.items()}
    rows = []
    for network in machines["CPU"]:
        cells = []
        for milliseconds in machines.values():
            time = milliseconds[network]
            cells.append(f"{time:.{2 if time < 5 else 1}f}")
            cells.append(f"{time / milliseconds['PyG MLP']:.2f}")
        rows.append([network, *cells])
    header = [text for title in machines for text in (title, "× PyG MLP")]
    return Table("", ["network", *header], rows)


def scaling() -> Table:
    """Time and memory of an epoch by the number of edges, and of a forward pass over a billion."""
    rows = []
    for entry in read("scale")["training"]:
        seconds = entry["seconds_epoch"]
        rows.append(
            [
                f"{entry['directed_edges']:,}",
                f"{seconds:.{3 if seconds < 0.1 else 2}f} s",
                f"{entry['nanoseconds_an_edge']:.0f}",
                f"{entry['peak_bytes_an_edge_beside_features']:.0f}",
            ]
        )
    forward = read("billion")["forward"]
    edges, seconds = forward["directed_edges"], forward["seconds_forward"]
    rows.append([f"{edges:,}, forward", f"{seconds:.2f} s", f"{1e9 * seconds / edges:.0f}", "–"])
    return Table("", ["directed edges", "epoch", "ns per edge", "bytes per edge"], rows)


def orders() -> Table:
    """Nanoseconds per edge of an epoch in two orders of the nodes."""
    rows = []
    for graph, times in read("locality")["graphs"].items():
        rows.append(
            [
                graph,
                f"{times['nanoseconds_per_edge_given']:.0f}",
                f"{times['nanoseconds_per_edge_locality']:.0f}",
                f"{times['given_over_locality']:.2f}",
            ]
        )
    return Table("", ["graph", "given", "locality", "given / locality"], rows)


def fair_layers() -> Table:
    """Forward and backward passes of the layer, and of another that holds a gap."""
    rows = []
    for entry in read("fair-layers")["table"]:
        times = entry["milliseconds"]
        cells = [f"{times[name]:,.1f} ms" for name in ("fairmp", "fairness-training")]
        rows.append([f"{entry['rows']:,}", *cells, f"{entry['ratio']:.0f}"])
    return Table("", ["rows", "FMP, one step", "fairness-training", "ratio"], rows)


SHARDED = {
    "pokec-n-graph": "Pokec-n",
    "pokec-province": "Pokec, by province",
    "credit": "Credit",
    "bail": "Bail",
    "embedded": "embedded network",
}


def shard_orders() -> Table:
    """Rows exchanged in one step, by the order of the nodes."""
    record, rows = read("distributed-orders"), []
    for graph, title in SHARDED.items():
        for parts in (4, 16):
            halos = [
                f"{record[graph][f'{order}, {parts} parts']['halo_a_node']:.2f}"
                for order in ("given", "locality", "metis")
            ]
            rows.append([title, str(parts), *halos])
    return Table("", ["graph", "parts", "given", "locality", "METIS"], rows)


def shard_writing() -> Table:
    """Seconds, memory and rows per second of writing shards of a large table."""
    record = read("distributed-shard")
    rows = [
        [
            order,
            f"{figures['seconds']:.0f} s",
            f"{figures['rows_a_second'] / 1e6:.1f} million",
            f"{figures['peak_gb']:.1f} GB",
        ]
        for order, figures in record["orders"].items()
    ]
    return Table("", ["order", "time", "rows a second", "memory"], rows)


def shard_bytes() -> Table:
    """Bytes sent in an epoch: the formula, what was counted, and what the kernel counted."""
    rows = []
    for ranks, figures in read("distributed-bytes")["ranks"].items():
        counted = figures["counted_an_epoch"]
        sent = [counted["halo"], counted["gradient"], counted["total"], figures["kernel_an_epoch"]]
        numbers = [figures["halo_rows"], figures["formula_halo"], *sent]
        rows.append([ranks, *(f"{number:,.0f}" for number in numbers)])
    header = ["ranks", "rows \\(H\\)", "formula", "counted", "gradients", "gap", "kernel"]
    return Table("", header, rows)


def shard_memory() -> Table:
    """Memory of the fullest rank beyond that of a process that has loaded its libraries."""
    rows = []
    for ranks, figures in read("distributed-memory")["ranks"].items():
        fullest = max(range(int(ranks)), key=figures["used_mb"].__getitem__)
        part = figures["parts"][fullest]
        rows.append(
            [
                ranks,
                f"{part['nodes']:,}",
                f"{part['halo']:,}",
                f"{figures['used_mb'][fullest]:,.0f} MB",
                f"{figures['share_of_one'][fullest]:.2f}",
                f"{figures['allowed_mb'][fullest]:,.0f} MB",
                f"{part['peak_mb']:,.0f} MB",
            ]
        )
    header = ["ranks", "nodes per rank", "rows from others", "used, the fullest rank"]
    header += ["of one process's", "1.3/W of it, and the halo", "with libraries"]
    return Table("", header, rows)
