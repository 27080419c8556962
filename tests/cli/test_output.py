from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import typer

import fairmp
from fairmp.cli import COMMANDS, output, program
from fairmp.cli.output import (
    PARAMETERS,
    adjustable_command,
    rerun_command,
    spelling_of,
    train_command,
    typed_command,
)
from fairmp.report.formats import Table, rich_table

Capture = pytest.CaptureFixture[str]
app = typer.Typer()
contexts: list[typer.Context] = []


def test_report_prints_a_record_or_lines(capsys: Capture) -> None:
    output.report(True, {"accuracy": 0.5, "name": "ä"}, "for people")
    assert json.loads(capsys.readouterr().out) == {"accuracy": 0.5, "name": "ä"}
    output.report(False, {}, "for people")
    assert capsys.readouterr().out == "for people\n"


def test_show_prints_long_lines_and_brackets_as_they_are(capsys: Capture) -> None:
    line = "[red] " + "word " * 100 + "end"
    output.show(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_tables_leave_out_columns(capsys: Capture) -> None:
    table = Table("Title", ["method", "AUC"], [["FMP", "0.9"]])
    output.show(*output.tables([table], leave_out=["AUC"]))
    shown = capsys.readouterr().out
    assert "FMP" in shown
    assert "AUC" not in shown


def test_say_prints_to_standard_error(capsys: Capture) -> None:
    output.say("note")
    assert capsys.readouterr() == ("", "note\n")


def test_elapsed_counts_from_the_start() -> None:
    first = output.elapsed()
    assert 0 < first <= output.elapsed()


@app.command()
def debias(
    context: typer.Context,
    predictions: Path,
    sensitive: list[str] | None = None,
    sensitive_bins: str | None = None,
    target: float = 0.0,
    unknown_groups: bool = typer.Option(False, "--allow-unknown-groups"),
    picture: bool = True,
    out: Path | None = None,
) -> None:
    contexts.append(context)


@app.command()
def other() -> None: ...


ALL = typer.main.get_command(program(*COMMANDS)).commands  # type: ignore[attr-defined]
OPTIONS = {
    name
    for command in ALL.values()
    for parameter in command.params
    for name in (*parameter.opts, *parameter.secondary_opts)
} - {"--paper", "--help"}  # a colour of the pages
COMMAND = typer.main.get_command(app).commands["debias"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value", "spelled"),
    [
        ("target", None, "--target"),
        ("target", "0.02", "--target 0.02"),
        ("sensitive_bins", "3", "--sensitive-bins 3"),
        ("sensitive_bins", "[25, 40]", "--sensitive-bins 25,40"),
        ("sensitive", "['sex', 'zip code']", "--sensitive sex --sensitive 'zip code'"),
        ("picture", "True", "--picture"),
        ("picture", "False", "--no-picture"),
        ("unknown_groups", "'allow'", "--allow-unknown-groups"),
        ("scores", None, "PREDICTIONS"),
        ("sens", None, "--sensitive"),
        ("path", None, "--out"),
        ("target", "…", "--target …"),
        ("num_layers", "2", "num_layers=2"),
        ("sex", None, "sex"),
    ],
)
def test_spelling_writes_arguments_as_options(name: str, value: str | None, spelled: str) -> None:
    assert spelling_of(COMMAND)(name, value) == spelled


def test_every_spelled_parameter_is_one_of_a_command() -> None:
    parameters = {parameter.name for command in ALL.values() for parameter in command.params}
    assert {name for names in PARAMETERS.values() for name in names} <= parameters


def test_typed_command_is_the_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fairmp", "data", "fetch", "data"])
    assert typed_command(program("data")).name == "fetch"
    monkeypatch.setattr(sys, "argv", ["fairmp", "dance"])
    assert set(typed_command(program("data", "audit")).commands) == {"data", "audit"}


def test_rerun_command_hides_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "train", "--nodes", "postgresql://me:secret@host/db"])
    assert rerun_command() == "fairmp train --nodes 'postgresql://me:***@host/db'"


CHOICES = " --criterion {criterion} --target {target}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["t.csv"], "t.csv"),
        (["t.csv", "--target", "0.3", "--sensitive", "sex"], "t.csv --sensitive sex"),
        (["--target=0.3", "a b.csv", "--out", "my folder"], "'a b.csv'"),
        (["t.csv", "--no-picture", "--sensitive-bins=1"], "t.csv --sensitive-bins 1 --no-picture"),
        (["t.csv", "--sensitive", "a", "--sensitive", "b"], "t.csv --sensitive a --sensitive b"),
        (["t.csv", "--sensitive-bins", "a://b:secret@c"], "t.csv --sensitive-bins 'a://b:***@c'"),
    ],
)  # fmt: skip
def test_adjustable_command_replaces_what_readers_choose(words: list[str], expected: str) -> None:
    app(["debias", *words], standalone_mode=False)
    command = adjustable_command(contexts.pop(), "criterion", "target")
    assert sorted(command.split()) == sorted(f"fairmp debias {expected}{CHOICES}".split())
    assert command.endswith(CHOICES)


def test_train_command_has_options_or_placeholders_for_them() -> None:
    options = {"data": "nba", "drop": ["a b", "c"], "target": 0.1, "eval_every": 2}
    plain = "fairmp train --data nba --drop 'a b' --drop c"
    assert train_command(options) == f"{plain} --target 0.1 --eval-every 2"
    assert train_command(options, "criterion", "target") == f"{plain} --eval-every 2{CHOICES}"


def test_texts_of_the_library_name_no_options() -> None:
    package = Path(fairmp.__file__).parent
    option = re.compile(r"(?:^|[\s'\"(`])(--[a-z][\w-]+)")
    texts = [
        f"{path.relative_to(package)}: {text.value}"
        for path in package.rglob("*.py")
        if "cli" not in path.parts
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        and set(option.findall(text.value)) & OPTIONS
    ]  # fmt: skip
    assert not texts


def test_names_from_tables_are_never_escapes_of_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "group\x1b]0;owned\x07\x1b[31m"
    output.say(name)
    output.show(name, rich_table(Table(name, [name, "x"], [[name, "1"]])))
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_table_wider_than_the_terminal_is_not_cropped(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    cells = ["80.1 [79.8, 80.6]", "18.0 [15.2, 20.0]", "10.2"]
    table = Table("", ["method", "accuracy %", "ΔDP", "s"], [["plain propagation", *cells]])
    output.show(rich_table(table))
    shown = capsys.readouterr().out
    assert all(cell in shown for cell in (*cells, "accuracy %", "ΔDP"))
