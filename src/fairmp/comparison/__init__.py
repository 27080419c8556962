"""Comparison of methods over splits, and the reports of trainings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""One run as JSON types: its name, data set and split, and the run itself."""


def write_records(records: Sequence[Record], folder: Path) -> None:
    """Write ``records.jsonl``."""
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    (folder / "records.jsonl").write_text("".join(lines), encoding="utf-8")
