"""The example notebooks run from first cell to last, and show what their text says."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# What the text between the cells says, asked of the kernel at the end.
CLAIMS = {}
CLAIMS["your_own_layer"] = """
assert fair.dp < 0.02 < 0.05 < plain.dp
assert in_batches.dp < 0.02
assert in_batches.accuracy > 0.6
assert not compare.missing(specs, compare.read(folder / "records.jsonl"))
assert min(measured[0], measured[-1]) > 0.3 > -0.3 > measured[4]
assert max(abs(float(a) - float(b)) for a, b in zip(measured, predicted)) < 0.08
import shutil; shutil.rmtree(folder)
"""
CLAIMS["from_tables_to_fair_model"] = """
before, after = plain.run_.test, fair.run_.test
assert after.dp < 0.04 < 0.1 < before.dp
assert after.mode == "batch"
assert figures(corrected).dp < 0.03 < 0.1 < figures(outside).dp
assert mean_gap(corrected) < mean_gap(outside)
assert abs(mean_gap(debias(outside, regions, target=0.02, on="probabilities")) - 0.02) < 1e-4
assert (loaded.predict(data) == fair.predict(data)).all()
assert len(pd.read_csv(folder / "predictions.csv")) == len(people) == 2000
assert len(friends) == 15_000
assert "region" not in " ".join(data.feature_names)
"""


@pytest.mark.parametrize("example", CLAIMS)
def test_the_notebook_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install 'fairmp[test]'")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'fairmp[test]'")
    nbformat = pytest.importorskip("nbformat")

    monkeypatch.delenv("FAIRMP_DATA", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(EXAMPLES / f"{example}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS[example]))
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [kind for output in outputs for kind in output.get("data", {}) if "png" in kind]
    assert not list(tmp_path.glob("tmp*")), "the kernel left its temporary folder behind"
