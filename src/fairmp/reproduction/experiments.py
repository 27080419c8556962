"""Tables, figures and pages of the paper's experiments: methods, running times, data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from fairmp.comparison import Record, compare, page
from fairmp.comparison.grid import BACKBONES, STRATEGIES, RunSpec
from fairmp.datasets import statistics
from fairmp.datasets.by_name import EMBEDDED, from_files
from fairmp.outputs import write_json
from fairmp.report import Section
from fairmp.report import figures as charts
from fairmp.report.formats import COLUMNS, Line, Table, cell_text, spread
from fairmp.reproduction import paper
from fairmp.reproduction.grids import RECORDED, paper_key, printed

FIGURES = ("accuracy", "auc", "f1", "dp", "eo")
SOME_DATA = ["embedded:1000", "nba", "german", "bail"]  # for a quick table
PANELS = ("λ_f", "target", "λ_s")


def published_tables(records: Sequence[Record]) -> list[Table]:
    """One table per data set: the constant answer, quoted rows, and ours."""
    found = []
    for data in dict.fromkeys(record["data"] for record in records):
        own = [record for record in records if record["data"] == data]
        own.sort(key=lambda record: list(BACKBONES).index(record["spec"]["backbone"]))
        positive = own[0]["positive"]
        f1 = 2 * positive / (1 + positive) if positive >= 0.5 else 0.0
        constant = [f"{100 * value:.1f}" for value in (own[0]["majority"], 0.5, f1, 0.0, 0.0)]
        rows = [["constant answer", "computed", *constant]]
        for method, source, *values in printed()["published"].get(paper_key(data), []):
            quoted = [f"{value:.{1 + (value < 0.1)}f}" for value in values]
            rows.append([method, f"quoted: {source}", *quoted])
        for name in dict.fromkeys(record["name"] for record in own):
            tests = [record["run"]["test"] for record in own if record["name"] == name]
            cells = [cell_text(spread([test[key] for test in tests])) for key in FIGURES]
            rows.append([name, "this program", *cells])
        header = ["method", "source", *(COLUMNS.get(key, "F1") for key in FIGURES)]
        found.append(Table(f"{own[0]['dataset']}: published rows beside ours", header, rows))
    return found


def hyperparameters(found: page.Comparison, name: str) -> Any:
    """Draw accuracy above and ΔDP below, against each hyperparameter."""
    named = {line.name: line for line in found.lines[name]}
    fig, axes = charts.figure(9, 5.4, nrows=2, ncols=len(PANELS), sharey="row")
    panels = [_families(panel, named, found.records) for panel in PANELS]
    names = list(dict.fromkeys(name for families in panels for name in families))
    for panel, families, column in zip(PANELS, panels, axes.T, strict=True):
        ticks = sorted({value for points in families.values() for value in points})
        for axis, key in zip(column, ("accuracy", "dp"), strict=True):
            for label, points in families.items():
                values = sorted(points)
                intervals = [points[value].figures[key] for value in values]
                places = [ticks.index(value) for value in values]
                charts.series(axis, places, intervals, names.index(label), label)
            axis.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        column[-1].set_xlabel(panel)
        column[0].legend(frameon=False, fontsize=9)
    for (first, *_), label in zip(axes, ("accuracy (%)", "ΔDP (points)"), strict=True):
        charts.keep_possible(first, "y")  # the others share its axis
        first.set_ylabel(label)
    fig.suptitle(name, x=0.01, ha="left", fontsize=11)
    return fig


def _families(
    panel: str, named: dict[str, Line], records: Sequence[Record]
) -> dict[str, dict[float, Line]]:
    """Lines of one panel by family and value of its hyperparameter."""
    frame = page.results(records).drop_duplicates("name")
    projection, strength = frame["solver"] == "projection", frame["strength"].astype(float)
    if panel == "λ_s":
        shown = strength.isna() | (strength == 10 * ~projection)
    else:
        shown = strength.notna() & (projection == (panel == "target"))
        shown &= frame["lambda_s"] == RECORDED.lambda_s
    frame["value"] = frame["lambda_s"] if panel == "λ_s" else strength
    series: dict[str, dict[float, Line]] = {}
    for row in frame[shown & frame["name"].isin(list(named))].to_dict("records"):
        series.setdefault(row["family"], {})[row["value"]] = named[row["name"]]
    return series


def write_hyperparameters(
    records: Sequence[Record], folder: Path, *, command: str
) -> page.Comparison:
    """Write one figure per data set, the tables behind them, and the page."""
    named = [
        {**r, "name": f"{r['name']}, λ_s={r['spec']['setting']['lambda_s']:g}"} for r in records
    ]
    return page.write(
        named,
        folder,
        title="Hyperparameters of FMP",
        summary="λ_f of the paper's algorithm as printed and with the step size its operator "
        "needs, the target of the projection, which takes its place, and the smoothing λ_s.",
        command=command,
        more=lambda found: [paper.claims_table(paper.hyperparameter_claims(records))],
        note=paper.VERDICTS,
        draw=hyperparameters,
        caption="Each number is varied alone; the others keep their defaults (λ_s = 3, target 0), "
        "and λ_f = 10 while λ_s varies. Bands are 95 % intervals of the mean over splits, or with "
        "fewer than five splits their range.",
    )


WRITERS: dict[str, Callable[..., page.Comparison]] = {
    "table1": partial(
        page.write,
        title="Graph neural networks and FMP",
        summary="How far apart each network's propagation leaves the groups, and how far FMP does, "
        "beside the paper's figures.",
        more=lambda found: [
            *paper.side_by_side(found.records),
            paper.claims_table(paper.table1_claims(found.records)),
        ],
        note="The paper's ± is a standard deviation of five runs on one split; ours is an interval "
        f"of the mean. {paper.VERDICTS}",
    ),
    "published": partial(
        page.write,
        title="Published results under NIFTY's protocol",
        summary="One fixed, class-balanced split; the sensitive column is a feature; "
        "initialisations vary. On Bail one feature, TIME, gives the label away: TIME > 0 equals it "
        "on 99.4 % of the rows.",
        more=lambda found: published_tables(found.records),
        note="Quoted rows are copied from their source, not rerun. Rows of this program are of "
        "five initialisations on the same split. The constant answer decides the larger class for "
        "everyone: a row near it has learned little. 'Per node' treats nodes one at a time, as the "
        "quoted methods do; the other rows of FMP close the gap of the test nodes as a batch.",
    ),
    "pareto": partial(
        page.write,
        title="Accuracy against ΔDP",
        summary="What each strength of regulariser, adversary and FMP gains, and what it costs.",
        more=lambda found: [paper.claims_table(paper.pareto_claims(found.hypervolumes))],
        note="The paper's figure has no numbers; intervals of the areas must not overlap.",
    ),
    "hyperparameters": write_hyperparameters,
}


def run_times(
    specs: Sequence[RunSpec],
    graphs: Mapping[str, Data],
    folder: Path,
    device: str,
    progress: Callable[[str], None],
) -> list[Record]:
    """Time the runs one after the other on one thread, after a run that is not counted."""
    short = replace(specs[0].setting, epochs=2, eval_every=2, pretrain=1)
    load, path = graphs.__getitem__, folder / "records.jsonl"
    compare.train([replace(specs[0], setting=short)], load, device)
    return compare.run(specs, load, path, device=device, on_record=lambda r: progress(r["name"]))


def runtime_tables(records: Sequence[Record]) -> list[Table]:
    """One table per data set: median seconds over repetitions, and multiples of the MLP's."""
    result = []
    for _, own in page.results(records).groupby("data", sort=False):
        times = own.groupby(["backbone", "strategy"])["seconds"].median()
        unit = times.get(("mlp", "vanilla"))
        texts = times.map("{:.2f}".format)
        if unit:
            texts += (times / unit).map(" ×{:.1f}".format)
        rows = [
            [title, *(texts.get((backbone, strategy), "n/a") for strategy in STRATEGIES)]
            for backbone, title in BACKBONES.items()
            if backbone in times.index.get_level_values(0)
        ]
        title = f"{own['dataset'].iloc[0]}: seconds, and multiples of the MLP's"
        result.append(Table(title, ["network", *(s.replace("-", " ") for s in STRATEGIES)], rows))
    return result


