from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fairmp import FairClassifier
from fairmp.cli import main
from fairmp.comparison import compare

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


@pytest.fixture
def fairmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(None)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fairmp", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), capsys.readouterr().err

    yield run
    mlflow.set_tracking_uri(None)


def runs() -> list:
    return mlflow.search_runs(
        search_all_experiments=True, output_format="list", order_by=["start_time"]
    )


def test_training_is_logged_with_report_and_model(fairmp, tmp_path: Path) -> None:
    short = ["--data", "embedded:240", "--epochs", "3", "--no-picture"]
    status, err = fairmp("train", *short, "--splits", "2", "--out", "t", "--track", "mlflow")
    assert (status, err.splitlines()[-1]) == (0, "2 runs logged to mlflow.")
    first, second = runs()
    assert first.data.params["epochs"] == "3"
    assert first.data.params["propagation.K"] == "5"
    model = FairClassifier.load(tmp_path / "t" / "model")
    assert set(model.config()) <= {name.partition(".")[0] for name in first.data.params}
    assert 0 <= second.data.metrics["test_dp"] <= 1
    assert first.data.tags["fairmp.command"].startswith("fairmp train --data embedded:240")
    place = Path(first.info.artifact_uri.removeprefix("file://"))
    assert (place / "report.html").read_bytes() == (tmp_path / "t" / "report.html").read_bytes()
    FairClassifier.load(place / "model")


def test_comparison_is_logged_once(fairmp, tmp_path: Path) -> None:
    words = ["compare", "--data", "embedded:240", "--methods", "mlp,fmp", "--epochs", "3"]
    words += ["--strategies", "vanilla", "--splits", "2", "--workers", "1", "--out", "c"]
    assert fairmp(*words, "--track", "mlflow")[1].endswith("4 runs logged to mlflow.\n")
    assert fairmp(*words, "--track", "mlflow")[1].endswith("0 runs logged to mlflow.\n")
    records = {record["key"]: record for record in compare.read(tmp_path / "c" / "records.jsonl")}
    for run in runs():
        test = records[run.data.tags["fairmp.key"]]["run"]["test"]
        assert run.data.metrics["test_accuracy"] == test["accuracy"]


def test_search_is_logged_once(fairmp, tmp_path: Path) -> None:
    words = ["tune", "embedded:240", "--trials", "2", "--epochs", "3", "--splits", "1"]
    words += ["--dp", "1", "--out", "s", "--track", "mlflow"]
    assert fairmp(*words)[1].endswith("2 runs logged to mlflow.\n")
    assert fairmp(*words)[1].endswith("0 runs logged to mlflow.\n")
    best = json.loads((tmp_path / "s" / "best.json").read_text("utf8"))["chosen"]
    chosen, other = sorted(runs(), key=lambda run: "test_dp" not in run.data.metrics)
    assert chosen.info.run_name.startswith(f"trial {best['trial']},")
    assert float(chosen.data.params["lr"]) == best["settings"]["lr"]
    assert chosen.data.metrics["val_accuracy"] >= other.data.metrics["val_accuracy"]
    assert (Path(chosen.info.artifact_uri.removeprefix("file://")) / "report.html").is_file()


def test_unknown_tracker_is_refused_before_training(fairmp, monkeypatch, tmp_path: Path) -> None:
    status, err = fairmp("train", "--data", "embedded:240", "--out", "t", "--track", "wandb")
    assert (status, err.count("\n")) == (2, 1)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    status, err = fairmp("train", "--data", "embedded:240", "--out", "t", "--track", "mlflow")
    assert status == 2
    assert "fairmp[track]" in err
    assert not (tmp_path / "t").exists()
