"""Models that live: saved, loaded elsewhere, and refused where their files do not match."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import from_tables
from fairmp.datasets.encoding import Encoding


def tables(n: int = 120, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    people = pd.DataFrame(
        {
            "who": [f"P{k}" for k in range(n)],
            "hired": rng.choice(["no", "yes"], n),
            "sex": rng.choice(["f", "m"], n),
            "income": rng.normal(40_000, 9_000, n),
            "town": rng.choice(["Oslo", "Rome"], n),
        }
    )
    ends = rng.integers(n, size=(2, 3 * n))
    who = people["who"].to_numpy()
    return people, pd.DataFrame({"from": who[ends[0]], "to": who[ends[1]]})


NAMES = {"id": "who", "label": "hired", "sensitive": "sex"}


@pytest.fixture(scope="module")
def model() -> FairClassifier:
    model = FairClassifier(FMP(2, 1.0), epochs=4, norm="batch_norm")
    model.fit(from_tables(*tables(), **NAMES), bootstrap=0)
    return model


@pytest.fixture
def folder(model: FairClassifier, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model")


def test_the_encoding_travels_with_the_model(model: FairClassifier, folder: Path) -> None:
    again = FairClassifier.load(folder)
    assert isinstance(again.encoding_, Encoding)
    assert again.encoding_ == model.encoding_
    assert again.features_ == ["income", "town=Oslo", "town=Rome"]
    people, ties = tables(seed=1)
    shuffled = people.drop(columns="hired")[["town", "sex", "income", "who"]]
    new = from_tables(shuffled, ties, encoding=again.encoding_)
    same = from_tables(people, ties, encoding=model.encoding_)
    assert torch.equal(again.predict_proba(new), model.predict_proba(same))
    # The new table alone would have been scaled by its own mean.
    own = from_tables(people, ties, **NAMES)
    assert not torch.allclose(own.x, new.x)
    mean, deviation = tables()[0]["income"].mean(), tables()[0]["income"].std(ddof=0)
    expected = (people["income"] - mean) / deviation
    assert new.x[:, 0].numpy() == pytest.approx(expected.to_numpy(), abs=1e-5)


def test_an_encoding_of_other_features_is_not_kept() -> None:
    data = from_tables(*tables(), **NAMES)
    data.x, data.feature_names = data.x[:, :2], data.feature_names[:2]
    model = FairClassifier(None, epochs=1)
    model.fit(data, bootstrap=0)
    assert model.encoding_ is None


def test_a_new_process_predicts_the_same(model: FairClassifier, folder: Path) -> None:
    people, ties = tables(seed=1)
    people.to_csv(folder / "people.csv", index=False)
    ties.to_csv(folder / "ties.csv", index=False)
    code = (
        "from fairmp import FairClassifier\n"
        "from fairmp.datasets import from_tables\n"
        "model = FairClassifier.load('.')\n"
        "data = from_tables('people.csv', 'ties.csv', encoding=model.encoding_)\n"
        "print(model.predict_proba(data)[:, 1].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    here = model.predict_proba(from_tables(people, ties, encoding=model.encoding_))[:, 1]
    assert json.loads(done.stdout) == pytest.approx(here.tolist(), abs=1e-6)


def test_the_description_says_everything(folder: Path) -> None:
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert {"format", "versions", "sha256", "config"} < set(description)
    assert description["groups"] == ["f", "m"]
    assert description["classes"] == ["no", "yes"]
    (income, town) = description["encoding"]["columns"]
    assert income["shift"] == pytest.approx(tables()[0]["income"].mean())
    assert town["values"] == ["Oslo", "Rome"]


def rewritten(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(description | changes), encoding="utf-8")


def halved(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: halved(f, "model.safetensors"), "model.safetensors is damaged"),
        (lambda f: halved(f, "model.json"), "model.json is damaged"),
        (lambda f: (f / "model.json").write_bytes(b"\xff\xfe\x00"), "model.json is damaged"),
        (lambda f: (f / "model.json").write_text("[1, 2]"), "model.json is damaged"),
        (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
        (lambda f: rewritten(f, format=99), "has format 99"),
        (lambda f: rewritten(f, config=None), "model.json is damaged"),
        (lambda f: rewritten(f, groups=[]), "model.json is damaged"),
        (lambda f: rewritten(f, features=["a"]), "do not match"),
        (lambda f: rewritten(f, classes=["a", "b", "c"]), "do not match"),
        (lambda f: rewritten(f, groups=["a", "b", "c"]), "describes 3 groups and holds duals of 2"),
        (lambda f: rewritten(f, config={"magic": 1}), "sets 'magic', which this fairmp"),
        (
            lambda f: rewritten(f, config={"propagation": {"name": "FMP", "K": 2, "wings": 2}}),
            "can not make",
        ),
        (
            lambda f: rewritten(f, config={"propagation": {"name": "os.system"}}),
            "'os.system' is not one of fairmp's",
        ),
        (lambda f: rewritten(f, encoding={"id": "who"}), "encoding: it is damaged"),
    ],
)
def test_files_that_do_not_match_are_refused(folder: Path, damage, words: str) -> None:
    damage(folder)
    with pytest.raises(InputError) as caught:
        FairClassifier.load(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other = FairClassifier(FMP(2, 1.0), epochs=1, hidden=8)
    other.fit(from_tables(*tables(), **NAMES), bootstrap=0)
    strange = other.save(tmp_path / "other") / "model.safetensors"
    (folder / "model.safetensors").write_bytes(strange.read_bytes())
    with pytest.raises(InputError, match="belongs to another model"):
        FairClassifier.load(folder)


def test_nothing_is_left_of_a_save_that_failed(
    model: FairClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairmp.training.model_files.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        model.save(tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


def test_no_pickle_is_ever_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr("torch.load", refuse)
    assert FairClassifier.load(folder).classes_ == ["no", "yes"]
