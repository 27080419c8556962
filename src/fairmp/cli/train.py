"""``fairmp train``."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options, train_shards
from fairmp.errors import InputError

_FAIR, _NET = "Fairness", "Network and training"
_PROPAGATING = ("projection", "papc", "paper", "plain")
_NEEDS = {
    "target": ("projection",),
    "predict_temperature": ("projection",),
    "lambda_f": ("papc", "paper"),
    "k": _PROPAGATING,
    "lambda_s": _PROPAGATING,
}
"""The solvers an option is for."""


def check_used(context: typer.Context, solver: str) -> None:
    """Refuse an option that was typed for nothing, since the solver does not look at it."""
    for name, solvers in _NEEDS.items():
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and solver in (*_PROPAGATING, "none") and solver not in solvers:
            raise InputError(
                f"--{name.replace('_', '-')}",
                f"--solver {solver} does not use it",
                f"leave it out, or choose --solver {' or '.join(solvers)}",
            )


def command(
    context: typer.Context,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    data: options.DataName = "embedded",
    data_dir: options.DataDir = None,
    nodes: options.Nodes = None,
    edges: options.Edges = None,
    id: options.Id = None,
    label: options.Label = None,
    sensitive: options.Sensitive = None,
    sensitive_bins: options.SensitiveBins = None,
    drop: options.Drop = None,
    solver: Annotated[
        str,
        typer.Option(
            help="projection, papc, paper; or 'plain' propagation, or 'none'.",
            rich_help_panel=_FAIR,
        ),
    ] = "projection",
    target: Annotated[
        float,
        typer.Option(
            help="Largest gap accepted, 0.02 for two points; with more than two groups, that of "
            "each from the whole.",
            rich_help_panel=_FAIR,
        ),
    ] = 0.0,
    k: Annotated[int, typer.Option("--k", help="Propagation steps.", rich_help_panel=_FAIR)] = 5,
    lambda_s: Annotated[
        float, typer.Option(help="Strength of the smoothing.", rich_help_panel=_FAIR)
    ] = 3.0,
    lambda_f: Annotated[
        float, typer.Option(help="Strength of papc's and paper's pull.", rich_help_panel=_FAIR)
    ] = 1.0,
    regulariser: Annotated[
        float,
        typer.Option(help="Weight of the demographic regulariser.", rich_help_panel=_FAIR),
    ] = 0.0,
    adversary: Annotated[
        float, typer.Option(help="Weight of the adversary.", rich_help_panel=_FAIR)
    ] = 0.0,
    pretrain: Annotated[
        int, typer.Option(help="Epochs before the adversary joins.", rich_help_panel=_FAIR)
    ] = 70,
    predict_temperature: Annotated[
        str,
        typer.Option(
            help="τ at prediction, a number; 'decisions' finds the one decisions need.",
            rich_help_panel=_FAIR,
        ),
    ] = "decisions",
    backbone: Annotated[
        str, typer.Option(help="mlp, gcn, gat, sgc or appnp.", rich_help_panel=_NET)
    ] = "mlp",
    hidden: Annotated[int, typer.Option(help="Hidden width.", rich_help_panel=_NET)] = 64,
    layers: Annotated[int, typer.Option(help="Layers.", rich_help_panel=_NET)] = 2,
    dropout: Annotated[float, typer.Option(help="Dropout.", rich_help_panel=_NET)] = 0.0,
    epochs: Annotated[int, typer.Option(help="Most epochs.", rich_help_panel=_NET)] = 300,
    lr: Annotated[float, typer.Option(help="Learning rate.", rich_help_panel=_NET)] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=_NET)] = 1e-5,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after so many epochs without a gain.", rich_help_panel=_NET),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            help="Epoch kept: best validation accuracy or loss, or the last.", rich_help_panel=_NET
        ),
    ] = "accuracy",
    eval_every: Annotated[
        int, typer.Option(help="Look at validation every so many epochs.", rich_help_panel=_NET)
    ] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_NET)] = "cpu",
    splits: options.Splits = 3,
    seed: options.Seed = 0,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the graph for the report.")
    ] = True,
    as_json: options.AsJson = False,
    shards: train_shards.Shards = None,
    checkpoint_every: train_shards.CheckpointEvery = 10,
    timeout: train_shards.Timeout = 600.0,
) -> None:
    """Train one configuration over several splits, and save its model.

    The model saved under --out is the first split's; predict with it by 'fairmp predict', or load
    it with FairClassifier.load. report.html tells what it does to each group.
    """
    start = time.perf_counter()
    check_used(context, solver)
    folder = outputs.free_name("fairmp-train") if out is None else out
    if shards is None:
        outputs.check_free(folder, overwrite=overwrite)

    from rich.console import Console

    from fairmp.comparison import train_report as single
    from fairmp.comparison.runner import one_split, temperature
    from fairmp.nn.fmp import FMP

    setting: dict[str, Any] = {
        "backbone": backbone,
        "hidden": hidden,
        "num_layers": layers,
        "dropout": dropout,
        "epochs": epochs,
        "lr": lr,
        "weight_decay": weight_decay,
        "patience": patience,
        "select": select,
        "eval_every": eval_every,
        "predict_temperature": temperature(predict_temperature),
        "device": device,
    }

    def make() -> Any:
        return single.classifier(
            solver,
            target,
            k,
            lambda_s,
            lambda_f,
            regulariser,
            adversary=adversary,
            pretrain=pretrain,
            **setting,
        )

    if shards is not None:
        train_shards.run(
            shards,
            name=solver,
            make=make,
            given={"--data": data != "embedded", "--nodes": nodes, "--edges": edges},
            device=device,
            splits=splits,
            seed=seed,
            out=out,
            overwrite=overwrite,
            checkpoint_every=checkpoint_every,
            timeout=timeout,
            as_json=as_json,
        )
        return
    graph = options.load_data(
        data, data_dir, nodes, edges, id, label, sensitive, sensitive_bins, drop
    )
    # What is wrong is told before anything is trained.
    if isinstance(make().propagation, FMP):
        options.check_groups(graph, range(seed, seed + splits))
    records, model = [], None
    with outputs.results(folder, overwrite=overwrite) as staging:
        for split in range(splits):
            record, fitted = one_split(
                solver, make, graph, split=split, seed=seed, bootstrap=1000, progress=None
            )
            records.append(record)
            model = model or fitted
        assert model is not None
        again = shlex.join(["fairmp", *sys.argv[1:]])
        lines = single.write(graph, records, model, staging, command=again, picture=picture)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    from fairmp.comparison.train_report import of_first
    from fairmp.report import over, to_rich

    console = Console(highlight=False)
    report = getattr(graph, "report", None)
    if report is not None:
        console.print(str(report))
    console.print(to_rich(lines, f"{graph.name}: test nodes, {over(splits)}"))
    for line in of_first(model):
        console.print(line, soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s. Model in {folder / 'model'}; open {folder / 'report.html'}.")
