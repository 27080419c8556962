from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from fairmp.datasets.columns import fit_column, rescale
from fairmp.datasets.encoding import stack
from fairmp.datasets.load_report import LoadReport

CELLS = {
    "numbers": st.floats(-1e6, 1e6) | st.none(),
    "integers": st.integers(-1000, 1000),
    "booleans": st.booleans() | st.none(),
    "text": st.text("abcx1", max_size=3) | st.none(),
    "categories": st.sampled_from(["red", "green", "blue", None]),
    "mixed": st.integers(0, 3) | st.text("ab", min_size=1, max_size=1) | st.none(),
}


def encode_features(frame, *, categorical=(), report=None, **options):
    report = report or LoadReport()
    fitted = [
        fit_column(frame[name], categorical=name in categorical, report=report, **options)
        for name in frame
    ]
    columns = [column for column in fitted if column is not None]
    blocks = [column.expand(column.codes(frame[column.name], report)) for column in columns]
    return stack(blocks, len(frame)), [name for column in columns for name in column.feature_names]


@st.composite
def frames(draw):
    rows = draw(st.integers(1, 30))
    columns = {
        name: draw(st.lists(cells, min_size=rows, max_size=rows)) for name, cells in CELLS.items()
    }
    frame = pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in columns.items()})
    frame["integers"] = frame["integers"].astype("int64")
    frame["categories"] = frame["categories"].astype("category")
    if draw(st.booleans()):
        frame["booleans"] = frame["booleans"].astype("boolean")
        frame["numbers"] = frame["numbers"].astype("float64")
    return frame


@settings(deadline=None, max_examples=60)
@given(frames(), st.sampled_from(["standard", "minmax", "none"]), st.integers(1, 4))
def test_features_of_any_table_are_finite(frame, scale, cap):
    before = frame.copy(deep=True)
    report = LoadReport()
    x, names = encode_features(frame, scale=scale, max_categories=cap, report=report)
    assert x.dtype == np.float32
    assert x.shape == (len(frame), len(names))
    assert np.isfinite(x).all()
    assert len(set(names)) == len(names)
    assert set(report.missing) <= set(frame.columns)
    for column, count in report.missing.items():
        assert 0 < count < len(frame)
        assert count >= frame[column].isna().sum()
    pd.testing.assert_frame_equal(frame, before)
    for column in ("text", "categories", "mixed"):
        column_features = [k for k, name in enumerate(names) if name.startswith(f"{column}=")]
        assert len(column_features) <= cap + 2
        if column_features:
            assert (x[:, column_features].sum(axis=1) == 1).all()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from("abcdefg"), min_size=2, max_size=60),
    st.integers(1, 7),
)
def test_one_hot_agrees_with_pandas(values, cap):
    series = pd.Series(values)
    x, names = encode_features(pd.DataFrame({"c": series}), max_categories=cap)
    dummies = pd.get_dummies(series, prefix="c", prefix_sep="=")
    for k, name in enumerate(names):
        if name != "c=other":
            assert x[:, k].tolist() == dummies[name].tolist()
    counts = series.value_counts()
    category_names = [name for name in names if name != "c=other"]
    if category_names and len(counts) > cap:
        assert len(category_names) == cap
        assert min(counts[name[2:]] for name in category_names) >= counts.iloc[cap]
        other = x[:, names.index("c=other")]
        assert other.sum() == len(values) - sum(counts[name[2:]] for name in category_names)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-1e5, 1e5, width=32), min_size=2, max_size=30))
def test_scaling_agrees_with_sklearn(values):
    x = np.array(values, dtype=np.float32)[:, None]
    assume(not ((x == 0) | (x == 1)).all() and x.std() >= 1e-3)
    wide = x.astype(np.float64)
    theirs = StandardScaler().fit_transform(wide)
    np.testing.assert_allclose(rescale(x, "standard"), theirs, atol=1e-4)
    np.testing.assert_allclose(rescale(x, "minmax"), MinMaxScaler().fit_transform(wide), atol=1e-5)
    np.testing.assert_array_equal(rescale(x, "none"), x)


def test_rescale_leaves_indicators_alone():
    x = np.array([[0, 5, 2], [1, 5, 4], [0, 5, 9]], dtype=np.float32)
    before = x.copy()
    out = rescale(x, "standard")
    assert out[:, 0].tolist() == [0, 1, 0]
    assert out[:, 1].tolist() == [0, 0, 0]
    assert abs(out[:, 2].mean()) < 1e-6
    np.testing.assert_array_equal(x, before)


