"""Execute the notebooks of ``examples/``, and keep their outputs: the site shows them.

python -m benchmarks.notebooks           # all
python -m benchmarks.notebooks NAME …    # some, such as your_own_layer
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run the cells of a notebook in a folder, and store what they show."""
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":  # warnings name folders of this machine
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)


def main(names: list[str]) -> None:
    """Execute notebooks in place."""
    for name in names or sorted(path.stem for path in EXAMPLES.glob("*.ipynb")):
        path = EXAMPLES / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        nbformat.write(notebook, path)
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
