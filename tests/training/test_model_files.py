"""Models are saved whole, load elsewhere, and are refused if damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import from_tables, social_network
from fairmp.datasets.encoding import Encoding
from fairmp.graph import Adjacency
from fairmp.groups import GroupOperator
from fairmp.nn import solvers
from fairmp.nn.solvers import Solution
from fairmp.training import model_files
from fairmp.training.penalties import Strategy


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
    model = FairClassifier(FMP(2, 1.0), epochs=4, norm="batch_norm", backbone="mlp")
    model.fit(from_tables(*tables(), **NAMES), bootstrap=0)
    return model


@pytest.fixture
def folder(model: FairClassifier, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model")


def test_saved_model_has_its_encoding(model: FairClassifier, folder: Path) -> None:
    again = FairClassifier.load(folder)
    assert isinstance(again.encoding_, Encoding)
    assert again.encoding_ == model.encoding_
    assert again.features_ == ["income", "town=Oslo", "town=Rome"]
    people, ties = tables(seed=1)
    shuffled = people.drop(columns="hired")[["town", "sex", "income", "who"]]
    new = from_tables(shuffled, ties, encoding=again.encoding_)
    encoded_alike = from_tables(people, ties, encoding=model.encoding_)
    assert torch.equal(again.predict_proba(new), model.predict_proba(encoded_alike))
    # The new table alone would have been scaled by its own mean.
    encoded_anew = from_tables(people, ties, **NAMES)
    assert not torch.allclose(encoded_anew.x, new.x)
    mean, deviation = tables()[0]["income"].mean(), tables()[0]["income"].std(ddof=0)
    expected = (people["income"] - mean) / deviation
    assert new.x[:, 0].numpy() == pytest.approx(expected.to_numpy(), abs=1e-5)


def test_encoding_of_other_features_is_not_kept() -> None:
    data = from_tables(*tables(), **NAMES)
    data.x, data.feature_names = data.x[:, :2], data.feature_names[:2]
    model = FairClassifier(None, epochs=1, backbone="mlp")
    model.fit(data, bootstrap=0)
    assert model.encoding_ is None


def test_new_process_predicts_the_same(model: FairClassifier, folder: Path) -> None:
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


def test_description_has_names_versions_and_encoding(folder: Path) -> None:
    _, description = model_files.read(folder)
    assert {"format", "versions", "config"} < set(description)
    assert description["groups"] == ["f", "m"]
    assert description["classes"] == ["no", "yes"]
    (income, town) = description["encoding"]["columns"]
    assert income["shift"] == pytest.approx(tables()[0]["income"].mean())
    assert town["values"] == ["Oslo", "Rome"]


def rewrite(folder: Path, **changes: object) -> None:
    tensors, description = model_files.read(folder)
    model_files.write_tensors(folder / "model.safetensors", tensors, description | changes)


def flip_last_byte(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:30],
        lambda content: b"",
        flip_last_byte,
        lambda content: content.replace(b"Oslo", b"Olso"),
        lambda content: b"\xff\xfe\x00" * 50,
    ],
)
def test_damaged_file_is_refused(folder: Path, damage) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"model\.safetensors is damaged") as caught:
        FairClassifier.load(folder)
    assert caught.value.argument == "path"


@pytest.mark.parametrize(
    ("changes", "argument", "words"),
    [
        ({"format": 99}, "path", "has format 99"),
        ({"config": None}, "path", "config is None"),
        ({"groups": []}, "path", "groups is empty"),
        ({"classes": "ab"}, "path", "classes is 'ab'"),
        ({"features": [1, 2, 3]}, "path", "features is 1"),
        ({"versions": [[[[]]]]}, "path", "versions"),
        ({"correction": 5}, "path", "correction is 5"),
        ({"features": ["a"]}, "path", "do not match"),
        ({"classes": ["a", "b", "c"]}, "path", "do not match"),
        ({"groups": ["a", "b", "c"]}, "path", "do not match"),
        ({"config": {"magic": 1}}, "path", "'magic'"),
        (
            {"config": {"propagation": {"name": "FMP", "wings": 2}, "strategy": {"name": ""}}},
            "path",
            "wings",
        ),
        (
            {"config": {"propagation": {"name": "os.system"}, "strategy": {"name": "vanilla"}}},
            "propagation",
            "'os.system'",
        ),
        ({"encoding": {"id": "who"}}, "encoding", "damaged"),
    ],
)
def test_wrong_description_is_refused(
    folder: Path, changes: dict[str, object], argument: str, words: str
) -> None:
    rewrite(folder, **changes)
    with pytest.raises(InputError) as caught:
        FairClassifier.load(folder)
    assert caught.value.argument == argument
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def alter(folder: Path, place: list[str | int], value: object) -> None:
    """Change one value deep in the description."""
    tensors, description = model_files.read(folder)
    part = description
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    model_files.write_tensors(folder / "model.safetensors", tensors, description)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["config", "num_layers"], 100_000),
        (["config", "hidden"], 1_000_000_000),
        (["config", "hidden"], 2**70),
        (["config", "hidden"], "64"),
        (["config", "hidden"], True),
        (["config", "dropout"], float("nan")),
        (["config", "norm"], ["batch_norm"]),
        (["config", "propagation"], "FMP"),
        (["config", "propagation", "K"], 10**12),
        (["config", "propagation", "name"], []),
        (["config", "strategy"], 7),
        (["config", "criterion"], {}),
        (["encoding", "columns", 0, "divisor"], 0),
        (["encoding", "columns", 0, "shift"], float("inf")),
        (["encoding", "columns", 0, "name"], None),
        (["encoding", "columns", 1, "values"], [["Oslo"], {}]),
        (["encoding", "columns"], []),
        (["encoding", "sensitive"], []),
        (["encoding", "label"], [1]),
    ],
)
def test_hostile_value_is_refused_quickly(folder: Path, place, value) -> None:
    alter(folder, place, value)
    before = time.perf_counter()
    with pytest.raises(InputError) as caught:
        FairClassifier.load(folder)
    assert time.perf_counter() - before < 5
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("group_duals", lambda t: t * float("nan")),
        ("group_duals", lambda t: t[:, :1]),
        ("group_duals", None),
        ("network.transform.lins.0.weight", lambda t: t.int()),
        ("network.transform.lins.0.weight", lambda t: t.T),
        ("network.transform.lins.0.weight", lambda t: t / 0),
        ("network.calibration", lambda t: t[:1]),
        ("network.more", lambda t: torch.zeros(3)),
    ],
)
def test_tensors_of_another_shape_are_refused(folder: Path, name: str, change) -> None:
    tensors, description = model_files.read(folder)
    old = tensors.pop(name, None)
    if change is not None:
        tensors[name] = change(old)
    model_files.write_tensors(folder / "model.safetensors", tensors, description)
    with pytest.raises(InputError, match=name.rpartition(".")[2]):
        FairClassifier.load(folder)


def test_deeply_nested_header_is_refused(folder: Path) -> None:
    text = b'{"__metadata__":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(InputError, match="is damaged"):
        FairClassifier.load(folder)


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no model\.safetensors"):
        FairClassifier.load(tmp_path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("first", [True, False])
def test_killed_save_leaves_the_old_model_or_the_new_one(
    model: FairClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Stop a save at each system call that changes the folder."""
    old = FairClassifier(FMP(2, 1.0), epochs=1, hidden=8, backbone="mlp")
    old.fit(from_tables(*tables(), **NAMES), bootstrap=0)
    expected = {8, 64} if not first else {64}
    steps = ("write_bytes", "fsync", "replace", "last fsync", "unlink")
    seen = set()
    for step in steps:
        folder = tmp_path / step
        if not first:
            old.save(folder)
        with monkeypatch.context() as patch:
            kill(patch, step)
            with pytest.raises(Killed):
                model.save(folder, overwrite=True)
        if first and not (folder / "model.safetensors").exists():
            with pytest.raises(InputError, match="has no model"):
                FairClassifier.load(folder)
            continue
        seen.add(FairClassifier.load(folder).hidden)
    assert seen == expected


