"""``fairmp predict`` as a new user meets it: a model from ``fairmp train``, and new tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp import FairClassifier
from fairmp.cli import main
from fairmp.datasets import from_tables, social_network

OWN = "--nodes people.csv --edges ties.csv --id who --label hired --sensitive sex"
NEW = "--nodes new.csv --edges ties.csv"


def tables(folder: Path) -> None:
    rng = np.random.default_rng(0)
    n = 160
    people = pd.DataFrame(
        {
            "who": [f"{k:03d}" for k in range(n)],
            "hired": rng.choice(["no", "yes"], n),
            "sex": rng.choice(["f", "m"], n),
            "income": rng.normal(40_000, 9_000, n).round(),
            "town": rng.choice(["Oslo", "Rome"], n),
        }
    )
    people.to_csv(folder / "people.csv", index=False)
    people.drop(columns="hired").iloc[::-1, ::-1].to_csv(folder / "new.csv", index=False)
    ends = rng.integers(n, size=(2, 3 * n))
    who = people["who"].to_numpy()
    ties = pd.DataFrame({"a": who[ends[0]], "b": who[ends[1]]})
    ties.to_csv(folder / "ties.csv", index=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and two models: of tables, and of the embedded network."""
    from fairmp import FMP

    folder = tmp_path_factory.mktemp("trained")
    tables(folder)
    data = from_tables(
        folder / "people.csv", folder / "ties.csv", id="who", label="hired", sensitive="sex"
    )
    model = FairClassifier(FMP(2, 1.0), epochs=4)
    model.fit(data, bootstrap=0)
    model.save(folder / "out" / "model")
    network = FairClassifier(None, epochs=1)
    network.fit(social_network(n=300, average_degree=6), bootstrap=0)
    network.save(folder / "network")
    return folder