def test_missing_numbers_take_the_mean():
    frame = pd.DataFrame({"age": [10.0, np.nan, 30.0, np.inf], "flag": [True, None, False, True]})
    x, names = encode_features(frame, scale="standard")
    assert names == ["age", "age missing", "flag", "flag missing"]
    assert x[:, 0].tolist() == [-1, 0, 1, 0]
    assert x[:, 1].tolist() == [0, 1, 0, 1]
    assert x[:, 2].tolist() == pytest.approx([1, 2 / 3, 0, 1])


def test_infinite_numbers_are_reported():
    report = LoadReport()
    frame = pd.DataFrame({"age": [10.0, np.nan, 30, np.inf], "debt": [1.0, 2, np.nan, 3]})
    x, _ = encode_features(frame, report=report)
    assert report.notes == ["column 'age': 1 infinite value (row 4) taken as missing"]
    assert report.missing == {"age": 2, "debt": 1}
    assert np.isfinite(x).all()
    later = LoadReport()
    fit_column(frame["age"]).codes(pd.Series([-np.inf, np.inf], name="age"), later)
    fit_column(frame["debt"]).codes(pd.Series([1.0, np.nan], name="debt"), later)
    assert later.notes == ["column 'age': 2 infinite values (rows 1, 2) taken as missing"]
    assert fit_column(pd.Series([np.inf, np.inf], name="age")) is None


HUGE = {
    "infinite": ([np.inf] * 4, "has no number"),
    "beyond floats": ([1e308, -1e308, 1.7e308, 1e307], "has no number"),
    "two sizes": ([1e200, -1e200, 1.0, 2.0], "2 values beyond ±1e+30 (rows 1, 2) taken as missing"),
    "large": ([1e29, -1e29, 3e28, 0.0], ""),
    "an outlier": ([*range(50), 1e20], "hardly differ beside row 51, which may be errors"),
    "tiny": ([1e-300, 2e-300, 3e-300, 5e-324], ""),
    "text": (["1e400", "1", "2", "3"], "1 infinite value (row 1) taken as missing"),
}


@pytest.mark.parametrize("scale", ["standard", "minmax"])
@pytest.mark.parametrize("name", HUGE)
def test_numbers_of_any_size(name, scale):
    values, note = HUGE[name]
    report = LoadReport()
    with np.errstate(all="raise", under="ignore"):
        x, _ = encode_features(pd.DataFrame({"a": values}), scale=scale, report=report)
    assert np.isfinite(x.astype(np.float32)).all()
    assert note in "; ".join(report.notes)
    assert bool(report.notes) == bool(note)


def test_new_numbers_are_clipped():
    column = fit_column(pd.Series([1e-9, 2e-9, 3e-9], name="a"))
    x = column.expand(column.codes(pd.Series([1e29, -1e29, 2e-9, np.inf], name="a"), LoadReport()))
    assert x[:, 0].tolist() == pytest.approx([1e6, -1e6, 0, 0])


def test_columns_without_information_are_left_out():
    report = LoadReport()
    frame = pd.DataFrame(
        {
            "name": [f"person {k}" for k in range(40)],
            "planet": ["earth"] * 40,
            "one": [1] * 40,
            "empty": [None] * 40,
            "age": range(40),
        }
    )
    _, names = encode_features(frame, report=report)
    assert names == ["age"]
    assert sorted(note.split("'")[1] for note in report.notes) == ["empty", "name", "one", "planet"]
    assert any("different value in nearly every row" in note for note in report.notes)


def test_few_text_cells_in_a_column_of_numbers():
    report = LoadReport()
    column = pd.Series([str(k) for k in range(60)] + ["unclear"], name="income")
    x, names = encode_features(pd.DataFrame({"income": column}), report=report)
    assert names == ["income", "income missing"]
    assert x[-1].tolist() == pytest.approx([0, 1])
    assert "'unclear'" in report.notes[0]


def test_numbers_as_categories_and_dates_as_days():
    frame = pd.DataFrame(
        {
            "code": [1, 2, 1],
            "day": pd.to_datetime(["2020-01-01", None, "2020-01-03"]),
        }
    )
    x, names = encode_features(frame, categorical=["code"], scale="none")
    assert names == ["code=1", "code=2", "day", "day missing"]
    epoch = (datetime.date(2020, 1, 1) - datetime.date(1970, 1, 1)).days
    assert x[:, 2].tolist() == [epoch, epoch + 1, epoch + 2]
