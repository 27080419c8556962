"""``fairmp data``: list, download, verify and describe the benchmark graphs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairmp.datasets.sources import SOURCES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a file of NBA that is not the published one."""
    place = tmp_path / "raw" / "nba"
    place.mkdir(parents=True)
    (place / "nba.csv").write_text("user_id,SALARY,country\n1,0,0\n")
    return tmp_path / "raw"


@pytest.mark.parametrize("arguments", [["--help"], ["data", "list"], ["data", "--help"], ["data"]])
def test_data_commands_import_no_heavy_package(tmp_path, arguments):
    code = (
        "import sys\n"
        f"sys.argv = ['fairmp', *{arguments!r}]\n"
        "from fairmp.cli import main\n"
        "try: main()\n"
        "except SystemExit as leave: print('status', leave.code)\n"
        "heavy = {'torch', 'torch_geometric', 'pandas', 'matplotlib', 'scipy', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"status {2 if arguments == ['data'] else 0}" in done.stdout


def test_list_names_every_data_set(fairmp, folder):
    status, out, err = fairmp(f"data list --data-dir {folder}")
    assert (status, err) == (0, "")
    for source in SOURCES:
        assert f"{source.key:17} {source.title} (missing)" in out
    assert f"{folder}/nba/nba.csv; SHA-256 known" in out
    assert "nba_relationship.txt: missing, can be downloaded" in out
    assert "region_job.csv: missing, can be downloaded; first digits of the SHA-256 known" in out
    assert "sens.npy: missing, no public home is known" in out

    entries = json.loads(fairmp(f"data list --data-dir {folder} --json")[1])
    assert [entry["key"] for entry in entries] == [source.key for source in SOURCES]
    assert entries[0]["files"][0]["path"] == str(folder / "nba" / "nba.csv")
    assert entries[0]["files"][1]["path"] is None
    assert entries[0]["found"] is False


def test_verify_reports_a_changed_file(fairmp, folder):
    status, out, _ = fairmp(f"data verify nba --data-dir {folder}")
    assert status == 1
    assert "nba.csv: DIFFERS from the published file" in out
    assert "nba_relationship.txt: missing" in out
    status, out, _ = fairmp(f"data verify --data-dir {folder} --json")
    assert status == 1
    files_by_key = json.loads(out)
    assert [file["state"] for file in files_by_key["nba"]] == ["differs", "missing"]
    # A missing file is an error only for a data set that was named.
    (folder / "nba" / "nba.csv").unlink()
    assert fairmp(f"data verify --data-dir {folder}")[0] == 0
    assert fairmp(f"data verify credit --data-dir {folder}")[0] == 1


def test_fetch_does_not_keep_a_corrupted_download(fairmp, folder, tmp_path):
    target = tmp_path / "target"
    status, out, err = fairmp(f"data fetch nba --data-dir {target} --mirror {folder.as_uri()}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert "nba.csv" in line
    assert "SHA256" in line
    assert not [path for path in target.rglob("*") if path.is_file()]


def test_stats_without_files(fairmp, folder):
    status, out, err = fairmp(f"data stats --data-dir {folder}")
    assert (status, err) == (0, "")
    assert "No data set has all its files" in out
    assert "Left out, their files are missing: NBA, Pokec-z" in out
    record = json.loads(fairmp(f"data stats --data-dir {folder} --json")[1])
    assert record["statistics"] == []
    assert len(record["missing"]) == len(SOURCES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("data list --data-dir nowhere", ["--data-dir: nowhere"]),
        ("data verify --data-dir nowhere", ["--data-dir: nowhere"]),
        ("data stats nba", ["nba: nba.csv is missing", "fairmp data fetch nba"]),
        ("data stats nab", ["NAMES: ", "'nab'", "did you mean 'nba'"]),
        ("data fetch", ["NAME", "--all"]),
        ("data fetch nba --all", ["NAME", "--all"]),
        ("data fetch pokec-province", ["no public home", "FAIRMP_DATA"]),
        ("data dance", ["dance"]),
    ],
)
def test_wrong_input_is_one_line(fairmp, arguments, words):
    status, out, err = fairmp(arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line


def test_fetch_downloads_to_the_cache(fairmp, folder, monkeypatch):
    monkeypatch.setenv("FAIRMP_DATA", str(folder))
    assert f"{folder}/nba/nba.csv" in fairmp("data list")[1]
    mirror = folder.parent / "mirror" / "nba"
    mirror.mkdir(parents=True)
    (mirror / "nba_relationship.txt").write_text("1\t2\n")
    _, _, err = fairmp(f"data fetch nba --mirror {mirror.parent.as_uri()}")
    assert "nba_relationship.txt" in err
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["nba.csv"]
    assert (folder.parent / ".cache" / "fairmp" / "raw" / "nba").is_dir()


def test_stats_agree_with_the_paper(fairmp, data_folder):
    status, out, err = fairmp(f"data stats --data-dir {data_folder}")
    assert (status, err) == (0, "")
    rows = {}
    for line in out.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) > 1:
            rows.setdefault(cells[0], []).append(cells[1:])
    assert rows["NBA"] == [["403 ✓", "95 ✓", "21,242 ✓", "39.22 ✓", "53.63", "72.37 ✓"]]
    assert rows["Pokec-n, 3 features"] == [
        ["66,569 ✓", "3 ✗", "1,034,094 ✓", "73.23 ✓", "49.71", "95.30 ✓"]
    ]
    assert ["66,569", "265", "1,034,094", "73.23", "–", "95.30"] in rows["paper"]
    assert ["403", "95", "21,242", "39.22", "–", "72.37"] in rows["paper"]
    assert rows["Facebook100 Cornell5"] == [
        ["18,660", "574", "1,581,554", "47.92", "54.64", "80.59"]
    ]
    assert rows["Bail"] == [["18,876", "17", "623,740", "77.52", "77.52", "52.21"]]
    assert "Left out, their files are missing: Pokec-z, Pokec-n." in out

    record = json.loads(fairmp(f"data stats nba --data-dir {data_folder} --json")[1])
    (nba,) = record["statistics"]
    assert nba["ours"]["edges"] == nba["paper"]["edges"] == 21_242
    assert all(nba["agrees"].values())


def test_verify_real_files(fairmp, data_folder):
    status, out, _ = fairmp(f"data verify nba german bail facebook100 --data-dir {data_folder}")
    assert status == 0
    assert out.count("ok, the published file") == 7


def test_fetch_real_files_from_a_mirror(fairmp, data_folder, tmp_path):
    mirror = Path(data_folder).resolve().as_uri()
    target = tmp_path / "target"
    entries = json.loads(fairmp(f"data fetch nba --data-dir {target} --mirror {mirror} --json")[1])
    assert entries == [
        {
            "key": "nba",
            "files": {
                "nodes": str(target / "nba" / "nba.csv"),
                "edges": str(target / "nba" / "nba_relationship.txt"),
            },
        }
    ]
    assert fairmp(f"data verify nba --data-dir {target}")[0] == 0
