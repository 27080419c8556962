"""``fairmp debias`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Program


@pytest.fixture
def loans(tmp_path: Path) -> pd.DataFrame:
    """People with a score that favours men, written as a user would have it."""
    rng = np.random.default_rng(0)
    n = 600
    sex = rng.integers(2, size=n)
    odds = rng.normal(size=n) + 0.9 * sex
    p = 1 / (1 + np.exp(-odds))
    paid = rng.random(n) < p
    table = pd.DataFrame(
        {
            "person": [f"{k:04d}" for k in range(n)],
            "sex": np.where(rng.random(n) < 0.1, "", np.array(["female", "male"])[sex]),
            "p": [f"{value:.6f}" for value in p],
            "repaid": np.where(np.arange(n) < 400, np.array(["no", "yes"])[paid.astype(int)], ""),
            "age": rng.integers(18, 70, n),
            "note": ['said "hello, there"', "ok"] * (n // 2),
        }
    )
    table.to_csv(tmp_path / "loans.csv", index=False)
    return table


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"person": str}, keep_default_na=False)


def gap(table: pd.DataFrame, column: str) -> float:
    values = table[column].astype(float)
    means = [values[table.sex == name].mean() for name in ("female", "male")]
    return abs(float(means[1] - means[0]))


def test_debias_writes_table_record_and_page(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    status, out, err = fairmp("debias loans.csv --sensitive sex --target 0.02 --on probabilities")
    assert (status, err) == (0, "")
    folder = tmp_path / "fairmp-debias"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["corrected.csv", "corrected.json", "report.html"]
    corrected = read(folder / "corrected.csv")
    # What was there is there as it was written.
    raw = (tmp_path / "loans.csv").read_text().splitlines()
    new = (folder / "corrected.csv").read_text().splitlines()
    assert all(after.startswith(before) for before, after in zip(raw, new, strict=True))
    assert list(corrected.columns[-3:]) == ["p_corrected", "decision_before", "decision_corrected"]
    assert gap(corrected, "p") > 0.1
    assert gap(corrected, "p_corrected") == pytest.approx(0.02, abs=1e-4)
    unknown = corrected.sex == ""
    np.testing.assert_allclose(corrected.p_corrected[unknown], corrected.p[unknown].astype(float))
    record = json.loads((folder / "corrected.json").read_text())
    changed = (corrected.decision_before != corrected.decision_corrected).sum()
    assert record["changed"] == changed
    assert f"{changed} decisions changed" in out
    assert "female" in out
    assert "unknown" in out
    assert record["group_uncertainty"][0]["left_out"] == unknown.sum()
    by_group = {group["group"]: group["changed"] for group in record["groups"]}
    assert sum(by_group.values()) == changed
    assert by_group["unknown"] == 0
    assert "probabilities of class 1 taken from p" in out


def test_debias_reads_a_table_without_a_header(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    loans.to_csv(tmp_path / "bare.csv", index=False, header=False)
    (tmp_path / "a").mkdir()
    named = {
        "loans": ["--sensitive", "sex", "--label", "repaid"],
        "bare": ["--sensitive", "column 2", "--label", "column 4"],
    }
    for name, roles in named.items():
        status, out, err = fairmp("debias", f"{name}.csv", *roles, "--out", f"a/{name}.csv")
        assert (status, err) == (0, "")
    assert "bare.csv: has no header line" in out
    whole, bare = (read(tmp_path / "a" / f"{name}.csv") for name in named)
    assert list(bare.columns)[:2] == ["column 1", "column 2"]
    assert bare["column 1"].tolist() == list(range(600))
    assert (bare["column 3_corrected"] == whole["p_corrected"]).all()
    status, _, err = fairmp("debias", "bare.csv", "--sensitive", "gender")
    assert status == 2
    assert "'gender'" in err
    assert "column 2" in err


def test_debias_reads_and_writes_parquet(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    frame = loans.assign(p=loans.p.astype(float), sex=loans.sex.replace("", None))
    frame.to_parquet(tmp_path / "loans.parquet")
    status, out, err = fairmp(
        "debias loans.parquet --sensitive sex --on probabilities --json --out deep/er/m.parquet"
    )
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert record["criteria"][0]["after"] < 1e-4
    corrected = pd.read_parquet(tmp_path / "deep" / "er" / "m.parquet")
    assert corrected.person.tolist() == loans.person.tolist()
    assert gap(corrected, "p_corrected") < 1e-4
    assert json.loads((tmp_path / "deep" / "er" / "m.json").read_text()) == record
    assert fairmp("debias loans.csv --sensitive sex --out m.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "m.parquet").p_corrected.notna().all()


def test_debias_meets_criteria_on_labels(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    status, out, _ = fairmp(
        "debias loans.csv --sensitive sex --label repaid --criterion demographic-parity "
        "--criterion equal-opportunity --target 0.02 --target 0.05 --on probabilities --out m"
    )
    assert status == 0
    assert "the positive class is 'yes'" in out
    assert "accuracy on 400 labelled people" in out
    assert "unlabelled people" in out
    corrected = read(tmp_path / "m" / "corrected.csv")
    assert gap(corrected, "p_corrected") <= 0.0201
    assert gap(corrected[corrected.repaid == "yes"], "p_corrected") <= 0.0501
    assert set(corrected.decision_corrected) <= {"yes", "no"}


def test_debias_with_several_attributes_bins_and_population(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    loans.assign(ours=np.arange(600) % 2).to_csv(tmp_path / "loans.csv", index=False)
    status, out, _ = fairmp(
        "debias loans.csv --sensitive sex --sensitive age --sensitive-bins 30,50 "
        "--population ours --on probabilities --out m"
    )
    assert status == 0
    assert "demographic parity, age" in out
    corrected = read(tmp_path / "m" / "corrected.csv")
    inside = corrected[corrected.ours == 1]
    assert gap(inside, "p_corrected") < 1e-4
    cuts = np.digitize(inside.age, [30, 50])
    means = inside.p_corrected.groupby(cuts).mean()
    assert (means - inside.p_corrected.mean()).abs().max() < 1e-4
    crossed = fairmp("debias loans.csv --sensitive sex --sensitive note --cross --out c")[1]
    assert "female × ok" in crossed


def test_debias_reads_a_column_for_each_class(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), 300)
    group = np.where(p[:, 0] + 0.2 * rng.random(300) > 0.4, "a", "b")
    table = pd.DataFrame(p.round(2), columns=["p(no)", "p(maybe)", "p(yes)"]).assign(
        group=group, truth=rng.choice(["yes", "no", "maybe"], 300)
    )
    table.to_csv(tmp_path / "three.csv", index=False, sep=";")
    status, out, _ = fairmp(
        "debias three.csv --sensitive group --label truth --criterion odds --target 0.03 "
        "--on probabilities --out m.csv"
    )
    assert status == 0
    assert "probabilities taken from p(no), p(maybe), p(yes)" in out
    corrected = pd.read_csv(tmp_path / "m.csv", sep=";")
    q = corrected[[f"p({name})_corrected" for name in ("no", "maybe", "yes")]].to_numpy()
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-6)
    for truth in ("no", "maybe", "yes"):
        means = [q[(corrected.truth == truth) & (corrected.group == g)].mean(0) for g in ("a", "b")]
        assert np.abs(means[0] - means[1]).max() <= 0.0302
    assert set(corrected.decision_corrected) <= {"no", "maybe", "yes"}


def test_debias_reads_logits_or_decisions(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    p = loans.p.astype(float)
    loans.assign(z=np.log(p / (1 - p)), choice=np.where(p > 0.5, "take", "leave")).drop(
        columns="p"
    ).to_csv(tmp_path / "other.csv", index=False)
    assert fairmp("debias other.csv --sensitive sex --logits z --on probabilities --out z")[0] == 0
    corrected = read(tmp_path / "z" / "corrected.csv")
    corrected["q"] = 1 / (1 + np.exp(-corrected.z_corrected))
    assert gap(corrected, "q") < 1e-4
    status, out, _ = fairmp("debias other.csv --sensitive sex --decision choice --out d")
    assert status == 0
    assert "by chance" in out
    drawn = read(tmp_path / "d" / "corrected.csv")
    drawn["d"] = drawn.decision_corrected == "take"
    drawn["b"] = drawn.decision_before == "take"
    assert gap(drawn, "d") <= 1 / min(drawn.sex.value_counts())
    changed = (drawn.d != drawn.b).sum()
    assert f"{changed} decisions changed" in out


def test_debias_with_a_graph_estimates_groups(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    ends = rng.choice(loans.person, (3000, 2))
    pd.DataFrame(ends, columns=["a", "b"]).to_csv(tmp_path / "ties.csv", index=False)
    status, out, _ = fairmp(
        "debias loans.csv --sensitive sex --edges ties.csv --id person --estimate-sens "
        "--features age,note --out m"
    )
    assert status == 0
    assert "undirected edges from 3,000 edge rows" in out
    assert "estimated rather than observed" in out
    corrected = read(tmp_path / "m" / "corrected.csv")
    assert corrected.p_corrected.std() < corrected.p.astype(float).std()


@pytest.mark.parametrize("criterion", ["demographic-parity", "equal-opportunity"])
def test_debias_applies_what_it_saved(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path, criterion: str
) -> None:
    options = f"--sensitive sex --label repaid --criterion {criterion}"
    status, out, err = fairmp(f"debias loans.csv {options} --target 0.02 --save c.json --out m")
    assert (status, err) == (0, "")
    assert "on 1,000 new rows" in out
    first = read(tmp_path / "m" / "corrected.csv")
    # The same rows, in another order and fewer, get the same numbers.
    loans[::-1][:300].to_csv(tmp_path / "new.csv", index=False)
    status, out, err = fairmp(
        "debias new.csv --sensitive sex --label repaid --apply c.json --out n"
    )
    assert (status, err) == (0, "")
    assert "demographic parity" in out
    second = read(tmp_path / "n" / "corrected.csv")
    expected = first.p_corrected.to_numpy()[::-1][:300]
    np.testing.assert_allclose(second.p_corrected, expected, atol=1e-6)
    record = json.loads((tmp_path / "n" / "corrected.json").read_text())
    assert {criterion["criterion"] for criterion in [*record["criteria"], *record["others"]]} == {
        "demographic_parity",
        "equal_opportunity",
        "false_positive_rate_parity",
        "equalized_odds",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere.csv --sensitive sex", ["PREDICTIONS", "nowhere.csv"]),
        ("loans.csv", ["--sensitive: missing"]),
        ("loans.csv --sensitive sez", ["--sensitive", "'sez'", "did you mean 'sex'"]),
        ("loans.csv --sensitive age", ["--sensitive", "--sensitive-bins"]),
        ("loans.csv --sensitive sex --probabilities q", ["--probabilities", "'q'"]),
        ("loans.csv --sensitive sex --probabilities age", ["not a probability", "line 2"]),
        ("loans.csv --sensitive sex --probabilities note", ["holds no numbers"]),
        ("loans.csv --sensitive sex --probabilities p,p", ["twice"]),
        ("loans.csv --sensitive sex --probabilities p --logits p", ["--logits", "probabilities"]),
        ("loans.csv --sensitive sex --target 2", ["--target: 2"]),
        ("loans.csv --sensitive sex --target 0 --target 1", ["--target: 2 for 1"]),
        ("loans.csv --sensitive sex --criterion magic", ["--criterion: 'magic'"]),
        ("loans.csv --sensitive sex --criterion eo", ["--label: missing", "--label"]),
        ("loans.csv --sensitive sex --decision sex", ["--decision", "empty in line"]),
        ("loans.csv --sensitive sex --label repaid --positive maybe", ["--positive", "maybe"]),
        ("loans.csv --sensitive sex --label age", ["--label", "age"]),
        ("loans.csv --sensitive sex --temperature 0", ["--temperature: 0"]),
        ("loans.csv --sensitive sex --temperature hard", ["--temperature", "'hard'"]),
        ("loans.csv --sensitive sex --temperature 0.5", ["--temperature", "--on probabilities"]),
        ("loans.csv --sensitive sex --on scores", ["--on: 'scores'"]),
        ("loans.csv --sensitive sex --features age", ["--features", "--estimate-sens"]),
        ("loans.csv --sensitive sex --population age", ["--population", "neither true"]),
        ("loans.csv --sensitive sex --out loans.csv --overwrite", ["is an input table"]),
        ("loans.csv --sensitive sex --out loans.csv", ["exists", "--overwrite"]),
        ("loans.csv --sensitive sex --k 0", ["--k: 0"]),
        ("loans.csv --sensitive sex --apply loans.csv", ["loans.csv: not a correction"]),
        ("loans.csv --sensitive sex --apply c.json --target 1", ["--target:", "--apply"]),
        ("loans.csv --sensitive sex --save c.json --edges e.csv", ["--edges:", "--save"]),
        ("loans.csv --sensitive sex --edges nowhere.csv", ["--edges", "nowhere.csv"]),
    ],
)
def test_debias_explains_wrong_input_on_one_line(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path, arguments: str, words: list[str]
) -> None:
    status, out, err = fairmp(f"debias {arguments}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line, line
    assert [path.name for path in tmp_path.iterdir()] == ["loans.csv"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.assign(p=t.p.where(t.index != 3, "")), ["'p'", "line 5"]),
        (lambda t: t.assign(p=t.p.where(t.index != 3, "nan")), ["'p'", "line 5"]),
        (lambda t: t.assign(sex=t.sex.where(t.index != 3, "x")), ["group 'x' has one node"]),
        (lambda t: t.assign(score=t.p), ["not clear", "p, score"]),
        (lambda t: t.drop(columns="p"), ["not clear", "none"]),
        (lambda t: t.assign(sex="f"), ["--sensitive", "one group"]),
        (
            lambda t: t.drop(columns="p").assign(
                p_no=1 - t.p.astype(float),
                p_yes=t.p.astype(float).where(t.index != 7, 0.1234),
            ),
            ["p_no, p_yes sum to", "line 9"],
        ),
    ],
)
def test_debias_explains_wrong_tables_on_one_line(
    fairmp: Program,
    loans: pd.DataFrame,
    tmp_path: Path,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    words: list[str],
) -> None:
    change(loans).to_csv(tmp_path / "loans.csv", index=False)
    status, out, err = fairmp("debias loans.csv --sensitive sex --out m")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line, line
    assert [path.name for path in tmp_path.iterdir()] == ["loans.csv"]


def test_debias_does_not_overwrite_results(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    assert fairmp("debias loans.csv --sensitive sex --out m")[0] == 0
    before = (tmp_path / "m" / "corrected.csv").read_bytes()
    status, _, err = fairmp("debias loans.csv --sensitive sex --target 0.1 --out m")
    assert status == 2
    assert "--overwrite" in err
    assert (tmp_path / "m" / "corrected.csv").read_bytes() == before
    assert fairmp("debias loans.csv --sensitive sex --target 0.1 --out m --overwrite")[0] == 0
    assert (tmp_path / "m" / "corrected.csv").read_bytes() != before
    assert fairmp("debias loans.csv --sensitive sex")[0] == 0
    assert fairmp("debias loans.csv --sensitive sex")[0] == 0
    assert (tmp_path / "fairmp-debias-2" / "corrected.csv").is_file()


def test_debias_refuses_predictions_as_groups(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    status, out, err = fairmp("debias loans.csv --sensitive p")
    assert (status, out) == (2, "")
    assert err.startswith("fairmp: --sensitive: no other column of loans.csv than 'p' is in [0, 1]")


def test_debias_target_bounds_any_two_groups(
    fairmp: Program, loans: pd.DataFrame, tmp_path: Path
) -> None:
    p = loans.p.astype(float)
    regions = np.array(["north", "south", "west"])[np.digitize(p, [0.45, 0.7])]
    mixed = np.where(np.arange(len(loans)) % 2, regions, "south")
    loans.assign(region=mixed).to_csv(tmp_path / "loans.csv", index=False)
    assert (
        fairmp("debias loans.csv --sensitive region --target 0.02 --on probabilities --out three")[
            0
        ]
        == 0
    )
    [criterion] = json.loads((tmp_path / "three" / "corrected.json").read_text())["criteria"]
    corrected = pd.read_csv(tmp_path / "three" / "corrected.csv")
    means = corrected.p_corrected.groupby(corrected["region"]).mean()
    assert criterion["before"] > 0.2
    assert criterion["after"] == pytest.approx(means.max() - means.min(), abs=1e-6)
    assert criterion["after"] == pytest.approx(0.02, abs=1e-4)
    rates = (corrected["decision_corrected"] == 1).groupby(corrected["region"]).mean()
    assert criterion["decisions_after"] == pytest.approx(rates.max() - rates.min())


def test_debias_reads_weights(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sex, weight = np.where(rng.random(500) < 0.5, "f", "m"), rng.random(500).round(3) + 0.01
    p = np.clip(rng.random(500) * 0.8 + 0.2 * (sex == "m"), 0, 1).round(6)
    frame = pd.DataFrame({"p": p, "sex": sex, "w": weight})
    frame.to_csv(tmp_path / "people.csv", index=False)
    base = "debias people.csv --sensitive sex --weight w"
    for extra in ("--out a", "--out b --save c.json", "--out d --apply c.json"):
        status, out, err = fairmp(f"{base} {extra} --json")
        assert status == 0, err
        yes = pd.read_csv(json.loads(out)["file"])["decision_corrected"] == 1
        rates = [np.average(yes[sex == g], weights=weight[sex == g]) for g in ("f", "m")]
        assert abs(rates[1] - rates[0]) < 0.01
        groups = json.loads(out)["groups"]
        assert [group["decided_after"][1] for group in groups] == pytest.approx(rates)
    status, _, err = fairmp("debias people.csv --sensitive sex --weight age --out e")
    assert status == 2
    assert err.startswith("fairmp: --weight: ")
    frame.assign(w=-1).to_csv(tmp_path / "people.csv", index=False)
    status, _, err = fairmp("debias people.csv --sensitive sex --weight w --out e")
    assert status == 2
    assert err.startswith("fairmp: --weight: some are negative")
    assert not (tmp_path / "e").exists()


def test_debias_applies_to_tables_without_labels_or_some_groups(
    fairmp: Program, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m", "x"], 600)
    p = 1 / (1 + np.exp(-rng.normal(size=600) - (sex == "m")))
    repaid = np.where(rng.random(600) < p, "yes", "no")
    frame = pd.DataFrame({"score": p.round(4), "sex": sex, "repaid": repaid})
    frame[:400].to_csv("old.csv", index=False)
    fit = "debias old.csv --sensitive sex --label repaid --criterion equal-opportunity"
    status, _, err = fairmp(f"{fit} --save c.json --out fitted")
    assert status == 0, err
    assert fairmp(f"{fit} --save c.json --out again")[2].startswith("fairmp: --save: c.json exists")
    new = frame[400:].drop(columns="repaid").rename(columns={"score": "probability"})
    new["town"] = "A"
    decided = {}
    for name, rows in {
        "all": new, "two": new[new["sex"] != "x"], "one": new[new["sex"] == "f"], "row": new[:1],
        "strange": new.assign(sex="z"),
    }.items():  # fmt: skip
        rows.to_csv(f"{name}.csv", index=False)
        status, out, err = fairmp(f"debias {name}.csv --sensitive sex --apply c.json --out {name}")
        assert status == 0, err
        assert not err
        assert "is not measured" in out
        corrected = pd.read_csv(f"{name}/corrected.csv")
        decided[name] = pd.Series(corrected["probability_corrected"].to_numpy(), rows.index)
        pd.testing.assert_series_equal(
            decided[name], decided["all"][rows.index] if name != "strange" else rows["probability"],
            check_names=False, rtol=1e-6,
        )  # fmt: skip
    assert "600" not in out
    assert "200 rows of groups not seen in fit (z)" in out
    # A gate needs a gap to pass.
    apply = "debias one.csv --sensitive sex --apply c.json --out g"
    status, _, err = fairmp(f"{apply} --fail-above 0.5")
    assert status == 3
    assert err.endswith("cannot be measured here, as --fail-above 0.5 (50 points) needs\n")
    status, _, err = fairmp("debias one.csv --sensitive sex --apply one.csv --out h")
    assert (status, "one.csv: not a correction" in err) == (2, True)


def test_debias_reads_classes_with_commas(fairmp, tmp_path: Path) -> None:
    p = np.random.default_rng(0).random(60).round(3)
    rows = {"p(no)": 1 - p, "p(yes, hired)": p, "sex": ["f", "m"] * 30}
    pd.DataFrame(rows).to_csv(tmp_path / "p.csv", index=False)
    named = ["--probabilities", '"p(yes, hired)"']
    for k, options in enumerate([[], named, [named[0], f"p(no),{named[1]}"]]):
        status, _, err = fairmp("debias", "p.csv", "--sensitive", "sex", *options, "--out", f"o{k}")
        assert (status, err) == (0, "")
        assert "p(yes, hired)_corrected" in pd.read_csv(tmp_path / f"o{k}" / "corrected.csv")


def test_group_free_correction_is_applied_without_a_sensitive_column(
    fairmp: Program, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    sex = rng.integers(2, size=3000)
    height = rng.normal(size=3000) + 2 * sex
    p = 1 / (1 + np.exp(-rng.normal(size=3000) - height + 1))
    people = pd.DataFrame({"p": p, "sex": np.where(sex, "male", "female"), "height": height})
    people.to_csv("people.csv", index=False)
    people.drop(columns="sex").to_csv("without.csv", index=False)
    people.assign(sex=rng.permutation(people.sex)).to_csv("shuffled.csv", index=False)
    options = "--features height --group-free"
    status, _, err = fairmp(f"debias people.csv --sensitive sex {options} --save c.json")
    assert (status, err) == (0, "")
    tables = []
    for name, column in (("without", ""), ("people", "--sensitive sex"), ("shuffled", "")):
        command = f"debias {name}.csv {column} {options} --apply c.json --out {name}_fair.csv"
        assert fairmp(command)[0] == 0
        tables.append(pd.read_csv(f"{name}_fair.csv"))
    added = {"p_corrected", "decision_before", "decision_corrected"}
    assert set(tables[0].columns) == {"p", "height", *added}  # and no estimates of groups
    for other in tables[1:]:
        assert tables[0].p_corrected.equals(other.p_corrected)
    decided = tables[1].p_corrected > 0.5
    assert abs(decided[sex == 1].mean() - decided[sex == 0].mean()) < 0.03
    status, _, err = fairmp("debias people.csv --sensitive sex --group-free --save d.json")
    assert status == 2
    assert "--features" in err


def test_group_free_correction_reads_the_friends_of_new_people(
    fairmp: Program, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    sex = rng.integers(2, size=2000)
    p = 1 / (1 + np.exp(-rng.normal(size=2000) - 2 * (2 * sex - 1)))
    names = np.array([f"n{k}" for k in range(2000)])
    columns = {"who": names, "p": p, "sex": np.where(sex, "m", "f"), "noise": rng.random(2000)}
    people = pd.DataFrame(columns)
    people[:1500].to_csv("known.csv", index=False)
    people[1500:].drop(columns="sex").to_csv("new.csv", index=False)
    source, target = rng.integers(2000, size=(2, 12000))
    kept = (sex[source] == sex[target]) & (source != target)
    friends = pd.DataFrame({"a": names[source[kept]], "b": names[target[kept]]})
    inside = (source[kept] < 1500) & (target[kept] < 1500)
    friends[inside].to_csv("friends.csv", index=False)
    friends.to_csv("all.csv", index=False)
    options = "--id who --features noise --group-free"
    status, _, err = fairmp(
        f"debias known.csv --sensitive sex {options} --edges friends.csv --save c.json --out o"
    )
    assert (status, err) == (0, "")
    status, _, err = fairmp(f"debias new.csv {options} --edges all.csv --apply c.json --out f.csv")
    assert (status, err) == (0, "")
    fair = pd.read_csv("f.csv")
    assert "sex" not in fair
    decided, others = fair.p_corrected > 0.5, sex[1500:]
    assert abs(decided[others == 1].mean() - decided[others == 0].mean()) < 0.12
    # A person of the fitting table is estimated by friends, not by the group that is stored.
    people[:40].drop(columns="sex").to_csv("old.csv", index=False)
    apply = f"{options} --edges friends.csv --apply c.json"
    assert fairmp(f"debias old.csv {apply} --out g.csv")[0] == 0
    as_fitted = pd.read_csv("o/corrected.csv").p_corrected[:40]
    np.testing.assert_allclose(pd.read_csv("g.csv").p_corrected, as_fitted, atol=1e-6)
    status, _, err = fairmp(
        "debias new.csv --features noise --group-free --edges all.csv --apply c.json"
    )
    assert (status, "--id" in err) == (2, True)


def test_confidence_is_promised_or_refused_with_the_number_missing(
    fairmp: Program, loans: pd.DataFrame
) -> None:
    command = "debias loans.csv --sensitive sex --confidence 0.95 --save c.json"
    status, out, _ = fairmp(f"{command} --target 0.25")
    assert status == 0
    assert "95 % confidence" in out
    status, _, err = fairmp(f"{command} --target 0.02 --overwrite")
    assert status == 2
    assert "more of female" in err


def test_group_free_correction_finds_its_features_by_name(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sex = rng.integers(2, size=2000)
    people = pd.DataFrame({"p": rng.random(2000), "sex": sex, "height": rng.normal(size=2000)})
    people = people.assign(age=rng.normal(size=2000) + 2 * sex, year=1.0 * sex)
    people.to_csv("people.csv", index=False)
    command = "debias people.csv --probabilities p --group-free"
    save = f"{command} --features age,height --sensitive sex --save c.json"
    assert fairmp(save)[0] == 0
    tables = []
    for names in ("age,height", "height,age"):
        apply = f"{command} --features {names} --apply c.json --out fair.csv --overwrite"
        assert fairmp(apply)[0] == 0
        tables.append(pd.read_csv("fair.csv"))
    pd.testing.assert_frame_equal(*tables)
    status, _, err = fairmp(f"{command} --features age,year --apply c.json")
    assert status == 2
    assert "age, year, but the correction reads age, height" in err
    status, _, err = fairmp("debias people.csv --probabilities p --apply c.json")
    assert status == 2
    assert "--group-free" in err
