"""``fairmp audit`` as a new user meets it: two tables and the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

OWN = "--nodes people.csv --edges ties.tsv --id person --label loan --sensitive region"


def tables(folder: Path) -> None:
    """Three regions, labels of text, missing values, a boolean, a category, dangling edges."""
    rng = random.Random(0)
    regions = ["north", "south", "islands"]
    homes = [rng.choice(regions) for _ in range(240)]
    rows = ["person,region,age,member,job,same,loan"]
    for k, home in enumerate(homes):
        income = regions.index(home) + rng.gauss(0, 1)
        rows.append(
            ",".join(
                [
                    f"P{k:03d}",
                    home if k % 20 else "",
                    str(rng.randint(18, 80)) if k % 15 else "",
                    rng.choice(["true", "false"]),
                    rng.choice(["nurse", "farmer", "clerk"]) if k % 30 else "",
                    "x",
                    ("granted" if income > 1.5 else "pending" if income > 0 else "refused")
                    if k % 4
                    else "",
                ]
            )
        )
    (folder / "people.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    ties = ["who\tknows", "P001\tP999", "nobody\tP002", "P003\tP003"]
    for k, home in enumerate(homes):
        near = [i for i, other in enumerate(homes) if other == home and i != k]
        for _ in range(4):
            friend = rng.choice(near) if rng.random() < 0.85 else rng.randrange(240)
            ties.append(f"P{k:03d}\tP{friend:03d}")
    (folder / "ties.tsv").write_text("\n".join(ties) + "\n", encoding="utf-8")


def test_your_own_tables(fairmp, tmp_path):
    tables(tmp_path)
    status, out, err = fairmp(f"audit {OWN} --out found")
    assert (status, err) == (0, "")
    for words in (
        "2 dangling edge rows dropped",
        "12 nodes without a sensitive group",
        "missing values filled: age 16, job 8",
        "column 'same' has one value and is left out",
        "Audit of people",
        "Edges stay within groups",
        "theory predicts that one step of averaging raises",
        "stated for two groups",
    ):
        assert words in out
    for name in ("islands", "north", "south", "unknown"):
        assert f"\n{name} " in out
    folder = tmp_path / "found"
    assert sorted(path.name for path in folder.iterdir()) == [
        "audit.json",
        "audit.txt",
        "report.html",
        "report.json",
        "topology.png",
        "topology.svg",
    ]
    assert (folder / "audit.txt").read_text(encoding="utf-8") in out.replace("\n\n0 s", "\n0 s")
    record = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert [group["name"] for group in record["groups"]] == ["islands", "north", "south", "unknown"]
    assert record["classes"] == ["granted", "pending", "refused"]
    assert "2 dangling edge rows dropped: an end is not in the node table" in record["read"]
    assert (folder / "topology.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for words in (
        "The graph",
        "between groups",
        "2 dangling edge rows dropped",
        "Edges stay within groups",
        "Assumptions",
        "fairmp audit --nodes people.csv",
    ):
        assert words in page

    status, out, err = fairmp(f"audit {OWN} --out found")
    assert (status, out) == (2, "")
    assert err == "fairmp: --out: found is not empty; give another folder, or add --overwrite\n"


def test_the_same_tables_can_be_trained_on(fairmp, tmp_path):
    tables(tmp_path)
    status, out, err = fairmp(f"train {OWN} --epochs 20 --splits 1 --out trained")
    assert (status, err) == (0, "")
    for words in ("2 dangling edge rows", "islands", "P(refused)", "trained/model"):
        assert words in out


def test_json_without_a_picture(fairmp, tmp_path):
    status, out, err = fairmp("audit --no-picture --steps 2 --json --out found")
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert [reading["step"] for reading in record["row"]] == [0, 1, 2]
    assert record["row"][1]["predictability"] > record["row"][0]["predictability"]
    assert record == json.loads((tmp_path / "found" / "audit.json").read_text(encoding="utf-8"))
    assert not (tmp_path / "found" / "topology.png").exists()


@pytest.mark.parametrize("command", ["audit", "train"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("--label loan", "--label lone"),
            ["--label: ", "'lone'", "did you mean 'loan'", "person"],
        ),
        (("--sensitive region", "--sensitive place"), ["no column 'place'", "region, age, member"]),
        (("people.csv", "tilde.csv"), ["no column 'person'", "separated by"]),
        (("ties.tsv", "tilde.csv"), ["--edges: the table has one column", "separated by"]),
        (("people.csv", "empty.csv"), ["--nodes: empty.csv is empty"]),
        (("ties.tsv", "empty.csv"), ["--edges: empty.csv is empty"]),
        (("people.csv", "binary.csv"), ["--nodes: binary.csv is a binary file"]),
        (("ties.tsv", "binary.csv"), ["--edges: binary.csv is a binary file"]),
        (("ties.tsv", "one.csv"), ["--edges: the table has one column, 'who'"]),
        (("ties.tsv", "strange.csv"), ["none of the 2 rows joins two ids", "'X1'", "'P000'"]),
        (("--id person", ""), ["--edges: none of the", "--id, the column with"]),
        (("--label loan", "--label same"), ["--label: ", "only the value 'x'"]),
        (("--sensitive region", "--sensitive same"), ["--sensitive: 'same' gives one group"]),
        (("--sensitive region", "--sensitive age"), ["--sensitive-bins 3"]),
        (("--label", "--data nba --label"), ["--data: 'nba' cannot be combined with --nodes"]),
        (("people.csv", "nowhere.csv"), ["nowhere.csv"]),
    ],
)
def test_a_wrong_table_is_one_line(fairmp, tmp_path, command, change, words):
    tables(tmp_path)
    people = (tmp_path / "people.csv").read_text()
    (tmp_path / "tilde.csv").write_text(people.replace(",", "~"))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "one.csv").write_text("who\nP001\nP002\n")
    (tmp_path / "strange.csv").write_text("a,b\nX1,X2\nX3,X4\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    status, out, err = fairmp(f"{command} {OWN.replace(*change)} --out found")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("audit --steps 0", ["steps: 0"]),
        ("audit --steps two", ["--steps", "two"]),
        ("audit --seed -1", ["seed", "-1"]),
        ("audit --data nbb", ["'nbb'", "did you mean 'nba'"]),
        ("audit --data nba --data-dir nowhere", ["--data-dir: nowhere is not a folder"]),
        ("audit --data nba --drop age", ["--drop: needs --nodes"]),
        ("audit --sensitive-bins 3", ["--sensitive-bins: needs --nodes"]),
    ],
)
def test_a_wrong_option_is_one_line(fairmp, tmp_path, arguments, words):
    status, out, err = fairmp(arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line
    assert not list(tmp_path.iterdir())


def test_audit_of_nba_has_the_published_statistics(fairmp, data_folder):
    status, out, _ = fairmp(f"audit --data nba --data-dir {data_folder} --no-picture --out nba")
    assert status == 0
    for words in ("21,242 directed", "72.37 %", "39.22 % (unlabelled as a class)", "53.63 %"):
        assert words in out


def test_values_that_mean_unknown_and_labels_that_are_numbers(
    fairmp, tmp_path, monkeypatch
) -> None:
    rows = [
        f"{k},{k % 50 + 17},{('yes', 'no', 'refused')[k % 3]},{'fmx'[k % 7 % 3]}" for k in range(90)
    ]
    (tmp_path / "n.csv").write_text("id,age,loan,sex\n" + "\n".join(rows) + "\n")
    (tmp_path / "e.csv").write_text("a,b\n" + "".join(f"{k},{k + 1}\n" for k in range(89)))
    command = "audit --nodes n.csv --edges e.csv --id id --sensitive sex --no-picture --out o"
    status, out, _ = fairmp(f"{command} --label loan --unknown refused --unknown x --json")
    assert status == 0
    record = json.loads(out)
    assert [group["name"] for group in record["groups"]] == ["f", "m", "unknown"]
    status, _, err = fairmp(f"{command} --label age --overwrite")
    assert status == 2
    assert "--categorical age" in err
    assert fairmp(f"{command} --label age --categorical age --overwrite")[0] == 0
