"""Fuzzers: tables, numeric problems, model folders, archives, and commands that are killed."""

from tests.fuzz import archives, kills, models, numbers, tables
from tests.fuzz.harness import WARM_UP, Case

WARM_UP |= {"numbers": numbers.warm_up, "models": models.original, "kills": kills.warm_up}
KINDS: dict[str, Case] = {
    "tables": tables.whole,
    "damaged": tables.damaged,
    "numbers": numbers.any_of_them,
    "models": models.case,
    "classifiers": models.classifiers,
    "archives": archives.case,
    "kills": kills.case,
}