@pytest.fixture
def fairmp(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    monkeypatch.chdir(trained)

    def run(arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fairmp", *arguments.split()])
        with pytest.raises(SystemExit) as leave:
            main()
        shown = capsys.readouterr()
        return int(leave.value.code or 0), shown.out, shown.err

    return run


def test_new_nodes_in_a_csv(fairmp, trained: Path) -> None:
    status, out, err = fairmp(f"predict out {NEW} --out p.csv")
    assert (status, err) == (0, "")
    assert "no column 'hired'" in out
    assert "Predictions in p.csv." in out
    found = pd.read_csv(trained / "p.csv", dtype={"who": str})
    assert list(found) == ["who", "p(no)", "p(yes)", "decision"]
    assert found["who"].tolist() == [f"{k:03d}" for k in reversed(range(160))]
    model = FairClassifier.load(trained / "out" / "model")
    data = from_tables(trained / "new.csv", trained / "ties.csv", encoding=model.encoding_)
    assert found["p(yes)"].to_numpy() == pytest.approx(
        model.predict_proba(data)[:, 1].numpy(), abs=1e-6
    )
    assert (found["decision"] == np.where(found["p(yes)"] > 0.5, "yes", "no")).all()

    status, _, err = fairmp(f"predict out {NEW} --out p.csv")
    assert status == 2
    assert err == "fairmp: --out: p.csv exists; give another name, or add --overwrite\n"
    assert fairmp(f"predict out {NEW} --out p.csv --overwrite --mode frozen")[0] == 0


def test_labels_are_compared_with_where_they_are(fairmp, trained: Path) -> None:
    status, out, _ = fairmp(
        "predict out/model --nodes people.csv --edges ties.csv --out p.parquet --json"
    )
    assert status == 0
    record = json.loads(out)
    found = pd.read_parquet(trained / "p.parquet")
    people = pd.read_csv(trained / "people.csv")
    assert record["evaluation"]["accuracy"] == pytest.approx(
        (found["decision"] == people["hired"]).mean()
    )
    assert record["mode"] == record["evaluation"]["mode"] == "solve"
    assert sum(record["decisions"].values()) == record["nodes"] == 160
    status, out, _ = fairmp("predict out --nodes people.csv --edges ties.csv --out q.csv")
    assert "accuracy" in out
    assert "any the model was trained on among them" in out


def test_a_data_set_by_name(fairmp, trained: Path) -> None:
    status, out, err = fairmp("predict network --data embedded")
    assert (status, err) == (0, "")
    assert "20,000 nodes" in out
    assert len(pd.read_csv(trained / "predictions.csv")) == 20_000
    assert "predictions-2.csv" in fairmp("predict network --data embedded")[1]


def test_a_model_without_groups_at_prediction_needs_no_groups(fairmp, trained: Path) -> None:
    data = from_tables(
        trained / "people.csv", trained / "ties.csv", id="who", label="hired", sensitive="sex"
    )
    model = FairClassifier(None, epochs=1)
    model.fit(data, bootstrap=0)
    model.save(trained / "blind")
    pd.read_csv(trained / "new.csv", dtype=str).drop(columns="sex").to_csv(
        trained / "nosex.csv", index=False
    )
    status, out, _ = fairmp("predict blind --nodes nosex.csv --edges ties.csv --out n.csv")
    assert status == 0
    assert "every node's group is unknown" in out
    status, _, err = fairmp("predict out --nodes nosex.csv --edges ties.csv --out m.csv")
    assert status == 2
    assert "no column 'sex', which the groups are in" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"nowhere {NEW}", ["MODEL: nowhere has no model.json"]),
        ("out", ["--nodes: missing; give --nodes and --edges, or --data"]),
        ("out --nodes new.csv", ["--edges: missing"]),
        (f"out {NEW} --mode guess", ["--mode: 'guess'"]),
        (f"out {NEW} --out p.xlsx", ["neither .csv nor .parquet"]),
        (f"out {NEW} --out new.csv --overwrite", ["--out: new.csv is a table to read"]),
        (f"out {NEW} --out no/p.csv", ["no folder that can be written to"]),
        (f"out {NEW} --data nba", ["--data: 'nba' goes without --nodes"]),
        (f"out {NEW} --id name", ["--id: the node table has no column 'name'"]),
        (f"network {NEW}", ["--nodes: the model was not trained on tables", "--data"]),
        ("out --data embedded", ["32 features, the model was trained on 3: 'income'"]),
        ("out --nodes renamed.csv --edges ties.csv", ["no column 'income' (is it 'incomes' now?)"]),
        ("out --nodes words.csv --edges ties.csv", ["'income' held numbers", "'much'"]),
        (
            "out --nodes moon.csv --edges ties.csv",
            ["group 'moon' was not there", "--allow-unknown-groups"],
        ),
        (
            "out --nodes moon.csv --edges ties.csv --allow-unknown-groups",
            ["group 'f' has no node among the 160", "--mode frozen"],
        ),
        ("out --nodes class.csv --edges ties.csv", ["'perhaps' in column 'hired' was no class"]),
        ("half --nodes new.csv --edges ties.csv", ["MODEL: ", "model.safetensors is damaged"]),
    ],
)
def test_bad_input_is_one_line(fairmp, trained: Path, arguments: str, words: list[str]) -> None:
    text = (trained / "new.csv").read_text()
    people = pd.read_csv(trained / "people.csv", dtype=str)
    (trained / "renamed.csv").write_text(text.replace("income", "incomes"))
    people.assign(income="much").to_csv(trained / "words.csv", index=False)
    people.assign(sex="moon").to_csv(trained / "moon.csv", index=False)
    people.assign(hired="perhaps").to_csv(trained / "class.csv", index=False)
    half = trained / "half"
    half.mkdir(exist_ok=True)
    for path in (trained / "out" / "model").iterdir():
        content = path.read_bytes()
        cut = len(content) // (2 if path.suffix == ".safetensors" else 1)
        (half / path.name).write_bytes(content[:cut])
    before = sorted(path.name for path in trained.iterdir())
    status, out, err = fairmp(f"predict {arguments}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line
    assert sorted(path.name for path in trained.iterdir()) == before


def test_train_then_predict(fairmp, trained: Path) -> None:
    status, _, err = fairmp(f"train {OWN} --epochs 5 --splits 1 --out fresh")
    assert (status, err) == (0, "")
    assert fairmp(f"predict fresh {NEW} --out fresh.csv")[0] == 0
    assert len(pd.read_csv(trained / "fresh.csv")) == 160
