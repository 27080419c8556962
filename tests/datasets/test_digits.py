from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.datasets.formats import digit_tail


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 8),
    st.integers(30, 45),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_the_digit_tail_agrees_with_pandas(tmp_path_factory, rows, width, end, last, seed, odd):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.integers(0, 10, (rows, width))).add_prefix("c")
    frame.insert(0, "id", rng.integers(0, 10**9, rows))
    if odd:
        frame.iloc[rng.integers(rows), 1 + rng.integers(width)] = 12
    path = tmp_path_factory.mktemp("tail") / "a.csv"
    text = frame.to_csv(index=False, lineterminator=end)
    path.write_bytes((text if last else text.removesuffix(end)).encode())
    cut = digit_tail(path, limit=width)
    if not odd and width >= 32:
        assert cut is not None
        assert cut[1].shape == (rows, width)
    if cut is not None:
        taken = cut[1].shape[1]
        np.testing.assert_array_equal(cut[1], frame.iloc[:, -taken:])
        left = frame.iloc[:, :-taken].to_csv(index=False, header=False, lineterminator="\n")
        assert cut[0].decode() == left


@pytest.mark.parametrize("line", ["7,0,1,x", "7", "", "7,1.0", "7,0,-1"])
def test_a_file_with_an_irregular_row_has_no_digit_tail(tmp_path, line):
    row = ",".join(["7", *"01" * 20])
    (tmp_path / "a.csv").write_text(f"{row}\n{row}\n{line},\n{row}\n")
    assert digit_tail(tmp_path / "a.csv", 40) is None
    (tmp_path / "a.csv").write_text("a,b")
    assert digit_tail(tmp_path / "a.csv", 40) is None
