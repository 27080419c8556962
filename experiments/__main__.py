"""``python -m experiments``: rerun the paper's experiments, by default on every data set found."""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from fairmp import cli
from fairmp.cli.options import expand

EXPERIMENTS = {
    "table1": "Compare graph neural networks and FMP without any strategy (the paper's Table 1).",
    "pareto": "Draw accuracy against the gap: regulariser, adversary and FMP at every strength.",
    "published": "Quote published methods under NIFTY's protocol beside ours: German, Bail and "
    "Credit.",
    "hyperparameters": "Vary λ_f, the projection's target and λ_s, one at a time.",
    "runtime": "Time 200 epochs of every network with every strategy, relative to an MLP.",
    "statistics": "Count nodes, edges and homophily of each data set, next to what the paper "
    "prints.",
    "topology": "Draw each data set's graph, with the edges between groups in red.",
    "synthetic": "Bias under message passing on synthetic graphs, measured against the theory.",
    "unknown": "Hide the groups of all but 1 to 100 % of the nodes, and correct with and without "
    "estimates.",
    "attribution": "Separate what networks, propagation, blending and each correction contribute.",
    "external": "Tune FairGNN and NIFTY on the first split, and run them on all.",
    "speed": "Time an epoch of FMP on this machine, next to its alternatives.",
}
"""What each experiment does: the first line of its help."""


IN_THE_PAPER = {
    "table1": "Table 1",
    "pareto": "trade-off figure",
    "hyperparameters": "figure of hyperparameters",
    "runtime": "running times",
    "statistics": "table of data sets",
    "topology": "picture of topologies",
    "synthetic": "synthetic figures",
}
"""What of the paper an experiment reruns; the others have no counterpart there."""


def program(*names: str) -> typer.Typer:
    """Build the program with some of the experiments; only their modules are imported."""
    app = typer.Typer(
        name="experiments",
        help="Rerun the paper's experiments, by default on every data set whose files are found.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in names:
        app.command(name)(expand(import_module(f"experiments.{name}").command))
    return app


def _list(show: bool) -> None:
    if show:
        width = max(map(len, EXPERIMENTS))
        place_width = max(map(len, IN_THE_PAPER.values()))
        typer.echo(f"{'':<{width}}  {'in the paper':<{place_width}}")
        for name, description in EXPERIMENTS.items():
            place = IN_THE_PAPER.get(name, "–")
            typer.echo(f"{name:<{width}}  {place:<{place_width}}  {description}")
        raise typer.Exit


def _options(
    list_: bool = typer.Option(
        False, "--list", callback=_list, is_eager=True, help="List the experiments and exit."
    ),
) -> None:
    pass


def _chosen_program() -> typer.Typer:
    word = "".join(sys.argv[1:2])
    if word == "--list":
        return program()
    return program(word) if word in EXPERIMENTS else program(*EXPERIMENTS)


def main() -> None:
    """Run an experiment."""
    cli.run("experiments", _chosen_program)


if __name__ == "__main__":
    main()
