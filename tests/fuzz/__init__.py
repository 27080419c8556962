"""Fuzzers: tables, numbers, corrections, files, addresses, and commands that are killed."""

from tests.fuzz import (
    archives,
    contents,
    corrections,
    files,
    kills,
    models,
    numbers,
    promise,
    tables,
    urls,
)
from tests.fuzz.harness import WARM_UP, Case

WARM_UP |= {
    "contents": contents.warm_up,
    "numbers": numbers.warm_up,
    "promises": numbers.warm_up,
    "corrections": numbers.warm_up,
    "models": models.original,
    "correction_files": files.corrections,
    "graphs": files.stored,
    "kills": kills.warm_up,
}
KINDS: dict[str, Case] = {
    "tables": tables.whole,
    "contents": contents.case,
    "damaged": tables.damaged,
    "numbers": numbers.any_of_them,
    "promises": promise.case,
    "corrections": corrections.debiaser_case,
    "models": models.case,
    "classifiers": models.classifiers,
    "graphs": files.graph,
    "correction_files": files.correction,
    "archives": archives.case,
    "urls": urls.case,
    "around": files.around,
    "kills": kills.case,
}
