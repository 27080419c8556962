from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp import FMP, FairClassifier
from fairmp.cli import main
from fairmp.datasets import from_tables
from fairmp.training import model_files
from fairmp.training.model_files import NOTHING, held_sentence, personal_data

N = 120


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {"who": [f"ZQX{k:04}" for k in range(N)], "sex": rng.choice(["f", "m"], N)}
    )
    people["age"] = rng.normal(size=N) + (people.sex == "m")
    people["hired"] = np.where(people.age + rng.normal(size=N) > 0.5, "yes", "no")
    edges = pd.DataFrame(rng.choice(people["who"], (4 * N, 2)), columns=["a", "b"])
    return people, edges


def fitted(tables, **settings) -> FairClassifier:
    people, edges = tables
    data = from_tables(people, edges, id="who", label="hired", sensitive="sex")
    arguments = {"backbone": "logistic", "folds": 2} | settings
    model = FairClassifier(FMP(2, 1.0), **arguments)
    return model.fit(data, bootstrap=0, progress=False)


def content(path: Path) -> bytes:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return b"".join(file.read_bytes() for file in files if file.is_file())


def long_buffers(folder: Path) -> list[str]:
    """Tensors with an entry for every node, or for every labelled one."""
    tensors, _ = model_files.read(folder)
    return [name for name, t in tensors.items() if t.dim() == 1 and N // 2 < t.numel() <= N]


@pytest.mark.parametrize("group_free", [False, True])
def test_model_without_the_neighbourhood_holds_nobody(tables, tmp_path: Path, group_free) -> None:
    model = fitted(tables, graph_features=False, neighbour_groups=False, group_free=group_free)
    assert personal_data(model.fitted_) == []
    assert held_sentence([]) == NOTHING
    folder = model.save(tmp_path / "model")
    assert b"ZQX" not in content(folder)
    assert not long_buffers(folder)


def test_labels_of_the_neighbourhood_are_named_and_private(tables, tmp_path: Path) -> None:
    model = fitted(tables, graph_features=True)
    labels = model.network_.transform.inputs.labels
    [part] = personal_data(model.fitted_)
    assert f"labels of {int((labels >= 0).sum())} people in training" in part
    folder = model.save(tmp_path / "model")
    assert long_buffers(folder)
    assert (folder / model_files.MODEL).stat().st_mode & 0o077 == 0
    model.save_graph(folder)
    assert (folder / "graph.npz").stat().st_mode & 0o077 == 0
    assert len(personal_data(model.fitted_, graph=True)) == 2


def test_known_groups_of_group_free_models_are_named(tables) -> None:
    model = fitted(tables, graph_features=True, group_free=True)
    holds = " ".join(personal_data(model.fitted_))
    assert "labels of" in holds
    assert "groups of" in holds


@pytest.mark.parametrize("words", ["", "--no-graph", "--no-graph --graph-features"])
def test_train_says_what_the_folder_holds(
    tables, tmp_path: Path, monkeypatch, capsys, words: str
) -> None:
    people, edges = tables
    people.to_csv(tmp_path / "people.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    monkeypatch.chdir(tmp_path)
    command = (
        "fairmp train --nodes people.csv --edges edges.csv --id who --label hired --sensitive sex "
    )
    command += f"--backbone logistic --folds 2 --splits 1 --no-picture --out run {words}"
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit) as end:
        main()
    said = " ".join(capsys.readouterr().out.split())
    assert not end.value.code
    model = FairClassifier.load("run/model")
    sentence = held_sentence(personal_data(model.fitted_, graph=not words))
    assert sentence in said
    monkeypatch.setattr("sys.argv", ["fairmp", "report", "run", "--card", "--out", "card.html"])
    with pytest.raises(SystemExit):
        main()
    assert sentence in Path("card.md").read_text()
    assert (sentence == NOTHING) == (words == "--no-graph")
    assert b"ZQX" not in content(Path("run") / "model" / model_files.MODEL)
    if words == "--no-graph":
        assert b"ZQX" not in content(Path("run"))
