"""Files of the form and size of Pokec-z and Pokec-n, and the paper's Table 1 on them.

    python benchmarks/pokec_files.py FOLDER            # about an hour on two cores
    python benchmarks/pokec_files.py FOLDER --quick    # fewer epochs and splits

The full files are not distributed with this project. These have their names, columns and numbers of
rows, with random content: they show that ``fairmp reproduce table1 --data pokec-z --data pokec-n
--data-dir FOLDER`` needs nothing but the files. Its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fairmp.cli import main as fairmp
from fairmp.datasets import graphs

SIZES = {  # stem, nodes, features, undirected edges
    "pokec-z": ("region_job", 67_796, 276, 617_958),
    "pokec-n": ("region_job_2", 66_569, 265, 517_047),
}
CLASSES = {"pokec-z": graphs.PokecZ, "pokec-n": graphs.PokecN}


def write(folder: Path, name: str, share: float = 1.0) -> None:
    """Write the node and the edge table of one data set, or of a share of its size."""
    stem, nodes, features, edges = SIZES[name]
    nodes, edges = round(share * nodes), round(share * edges)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"user_id": 1000 + 3 * np.arange(nodes)})
    table["public"], table["gender"] = rng.integers(0, 2, (2, nodes))
    table["region"], table["AGE"] = rng.integers(0, 2, nodes), rng.integers(0, 60, nodes)
    job = rng.choice([-1, 0, 1, 2, 3], nodes, p=[0.87, 0.05, 0.04, 0.02, 0.02])
    table["I_am_working_in_field"] = job if share == 1 else rng.integers(-1, 4, nodes)
    hobbies = rng.integers(0, 2, (nodes, features - 3))
    names = [f"hobby_{k}" for k in range(features - 3)]
    table = pd.concat([table, pd.DataFrame(hobbies, columns=names)], axis=1)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{stem}.csv", index=False)
    ends = table["user_id"].to_numpy()[rng.integers(nodes, size=(edges, 2))]
    np.savetxt(folder / f"{stem}_relationship.txt", ends, fmt="%d", delimiter="\t")


def accept(name: str) -> None:
    """Let the files differ from the published ones, whose checksums are known in part."""
    source = CLASSES[name].source
    files = {
        role: tuple(replace(f, sha256="") for f in found) for role, found in source.files.items()
    }
    CLASSES[name].source = replace(source, files=files)


def main() -> None:
    """Write the files, and run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the real size")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    for name in SIZES:
        write(given.folder / "files", name, given.share)
        accept(name)
    words = ["reproduce", "table1", "--data", "pokec-z", "--data", "pokec-n", "--workers", "1"]
    words += ["--data-dir", str(given.folder / "files"), "--out", str(given.folder / "table1")]
    sys.argv = ["fairmp", *words, *["--quick"] * given.quick]
    fairmp()


if __name__ == "__main__":
    main()
