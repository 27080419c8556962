"""Records as runs of MLflow (the extra ``track``), wherever ``MLFLOW_TRACKING_URI`` says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmp.comparison import Record
from fairmp.errors import InputError, check_choice

TRACKERS = ("mlflow",)
FIGURES = ("accuracy", "auc", "f1", "dp", "eo", "odds")
ARTIFACTS = ("*.html", "*.md", "*.png", "*.json", "model/*")  # of a results directory


def check_tracker(name: str | None) -> None:
    """Raise if a tracker is unknown or not installed, before anything is trained."""
    if name is None:
        return
    check_choice("--track", name, TRACKERS)
    try:
        import mlflow  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("mlflow", "not installed", "pip install 'fairmp[track]'") from None


def log(records: Sequence[Record], folder: Path, *, command: str) -> int:
    """Log one run per record that did not fail; the files of the results go to the first.

    Parameters are the configuration, metrics the figures on validation and test nodes
    (``test_accuracy``), in an experiment named after the data set. Records that were logged before
    are left out. Returns the number of new runs.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    done = 0
    try:
        for record in records:
            if "failed" in record:
                continue
            experiment = mlflow.set_experiment(f"fairmp: {record['dataset']}")
            key = record.get("key")
            if key and mlflow.search_runs(
                [experiment.experiment_id], f"tags.`fairmp.key` = '{key}'", output_format="list"
            ):
                continue
            tags = {"fairmp.command": command, "fairmp.data": str(record["dataset"])}
            tags |= {"fairmp.key": key} if key else {}
            tags |= {f"version.{name}": v for name, v in record["run"]["versions"].items()}
            with mlflow.start_run(run_name=f"{record['name']}, split {record['split']}", tags=tags):
                mlflow.log_params(dict(_parameters(record)))
                mlflow.log_metrics(dict(_metrics(record)))
                for path in _files(folder) if not done else ():
                    inside = path.relative_to(folder).parent.as_posix()
                    mlflow.log_artifact(str(path), None if inside == "." else inside)
            done += 1
    except (MlflowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        hint = f"the results are in {folder}; check MLFLOW_TRACKING_URI"
        raise InputError("--track", f"MLflow: {reason}", hint) from None
    return done


def _parameters(record: Record) -> Iterator[tuple[str, Any]]:
    run = record["run"]
    yield from (("method", record["name"]), ("split", record["split"]), ("seed", run["seed"]))
    yield from _flat("", run["config"])


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _metrics(record: Record) -> Iterator[tuple[str, float]]:
    run = record["run"]
    yield "seconds", run["seconds"]
    for part in ("val", "test"):
        for name in FIGURES:
            value = run[part].get(name)
            if value is not None and math.isfinite(value):
                yield f"{part}_{name}", float(value)


def _files(folder: Path) -> Iterator[Path]:
    for pattern in ARTIFACTS:
        yield from (path for path in sorted(folder.glob(pattern)) if path.is_file())
