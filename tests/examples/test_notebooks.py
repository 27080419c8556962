"""The example notebooks run from first cell to last, and show what their text says."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install 'fairmp[test]'")
pytest.importorskip("nbclient", reason="needs nbclient: pip install 'fairmp[test]'")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'fairmp[test]'")

from benchmarks.notebooks import EXAMPLES, execute  # noqa: E402

# What the text between the cells says, asked of the kernel at the end.
CLAIMS = {}
CLAIMS["your_own_layer"] = """
assert fair.dp < 0.02 < 0.05 < plain.dp
assert in_batches.dp < 0.02
assert in_batches.accuracy > 0.6
assert all(gaps[0] > gaps[2] > gaps[4] for gaps in by_solver.values())
assert abs(projected - 2) < 0.01
assert not compare.missing(specs, compare.read(folder / "records.jsonl"))
assert min(measured[0], measured[-1]) > 0.3 > -0.3 > measured[4]
assert max(abs(float(a) - float(b)) for a, b in zip(measured, predicted)) < 0.08
import shutil; shutil.rmtree(folder)
"""
CLAIMS["from_tables_to_fair_model"] = """
assert found.row[0].predictability < 0.4 < 0.9 < found.row[-1].predictability
assert run.test.dp < 0.03 < 0.1 < run.uncorrected.dp
assert (loaded.predict(data) == model.predict(data)).all()
assert list(answers["person"]) == ["N1", "N2"]
assert set(answers["decision"]) <= {"low", "high"}
assert len(people) == 2000
assert len(friends) == 15_000
assert "region" not in " ".join(data.feature_names)
"""
CLAIMS["post_process_a_model"] = """
[gap] = result.criteria
assert gap.decisions_after < 0.025 < 0.1 < gap.decisions_before
assert table.loc["demographic_parity", "ΔDP"] < 0.06 < 0.1 < table.loc["as it is", "ΔDP"]
assert table.loc["equal_opportunity", "ΔEO"] < table.loc["as it is", "ΔEO"]
assert expected.mean < expected.high
assert curve[0, 0] < 0.5
assert (served.transform([0.55], sensitive_features=["A"]) < 0.55).all()
assert (served.transform([0.55], sensitive_features=["B"]) > 0.55).all()
"""


@pytest.mark.parametrize("example", CLAIMS)
def test_notebook_runs_and_shows_what_it_says(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRMP_DATA", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(EXAMPLES / f"{example}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS[example]))
    execute(notebook, tmp_path)
    assert not list(tmp_path.glob("tmp*")), "the kernel left its temporary folder behind"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_is_committed_with_its_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert path.stem in CLAIMS
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    pictures = [
        cell for cell in cells if any("image/png" in o.get("data", {}) for o in cell.outputs)
    ]
    assert len(pictures) >= 2
    assert all(cell.metadata.get("alt") for cell in pictures)
    assert not [output for output in outputs if output.get("name") == "stderr"]
