"""Files of the form and size of Pokec-z and Pokec-n, and the paper's Table 1 on them.

    python -m experiments.pokec_files FOLDER            # about an hour on two cores
    python -m experiments.pokec_files FOLDER --quick    # fewer epochs and splits

The full files are not distributed with this project. These have their names, columns and numbers of
rows, with random content: they show that ``python -m experiments table1 --data pokec-z --data
pokec-n --data-dir FOLDER`` needs nothing but the files. Its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import __main__ as experiments
from fairmp.datasets import graphs


@dataclass(frozen=True)
class PokecFiles:
    """Name and size of a data set's files."""

    stem: str
    nodes: int
    features: int
    edges: int  # undirected


FILES = {
    "pokec-z": PokecFiles("region_job", 67_796, 276, 617_958),
    "pokec-n": PokecFiles("region_job_2", 66_569, 265, 517_047),
}
CLASSES = {"pokec-z": graphs.PokecZ, "pokec-n": graphs.PokecN}


def write(folder: Path, files: PokecFiles, share: float = 1.0) -> None:
    """Write the node and the edge table of one data set, or of a share of its size."""
    nodes, edges = round(share * files.nodes), round(share * files.edges)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"user_id": 1000 + 3 * np.arange(nodes)})
    table["public"], table["gender"] = rng.integers(0, 2, (2, nodes))
    table["region"] = rng.integers(0, 2, nodes)
    table["AGE"] = rng.integers(0, 60, nodes)
    job = rng.choice([-1, 0, 1, 2, 3], nodes, p=[0.87, 0.05, 0.04, 0.02, 0.02])
    table["I_am_working_in_field"] = job if share == 1 else rng.integers(-1, 4, nodes)
    names = [f"hobby_{k}" for k in range(files.features - 3)]
    hobbies = pd.DataFrame(rng.integers(0, 2, (nodes, len(names))), columns=names)
    table = pd.concat([table, hobbies], axis=1)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{files.stem}.csv", index=False)
    ends = table["user_id"].to_numpy()[rng.integers(nodes, size=(edges, 2))]
    np.savetxt(folder / f"{files.stem}_relationship.txt", ends, fmt="%d", delimiter="\t")


def accept(name: str) -> None:
    """Let the files differ from the published ones, whose checksums are known in part."""
    source = CLASSES[name].source
    files = {
        role: tuple(replace(file, sha256="") for file in versions)
        for role, versions in source.files.items()
    }
    CLASSES[name].source = replace(source, files=files)


def main() -> None:
    """Write the files, and run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the real size")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    files = options.folder / "files"
    for name in FILES:
        write(files, FILES[name], options.share)
        accept(name)
    words = ["table1", "--data", "pokec-z", "--data", "pokec-n", "--workers", "1"]
    words += ["--data-dir", str(files), "--out", str(options.folder / "table1")]
    sys.argv = ["experiments", *words, *(["--quick"] if options.quick else [])]
    experiments.main()


if __name__ == "__main__":
    main()
