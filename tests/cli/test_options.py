from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from fairmp.cli.options import (
    Graph,
    Results,
    Tables,
    Training,
    expand,
    option,
    parse_bins,
    smoothing,
    with_protocol,
)
from fairmp.errors import InputError
from fairmp.training import defaults


@dataclass(frozen=True)
class Size:
    nodes: Annotated[int, option("Nodes.", ..., min=1)] = 3
    names: Annotated[list[str] | None, option("Names.", ...)] = None


def parsed(command: Any, *words: str) -> Any:
    """Run a command in a program of its own; return what it returned."""
    app = typer.Typer()
    app.command()(expand(command))
    return app(list(words), standalone_mode=False)


def test_expand_makes_an_option_of_each_field() -> None:
    seen = []

    def command(size: Size, seed: int = 0) -> None:
        seen.append((size, seed))

    parsed(command)
    parsed(command, "--nodes", "7", "--names", "a", "--names", "b", "--seed", "1")
    assert seen == [(Size(), 0), (Size(7, ["a", "b"]), 1)]


def settled(*words: str) -> dict[str, Any]:
    results = []

    def command(context: typer.Context, training: Training, backbone: str = "auto") -> None:
        before = dict(context.params)
        results.append(training.settle(context))
        assert context.params == before

    parsed(command, *words)
    return results[0]


def test_settle_has_one_set_of_defaults() -> None:
    settings = settled()
    assert settings["num_layers"] == defaults.NUM_LAYERS
    assert settings["epochs"] == defaults.EPOCHS
    assert settings["patience"] == defaults.PATIENCE


def test_settle_takes_the_papers_settings_except_for_typed_options() -> None:
    settings = settled("--paper", "--lr", "0.5", "--layers", "4")
    assert (settings["lr"], settings["num_layers"]) == (0.5, 4)
    assert settings["backbone"] == defaults.PAPER["backbone"]
    assert settings["patience"] is None


def test_settle_without_patience_trains_all_epochs() -> None:
    assert settled("--patience", "0")["patience"] is None


def test_smoothing_is_a_number_or_learned() -> None:
    assert smoothing("2.5", "projection") == 2.5
    assert smoothing(None, "projection") == "learned"
    assert smoothing(None, "papc") == smoothing(None, "projection", learned=False) == 3.0
    with pytest.raises(InputError, match="--lambda-s"):
        smoothing("much", "projection")


def test_parse_bins_takes_a_number_or_edges() -> None:
    assert parse_bins(None) is None
    assert parse_bins("3") == 3
    assert parse_bins("25,40.5") == [25.0, 40.5]
    for text in ("three", "25,old"):
        with pytest.raises(InputError, match="--sensitive-bins"):
            parse_bins(text)


COMPLETE: dict[str, Any] = {"nodes": "n.csv", "edges": "e.csv", "label": "y", "sensitive": ["s"]}


def test_tables_are_all_named_or_none() -> None:
    assert Tables(**COMPLETE).has_tables()
    assert not Tables().has_tables()
    for name in COMPLETE:
        partial = {key: value for key, value in COMPLETE.items() if key != name}
        with pytest.raises(InputError, match=f"^--{name}: missing"):
            Tables(**partial).has_tables()
    with pytest.raises(InputError, match=r"^--drop: "):
        Tables(drop=["age"]).has_tables()


def test_graph_is_a_data_set_or_tables() -> None:
    assert Graph(**COMPLETE).has_tables()
    with pytest.raises(InputError, match=r"^--data: 'nba'"):
        Graph(**COMPLETE, data="nba").has_tables()


def test_files_are_the_arguments_of_from_tables() -> None:
    with Tables(**COMPLETE, drop=["a"], sensitive_bins="2").files() as arguments:
        assert arguments == {
            "nodes": Path("n.csv"),
            "edges": Path("e.csv"),
            "id": None,
            "label": "y",
            "sensitive": "s",
            "sensitive_bins": 2,
            "drop": ("a",),
            "unknown": None,
            "categorical": (),
        }


def test_fingerprint_depends_on_contents_and_columns(tmp_path: Path) -> None:
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    nodes.write_text("a\n1\n")
    edges.write_text("a,b\n1,1\n")
    places: dict[str, Any] = {**COMPLETE, "nodes": str(nodes), "edges": str(edges)}
    first = Tables(**places).fingerprint()
    assert first.startswith("n-")
    assert Tables(**places).fingerprint() == first
    assert Tables(**places, drop=["a"]).fingerprint() != first
    edges.write_text("a,b\n1,2\n")
    assert Tables(**places).fingerprint() != first


def test_weights_are_refused_where_they_have_no_use() -> None:
    Tables().without_weights()
    with pytest.raises(InputError, match=r"^--weight: 'w'"):
        Tables(weight="w").without_weights()


def test_results_go_to_a_new_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("fairmp-x", "fairmp-x-2"):
        results = Results()
        folder = results.folder("x")
        assert folder == Path(name)
        with results.staging(folder) as staging:
            (staging / "file").touch()
    with pytest.raises(InputError, match=r"^out: fairmp-x is not empty"):
        Results(out=Path("fairmp-x")).folder("x")


def test_protocol_is_part_of_each_name() -> None:
    assert with_protocol(None, None) == ["embedded"]
    assert with_protocol(["a", "b"], "nifty") == ["a+nifty", "b+nifty"]
