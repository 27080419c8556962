"""Comparison of methods over splits, and the reports of trainings."""

from typing import Any

Record = dict[str, Any]
"""One run as JSON types: its name, data set and split, and the run itself."""
