"""Records as runs of MLflow (the extra ``track``), wherever ``MLFLOW_TRACKING_URI`` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairmp.comparison import Record
from fairmp.errors import InputError, check_choice

TRACKERS = ("mlflow",)
PARTS, FIGURES = ("val", "test"), ("accuracy", "auc", "f1", "dp", "eo", "fpr", "odds")


def check_tracker(name: str) -> None:
    """Raise if a tracker is unknown or not installed, before anything is trained."""
    check_choice("track", name, TRACKERS)
    try:
        import mlflow  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("mlflow", "not installed", "pip install 'fairmp[track]'") from None


def log(records: Sequence[Record], folder: Path, *, command: str) -> int:
    """Log a run per record that did not fail and is not there; return the number of new runs."""
    import mlflow
    import pandas as pd
    from mlflow.exceptions import MlflowException

    done = 0
    try:
        for record in records:
            if "failed" in record:
                continue
            experiment = mlflow.set_experiment(f"fairmp: {record['dataset']}")
            key, run = record.get("key"), record["run"]
            if key and mlflow.search_runs(
                [experiment.experiment_id], f"tags.`fairmp.key` = '{key}'", output_format="list"
            ):
                continue
            tags = {"fairmp.command": command, "fairmp.data": str(record["dataset"])}
            tags |= {"fairmp.key": key} if key else {}
            tags |= {f"version.{name}": v for name, v in run["versions"].items()}
            [settings] = pd.json_normalize(run["config"]).to_dict("records")
            values = {f"{part}_{name}": run[part].get(name) for part in PARTS for name in FIGURES}
            values = {name: value for name, value in values.items() if value is not None}
            with mlflow.start_run(run_name=f"{record['name']}, split {record['split']}", tags=tags):
                split = {"method": record["name"], "split": record["split"], "seed": run["seed"]}
                mlflow.log_params(split | settings)
                mlflow.log_metrics({"seconds": run["seconds"], **values})
                if not done:  # the files of the results go to the first run
                    mlflow.log_artifacts(str(folder))
            done += 1
    except (MlflowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        hint = f"the results are in {folder}; check MLFLOW_TRACKING_URI"
        raise InputError("track", f"MLflow: {reason}", hint) from None
    return done