def times(records: Sequence[Record]) -> page.Content:
    """Content of the page of running times."""
    found = [*runtime_tables(records), paper.claims_table(paper.runtime_claims(records))]
    epochs = records[0]["spec"]["setting"]["epochs"]
    summary = (
        f"{epochs} epochs on one thread, one training at a time; thresholds add the time of their "
        "post-processing."
    )
    return "Running time", summary, found


def described(name: str, data_dir: str | Path | None = None) -> statistics.Statistics:
    """Describe a data set with the labels of its file, or the embedded network."""
    if name.startswith(EMBEDDED):
        return statistics.statistics(from_files(name))
    return statistics.of_dataset(name, data_dir)


def data_sets(ours: Mapping[str, statistics.Statistics], folder: Path) -> page.Content:
    """Content of the page of data sets; writes its numbers."""
    found = Table("Data sets", ["data set", *statistics.COLUMNS.values()], statistics.rows(ours))
    write_json(folder / "statistics.json", {key: row.as_dict() for key, row in ours.items()})
    summary = f"{len(ours)} data sets, as their files have them. {statistics.CAPTION}"
    return "Data sets", summary, [found]


def pictures(
    graphs: Mapping[str, Data], folder: Path, seed: int, progress: Callable[[str], None]
) -> page.Content:
    """Content of the page of topologies; draws each graph."""
    from fairmp.report.topology import topology

    sections = []
    for key, data in graphs.items():
        name = str(getattr(data, "name", key))
        path = folder / f"topology-{page.file_name(name)}.png"
        topology(data, seed=seed).savefig(path, dpi=150)
        sections.append(Section(name, svg=charts.embedded(path, f"The topology of {name}")))
        progress(name)
    return "Topology", "Edges between groups are red.", sections
