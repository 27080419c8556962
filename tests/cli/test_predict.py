"""``fairmp predict`` as a new user meets it: a model from ``fairmp train``, and new tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import demographic_parity_difference

from fairmp import FairClassifier
from fairmp.cli import main
from fairmp.datasets import from_tables, social_network
from tests.cli.conftest import Program

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
    model = FairClassifier(FMP(2, 1.0), epochs=4, backbone="mlp")
    model.fit(data, bootstrap=0)
    model.save(folder / "out" / "model")
    network = FairClassifier(None, epochs=1, backbone="mlp")
    network.fit(social_network(n=300, average_degree=6), bootstrap=0)
    network.save(folder / "network")
    return folder


@pytest.fixture
def fairmp(fairmp: Program, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(trained)
    return fairmp


def test_new_nodes_in_a_csv(fairmp, trained: Path) -> None:
    status, out, err = fairmp(f"predict out {NEW} --out p.csv")
    assert (status, err) == (0, "")
    assert "no column 'hired'" in out
    assert "Predictions in p.csv; open p.csv.html." in out
    assert "people" in (trained / "p.csv.html").read_text(encoding="utf-8")
    predictions = pd.read_csv(trained / "p.csv", dtype={"who": str})
    assert list(predictions) == ["who", "sex", "p(no)", "p(yes)", "decision"]
    assert predictions["who"].tolist() == [f"{k:03d}" for k in reversed(range(160))]
    model = FairClassifier.load(trained / "out" / "model")
    data = from_tables(trained / "new.csv", trained / "ties.csv", encoding=model.encoding_)
    assert predictions["p(yes)"].to_numpy() == pytest.approx(
        model.predict_proba(data, mode="per-node")[:, 1].numpy(), abs=1e-6
    )
    # All digits are written: at the threshold they decide.
    decided = np.where(predictions["p(yes)"] > predictions["p(no)"], "yes", "no")
    assert (predictions["decision"] == decided).all()

    status, _, err = fairmp(f"predict out {NEW} --out p.csv")
    assert status == 2
    assert err == "fairmp: --out: p.csv exists; give another name, or add --overwrite\n"
    assert fairmp(f"predict out {NEW} --out p.csv --overwrite --mode per-node")[0] == 0
    assert (trained / "p.csv").stat().st_mode & 0o077 == 0


def test_per_node_is_predict_new(fairmp, trained: Path, tmp_path: Path) -> None:
    """People who joined later, in a file and in Python; one edge is to nobody, and dropped."""
    people = pd.read_csv(trained / "people.csv", dtype={"who": str})
    ties = pd.read_csv(trained / "ties.csv", dtype=str)
    late = people["who"] > "140"
    data = from_tables(
        people[~late],
        ties[~ties.isin(list(people["who"][late])).any(axis=1)],
        id="who",
        label="hired",
        sensitive="sex",
    )
    model = FairClassifier(backbone="logistic", graph_features=True).fit(data, bootstrap=0)
    model.save(tmp_path, graph=True)
    new = people[late].drop(columns="hired")
    edges = ties[ties.isin(list(new["who"])).any(axis=1)]
    expected = model.predict_new(new, edges)
    new.to_csv(tmp_path / "late.csv", index=False)
    pd.concat([edges, pd.DataFrame({"a": ["141"], "b": ["900"]})]).to_csv(
        tmp_path / "late-ties.csv", index=False
    )
    command = f"predict {tmp_path} --nodes {tmp_path}/late.csv --edges {tmp_path}/late-ties.csv"
    status, out, err = fairmp(f"{command} --mode per-node --out {tmp_path}/p.csv")
    assert (status, err) == (0, "")
    assert "1 dangling edge row dropped" in out
    predicted = pd.read_csv(tmp_path / "p.csv", dtype={"who": str})
    assert predicted["who"].tolist() == expected["who"].tolist()
    assert predicted["decision"].tolist() == expected["decision"].tolist()
    np.testing.assert_allclose(predicted["p(yes)"], expected["p(yes)"], atol=1e-6)
    status, out, err = fairmp(f"{command} --explain --out {tmp_path}/e.csv")
    assert (status, err) == (0, "")
    assert "Neighbours changed " in out
    explained = pd.read_csv(tmp_path / "e.csv", dtype={"who": str})
    parts = explained[["logit: own data", "logit: neighbours", "logit: correction"]]
    p = explained["p(yes)"]
    np.testing.assert_allclose(parts.sum(axis=1), np.log(p / (1 - p)), atol=1e-5)
    assert set(explained["decision: own data"]) <= {"no", "yes"}
    status, _, err = fairmp(f"{command} --explain --mode batch --out {tmp_path}/f.csv")
    assert status == 2
    assert "--explain: only people who are not in the stored training graph" in err
    # Known people among them are predicted in the joined graph, which is said.
    people.drop(columns="hired").to_csv(tmp_path / "all.csv", index=False)
    status, out, _ = fairmp(
        f"predict {tmp_path} --nodes {tmp_path}/all.csv --mode per-node --out {tmp_path}/q.csv"
    )
    assert status == 0
    assert "141 nodes of the training graph among them" in out


def test_nodes_without_edges(fairmp, trained: Path) -> None:
    new = pd.read_csv(trained / "new.csv", dtype={"who": str})
    new.head(1).to_csv(trained / "single.csv", index=False)
    (trained / "header.csv").write_text("a,b\n")
    (trained / "strange.csv").write_text("a,b\nx,y\ny,z\n")
    tables = {
        "single.csv": "no edge table: no node has an edge",
        "single.csv --edges header.csv": "no node has an edge: the table has a header and no rows",
        "single.csv --edges strange.csv": "none of the 2 rows joins two ids",
        "new.csv": "no edge table: no node has an edge",
    }
    predictions = {}
    for k, (table, note) in enumerate(tables.items()):
        status, out, err = fairmp(f"predict out --nodes {table} --mode per-node --out t{k}.csv")
        assert (status, err) == (0, "")
        assert note in out
        predictions[table] = pd.read_csv(trained / f"t{k}.csv", dtype={"who": str})
    # Alone or among strangers: a frozen correction of a node without ties is its own affair.
    for table in tables:
        pd.testing.assert_frame_equal(predictions[table].head(1), predictions["single.csv"])
    assert fairmp("predict out --nodes new.csv --out solved.csv")[0] == 0


def test_small_batches_are_predicted_per_node(fairmp, trained: Path) -> None:
    """Of few people one is more than a point: --mode batch insists, with a warning."""
    model = FairClassifier.load(trained / "out" / "model")
    data = from_tables(trained / "new.csv", trained / "ties.csv", encoding=model.encoding_)
    status, out, _ = fairmp(f"predict out {NEW} --out auto.csv --json")
    assert status == 0
    record = json.loads(out)
    assert record["mode"] == "per-node"
    smallest = int(min(data.sens.bincount()))
    assert f"{smallest} nodes" in record["mode_note"]
    status, out, err = fairmp(f"predict out {NEW} --out batch.csv --mode batch --json")
    assert status == 0
    assert json.loads(out)["mode"] == "batch"
    assert "warning" in err
    expected = model.predict_proba(data)[:, 1].numpy()
    predicted = pd.read_csv(trained / "batch.csv")["p(yes)"].to_numpy()
    assert predicted == pytest.approx(expected, abs=1e-6)
    assert fairmp(f"predict out {NEW} --out alone.csv --mode per-node")[0] == 0
    alone, auto = (pd.read_csv(trained / name) for name in ("alone.csv", "auto.csv"))
    pd.testing.assert_frame_equal(alone, auto)


def test_labels_are_evaluated(fairmp, trained: Path) -> None:
    status, out, _ = fairmp(
        "predict out/model --nodes people.csv --edges ties.csv --out p.parquet --json --mode batch"
    )
    assert status == 0
    record = json.loads(out)
    predictions = pd.read_parquet(trained / "p.parquet")
    people = pd.read_csv(trained / "people.csv")
    assert record["evaluation"]["accuracy"] == pytest.approx(
        (predictions["decision"] == people["hired"]).mean()
    )
    assert record["mode"] == record["evaluation"]["mode"] == "batch"
    assert sum(record["decisions"].values()) == record["nodes"] == 160
    status, out, _ = fairmp("predict out --nodes people.csv --edges ties.csv --out q.csv")
    assert "accuracy" in out
    assert "including any the model was trained on" in out  # its graph was not kept


def test_data_set_by_name(fairmp, trained: Path) -> None:
    status, out, err = fairmp("predict network --data embedded")
    assert (status, err) == (0, "")
    assert "20,000 people" in out
    assert len(pd.read_csv(trained / "predictions.csv")) == 20_000
    assert "predictions-2.csv" in fairmp("predict network --data Embedded:300")[1]
    assert len(pd.read_csv(trained / "predictions-2.csv")) == 300


def test_model_without_correction_needs_no_groups(fairmp, trained: Path) -> None:
    data = from_tables(
        trained / "people.csv", trained / "ties.csv", id="who", label="hired", sensitive="sex"
    )
    model = FairClassifier(None, epochs=1, backbone="mlp")
    model.fit(data, bootstrap=0)
    model.save(trained / "blind")
    pd.read_csv(trained / "new.csv", dtype=str).drop(columns="sex").to_csv(
        trained / "nosex.csv", index=False
    )
    status, out, _ = fairmp("predict blind --nodes nosex.csv --edges ties.csv --out n.csv")
    assert status == 0
    assert "no column 'sex' (not needed)" in out
    status, _, err = fairmp("predict out --nodes nosex.csv --edges ties.csv --out m.csv")
    assert status == 2
    assert "no column 'sex', which holds the groups" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"nowhere {NEW}", ["MODEL: there is no folder nowhere"]),
        ("out", ["--nodes: missing; give --nodes and --edges (", "or --data"]),
        ("out --edges ties.csv", ["--nodes: missing"]),
        (
            "out --nodes one.csv --mode batch",
            ["group 'm' has no node among the 1", "--mode per-node"],
        ),
        ("network --data embeded", ["did you mean 'embedded'?", "There are embedded, nba"]),
        (
            "network --data embedded:50000000000",
            ["'embedded:50000000000' asks for 50,000,000,000 nodes; give 40 to 100,000,000"],
        ),
        (f"out {NEW} --mode guess", ["--mode: 'guess'"]),
        (f"out {NEW} --out p.xlsx", ["neither .csv nor .parquet"]),
        (f"out {NEW} --out new.csv --overwrite", ["--out: new.csv is an input table"]),
        (f"out {NEW} --out no/p.csv", ["--out: ", "not a folder"]),
        (f"out {NEW} --data nba", ["--data: 'nba' cannot be combined with --nodes"]),
        (f"out {NEW} --id name", ["--id: the node table has no column 'name'"]),
        (f"network {NEW}", ["--nodes: the model was not trained on tables", "--data"]),
        ("out --data embedded", ["32 features, the model was trained on 3: 'income'"]),
        ("out --nodes renamed.csv --edges ties.csv", ["no column 'income' (is it 'incomes' now?)"]),
        ("out --nodes words.csv --edges ties.csv", ["'income' held numbers", "'much'"]),
        (
            "out --nodes moon.csv --edges ties.csv",
            ["group 'moon' was not seen", "--allow-unknown-groups"],
        ),
        (
            "out --nodes moon.csv --edges ties.csv --allow-unknown-groups --mode batch",
            ["group 'f' has no node among the 160", "--mode per-node"],
        ),
        ("out --nodes class.csv --edges ties.csv", ["'perhaps' in column 'hired' is not a class"]),
        ("half --nodes new.csv --edges ties.csv", ["MODEL: ", "model.safetensors is damaged"]),
    ],
)
def test_bad_input_is_one_line(fairmp, trained: Path, arguments: str, words: list[str]) -> None:
    text = (trained / "new.csv").read_text()
    people = pd.read_csv(trained / "people.csv", dtype=str)
    (trained / "renamed.csv").write_text(text.replace("income", "incomes"))
    people[people["sex"] == "f"].head(1).to_csv(trained / "one.csv", index=False)
    people.assign(income="much").to_csv(trained / "words.csv", index=False)
    people.assign(sex="moon").to_csv(trained / "moon.csv", index=False)
    people.assign(hired="perhaps").to_csv(trained / "class.csv", index=False)
    half = trained / "half"
    half.mkdir(exist_ok=True)
    for path in (trained / "out" / "model").iterdir():
        content = path.read_bytes()
        (half / path.name).write_bytes(content[: len(content) // 2])
    before = sorted(path.name for path in trained.iterdir())
    status, out, err = fairmp(f"predict {arguments}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line
    assert sorted(path.name for path in trained.iterdir()) == before


@pytest.mark.parametrize(
    "command", ["train --splits 3", "train --solver papc", "tune --method fmp --out nothing"]
)
def test_group_too_small_to_split_is_an_error_before_training(
    fairmp, trained: Path, command: str
) -> None:
    people = pd.read_csv(trained / "people.csv", dtype={"who": str})
    people["sex"] = people["sex"].where(people.index != 7, "x")
    people.to_csv(trained / "rare.csv", index=False)
    tables = OWN.replace("people.csv", "rare.csv")
    status, out, err = fairmp(f"{command} {tables}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert "--sensitive: 'sex' has groups too small" in line
    assert "(labelled nodes: 'x' 1); make them one with --min-group 30" in line
    assert not (trained / "nothing").exists()


def test_small_group_without_correction(fairmp, trained: Path) -> None:
    people = pd.read_csv(trained / "people.csv", dtype={"who": str})
    people["sex"] = people["sex"].where(people.index != 7, "x")
    people.to_csv(trained / "rare.csv", index=False)
    tables = OWN.replace("people.csv", "rare.csv")
    status, out, err = fairmp(
        f"train {tables} --solver plain --epochs 2 --splits 1 --no-picture --out rare"
    )
    assert (status, err) == (0, "")
    assert "group 'x' has no" in out


def test_column_with_two_roles_is_an_error(fairmp) -> None:
    status, _, err = fairmp(f"audit {OWN.replace('sex', 'hired')}")
    assert status == 2
    assert err == "fairmp: --sensitive: column 'hired' is the label column already; name another\n"


def test_train_then_predict(fairmp, trained: Path) -> None:
    status, _, err = fairmp(f"train {OWN} --epochs 5 --splits 1 --out fresh")
    assert (status, err) == (0, "")
    assert fairmp(f"predict fresh {NEW} --out fresh.csv")[0] == 0
    assert len(pd.read_csv(trained / "fresh.csv")) == 160


def test_debias_reads_predictions(fairmp, trained: Path) -> None:
    assert fairmp(f"predict out {NEW} --out chain.csv")[0] == 0
    new = pd.read_csv(trained / "new.csv")
    assert pd.read_csv(trained / "chain.csv")["sex"].tolist() == new["sex"].tolist()
    status, out, err = fairmp("debias chain.csv --sensitive sex --target 0.02 --out chained")
    assert (status, err) == (0, "")
    assert "demographic parity, sex" in out

    pd.concat([new.assign(sex=new["sex"].where(new.index > 9)), new]).drop_duplicates("who").to_csv(
        trained / "some.csv", index=False
    )
    assert fairmp("predict out --nodes some.csv --edges ties.csv --out some-p.csv")[0] == 0
    groups = pd.read_csv(trained / "some-p.csv")["sex"]
    assert groups[:10].isna().all()
    assert groups[10:].tolist() == new["sex"][10:].tolist()


def test_note_on_small_samples_is_printed_once(fairmp, trained: Path) -> None:
    _, out, _ = fairmp("predict out --nodes people.csv --edges ties.csv --out read.csv")
    assert "[" in out.split("ΔDP", 1)[1].splitlines()[0]
    assert out.count("note: In small samples a measured gap") == 1


def test_predictions_keep_the_label_column(fairmp, trained: Path) -> None:
    """The path of the README: predict, then correct for equal opportunity."""
    options = "--nodes people.csv --edges ties.csv --mode per-node"
    status, _, err = fairmp(f"predict out {options} --out labelled.csv")
    assert (status, err) == (0, "")
    predictions = pd.read_csv(trained / "labelled.csv", dtype={"who": str})
    people = pd.read_csv(trained / "people.csv", dtype={"who": str})
    assert list(predictions) == ["who", "sex", "hired", "p(no)", "p(yes)", "decision"]
    assert predictions["hired"].tolist() == people["hired"].tolist()
    criterion = "--label hired --criterion equal-opportunity --target 0.02"
    status, out, err = fairmp(f"debias labelled.csv --sensitive sex {criterion} --out eo --json")
    assert (status, err) == (0, "")
    assert '"equal_opportunity"' in out
    assert (trained / "eo" / "corrected.csv").exists()


def test_train_for_equal_opportunity(fairmp, trained: Path) -> None:
    criterion = "--criterion equal-opportunity --target 0.05 --epochs 5 --splits 1 --no-picture"
    status, _, err = fairmp(f"train {OWN} {criterion} --out eo-model")
    assert (status, err) == (0, "")
    model = FairClassifier.load(trained / "eo-model" / "model")
    assert (model.criterion, model.propagation.target) == ("equal_opportunity", 0.05)
    assert "equal opportunity" in (trained / "eo-model" / "report.html").read_text()
    status, _, err = fairmp(f"predict eo-model {NEW} --out eo.csv")
    assert (status, err) == (0, "")
    status, _, err = fairmp(f"train {OWN} --criterion equal-opportunity --solver papc --out no")
    assert status == 2
    assert err.startswith("fairmp: --criterion: 'equal_opportunity' with")
    assert not (trained / "no").exists()


def test_train_group_free(fairmp, trained: Path) -> None:
    options = "--group-free --target 0.3 --backbone logistic --folds 2 --splits 1 --no-picture"
    status, _, err = fairmp(f"train {OWN} {options} --out group-free")
    assert (status, err) == (0, "")
    page = (trained / "group-free" / "report.html").read_text()
    assert "What the predictions tell about the group" in page
    assert "What the estimates of the group rest on" in page
    blind = pd.read_csv(trained / "new.csv", dtype={"who": str}).drop(columns="sex")
    blind.to_csv(trained / "blind.csv", index=False)
    status, out, err = fairmp(
        "predict group-free --nodes blind.csv --edges ties.csv --out blind-p.csv"
    )
    assert (status, err) == (0, "")
    assert "no column 'sex' (not needed)" in out
    assert "without a sensitive group" not in out
    status, _, err = fairmp("monitor group-free blind-p.csv --out monitored")
    assert status == 2
    assert "no column 'sex'; monitoring needs groups: join them to the table" in err
    assert list(pd.read_csv(trained / "blind-p.csv")) == ["who", "p(no)", "p(yes)", "decision"]
    for wrong, word in (
        ("--solver papc", "--group-free: --solver papc does not use it"),
        ("--on probabilities", "--on: 'probabilities'; --group-free is for 'decisions'"),
        ("--target 0.02 --confidence 0.95 --backbone logistic --folds 2", "too few people"),
    ):
        status, _, err = fairmp(f"train {OWN} --group-free {wrong} --out none")
        assert (status, word in err) == (2, True), err


def test_where_and_only_select_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 150
    people = pd.DataFrame({"who": [f"p{k}" for k in range(n)], "age": rng.normal(size=n)})
    people["sex"], people["year"] = (
        rng.choice(["f", "m"], n),
        np.where(rng.random(n) < 0.3, 2024, 2023),
    )
    people["hired"] = np.where(people["age"] > 0, "yes", "no")
    people.to_csv("people.csv", index=False)
    pd.DataFrame(rng.choice(people["who"], (500, 2)), columns=["a", "b"]).to_csv(
        "e.csv", index=False
    )
    tables = ["--nodes", "people.csv", "--edges", "e.csv"]

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fairmp", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), capsys.readouterr().err

    train = ["train", *tables, "--id", "who", "--label", "hired", "--sensitive", "sex"]
    train += ["--drop", "year", "--epochs", "3", "--splits", "1", "--no-picture"]
    train += ["--backbone", "mlp"]
    assert run(*train, "--out", "run") == (0, "")
    assert (tmp_path / "run" / "model" / "graph.npz").exists()
    assert run(*train, "--out", "bare", "--no-graph") == (0, "")
    assert not (tmp_path / "bare" / "model" / "graph.npz").exists()
    late = people[people["year"] == 2024]
    late[["who"]].to_csv("late.csv", index=False)
    assert run("predict", "run", *tables, "--where", "year=2024", "--out", "where.csv")[0] == 0
    assert run("predict", "bare", *tables, "--only", "late.csv", "--out", "only.csv")[0] == 0
    late.drop(columns="hired").to_csv("new.csv", index=False)
    command = ["predict", "run", "--nodes", "new.csv", "--out", "kept.csv"]
    assert run(*command)[0] == 0
    for who, words in (
        (late["who"], f"on all these nodes, including {len(late)} of the training graph:"),
        ("n" + late["who"], "on these nodes:"),
    ):
        late.assign(who=who).to_csv("labelled.csv", index=False)
        monkeypatch.setattr(sys, "argv", ["fairmp", *command[:2], "--nodes", "labelled.csv"])
        with pytest.raises(SystemExit):
            main()
        assert f"Measured {words}" in capsys.readouterr().out
    tables_of = {name: pd.read_csv(f"{name}.csv") for name in ("where", "only", "kept")}
    for predictions in tables_of.values():
        assert list(predictions["who"]) == list(late["who"])
        # The same graph, from the tables or from the model's folder.
        assert np.allclose(predictions["p(yes)"], tables_of["where"]["p(yes)"], atol=1e-6)
    # Labels of neighbours are those of the kept graph, whichever table is given.
    train[-1] = "logistic"
    assert run(*train, "--graph-features", "--out", "near") == (0, "")
    ways = (
        ["--nodes", "new.csv"],
        [*tables, "--where", "year=2024"],
        [*tables, "--only", "late.csv"],
    )
    for k, words in enumerate(ways):
        assert run("predict", "near", *words, "--out", f"near{k}.csv")[0] == 0
    first, *others = (pd.read_csv(f"near{k}.csv") for k in range(3))
    for predictions in others:
        assert np.allclose(predictions["p(yes)"], first["p(yes)"], atol=1e-6)
    # Probabilities are written with all digits, so that they give the same decisions.
    assert ((first["p(yes)"] > first["p(no)"]) == (first["decision"] == "yes")).all()
    assert run(*train, "--no-graph", "--out", "far") == (0, "")
    far = FairClassifier.load(tmp_path / "far" / "model")
    assert far.network_.transform.inputs.labels.numel() == 0
    for wrong, option in (
        (["--where", "year"], "--where"),
        (["--where", "yaer=2024"], "--where"),
        (["--where", "year=1999"], "--where"),
        (["--only", "nothing.csv"], "--only"),
    ):
        status, err = run("predict", "run", *tables, *wrong, "--out", "w.csv")
        assert (status, err.count("\n")) == (2, 1), err
        assert option in err
        assert not (tmp_path / "w.csv").exists()


def test_paper_sets_its_settings(fairmp, trained: Path) -> None:
    options = "--paper --epochs 3 --weight-decay 0.1 --splits 1 --no-picture"
    assert fairmp(f"train {OWN} {options} --out paper")[0] == 0
    model = FairClassifier.load(trained / "paper" / "model")
    assert (model.lr, model.patience, model.calibrate, model.backbone) == (1e-3, None, False, "mlp")
    assert (model.epochs, model.weight_decay, model.propagation.lambda_s) == (3, 0.1, 3.0)


def test_sample_weights_in_training_figures_and_gaps(fairmp, trained: Path) -> None:
    people = pd.read_csv(trained / "people.csv", dtype={"who": str})
    weight = np.random.default_rng(1).gamma(1.0, size=len(people)).round(3)
    people.assign(times=weight).to_csv(trained / "weighted.csv", index=False)
    options = OWN.replace("people", "weighted") + " --epochs 5 --splits 1 --no-picture --json"
    status, _, err = fairmp(f"train {options} --weight times --out weighted")
    assert (status, err) == (0, "")
    model = FairClassifier.load(trained / "weighted" / "model")
    assert "times" not in model.features_
    new = "--nodes weighted.csv --edges ties.csv --out weighted-p.csv --json"
    status, out, err = fairmp(f"predict weighted {new}")
    assert (status, err) == (0, "")
    table, figures = pd.read_csv(trained / "weighted-p.csv"), json.loads(out)["evaluation"]
    gap = demographic_parity_difference(
        table["hired"], table["decision"] == "yes", sensitive_features=table["sex"],
        sample_weight=weight,
    )  # fmt: skip
    right = table["decision"] == table["hired"]
    assert figures["dp"] == pytest.approx(gap)
    assert figures["accuracy"] == pytest.approx(np.average(right, weights=weight))
    # One of the heaviest nodes is what a gap can be off.
    smallest = min(weight[people["sex"] == sex].sum() for sex in "fm")
    assert figures["dp"] <= weight.max() / smallest
    assert fairmp(f"predict weighted {NEW} --out unweighted.csv")[0] == 0  # has no such column


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --data embedded --weight times", "--weight: needs --nodes"),
        (f"train {OWN} --weight time", "--weight: the node table has no column 'time'"),
        (f"train {OWN} --weight town", "--weight: column 'town' has 'Oslo' in row 1"),
        (f"train {OWN} --weight hired", "--weight: column 'hired' is the label column already"),
        (f"audit {OWN} --weight income", "--weight: 'income', but all nodes weigh the same here"),
        (f"shard {OWN} --weight income", "--weight: 'income', but all nodes weigh the same here"),
        ("train --shards out --weight income", "--weight: cannot be combined with --shards"),
    ],
)
def test_wrong_weights_are_one_line(fairmp, trained: Path, words: str, message: str) -> None:
    status, _, err = fairmp(f"{words} --out wrong")
    assert (status, err.count("\n")) == (2, 1), err
    assert err.startswith(f"fairmp: {message}")
    assert not (trained / "wrong").exists()


def test_classifier_of_an_unknown_type_needs_trust(fairmp, trained: Path) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    files = (trained / "people.csv", trained / "ties.csv")
    data = from_tables(*files, id="who", label="hired", sensitive="sex")
    model = FairClassifier(backbone=KNeighborsClassifier(algorithm="kd_tree"))
    model.fit(data, bootstrap=0)
    model.save(trained / "unknown")
    command = f"predict unknown {NEW} --out unknown.csv"
    status, _, error = fairmp(command)
    assert status == 2
    assert "--trust" in error
    assert fairmp(f"{command} --trust")[0] == 0
    expected = model.predict_proba(data, mode="per-node")[:, 1].flip(0)
    np.testing.assert_allclose(pd.read_csv("unknown.csv")["p(yes)"], expected, atol=1e-5)