def kill(patch: pytest.MonkeyPatch, step: str) -> None:
    """Let a step of :func:`fairmp.outputs.atomic_file` end the process, after half its work."""
    if step == "write_bytes":
        written = Path.write_bytes

        def half(path: Path, content: bytes) -> None:
            written(path, content[: len(content) // 2])
            raise Killed

        patch.setattr(Path, "write_bytes", half)
        return
    target, name = (Path, "unlink") if step == "unlink" else (os, step.removeprefix("last "))
    calls, real = [], getattr(target, name)

    def die(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if step == "last fsync" and len(calls) == 1:
            return real(*arguments, **options)
        raise Killed

    patch.setattr(target, name, die)


def test_failed_save_leaves_no_files(
    model: FairClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairmp.outputs.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        model.save(tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


def test_load_does_not_unpickle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr("torch.load", refuse)
    assert FairClassifier.load(folder).classes_ == ["no", "yes"]


def test_equal_models_are_equal_files(model: FairClassifier, tmp_path: Path) -> None:
    files = [model.save(tmp_path / str(k)) / "model.safetensors" for k in range(20)]
    assert len({file.read_bytes() for file in files}) == 1


class Mild(Strategy):
    """A penalty of the user's."""


class OwnFMP(FMP):
    """A layer of the user's."""


@pytest.mark.parametrize(
    ("layer", "strategy", "message"),
    [
        (FMP(2), Mild(), "strategy: Mild is a penalty of yours, which cannot be saved"),
        (OwnFMP(2), None, "propagation: OwnFMP is not one of fairmp's"),
        (FMP(2, solver=solvers.papc), None, "solver: a function cannot be saved"),
    ],
)
def test_what_cannot_be_loaded_is_not_saved(
    tmp_path: Path, layer: FMP, strategy: Strategy | None, message: str
) -> None:
    data = social_network(n=200, average_degree=6)
    model = FairClassifier(layer, strategy=strategy, backbone="mlp", epochs=1, folds=1)
    model.fit(data, bootstrap=0)
    with pytest.raises(InputError, match=message):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_own_solver_is_called_as_papc() -> None:
    data, calls = social_network(n=200, average_degree=6), []

    def counted(x: Tensor, graph: Adjacency, groups: GroupOperator, **settings: Any) -> Solution:
        calls.append(settings)
        return solvers.papc(x, graph, groups, **settings)

    own, papc = FMP(2, solver=counted, lambda_f=0.5), FMP(2, solver="papc", lambda_f=0.5)
    logits = data.x[:, :2]
    expected = papc(logits, data.edge_index, data.sens)
    assert torch.equal(own(logits, data.edge_index, data.sens), expected)
    assert calls == [{"K": 2, "lambda_s": 1.0, "lambda_f": 0.5, "trace": False}]
    model = FairClassifier(own, backbone="mlp", epochs=1, folds=1).fit(data, bootstrap=0)
    assert model.predict_proba(data).shape == (200, 2)
    with pytest.raises(InputError, match="mode: 'per-node' needs a solver of fairmp's"):
        model.predict_proba(data, mode="per-node")
