"""Files that others may have changed or made: stored graphs, corrections, and what lies around."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fairmp import Debiaser, outputs
from fairmp.datasets import cache, from_tables
from fairmp.datasets.stored_graph import FILE, join_nodes, save_graph
from tests.fuzz.models import replace
from tests.fuzz.tables import mutate

N = 40
LOOKALIKES = [  # names that a staging directory, a lock or a backup might have
    *(".out.partial", ".out-aaaaaaaa.partial", ".out-0a1b2c3d.partial", ".out.lock", ".out.old"),
    *("out.partial", ".out-.partial", ".out2-aaaaaaaa.partial", ".out-aaaaaaaa.partial.bak"),
    *(".a.txt-aaaaaaaa.partial", ".a.txt.lock", "config", ".config.old"),
]
OWNERS = [
    "process 1 on host since 00:00\nout2\n",
    "process 1 on host since 00:00",
    "mine",
    "",
    "\xff",
]


@functools.cache
def stored() -> tuple[bytes, Any, pd.DataFrame]:
    """A stored graph as bytes, its encoding, and new rows."""
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"id": [f"p{k}" for k in range(N)], "y": rng.choice(["n", "y"], N)})
    people["s"], people["age"] = rng.choice(["f", "m"], N), rng.normal(size=N)
    ends = rng.integers(N, size=(2, 3 * N))
    edges = pd.DataFrame({"a": people.id[ends[0]].tolist(), "b": people.id[ends[1]].tolist()})
    data = from_tables(people, edges, id="id", label="y", sensitive="s")
    with tempfile.TemporaryDirectory() as place:
        content = save_graph(data, Path(place)).read_bytes()
    return content, data.encoding, people.head(10).assign(id=[f"q{k}" for k in range(10)])


def graph(rng: np.random.Generator, place: Path) -> str:
    """A stored graph with bytes or arrays changed is refused, or joined within its bounds."""
    content, encoding, new = stored()
    path = place / FILE
    path.write_bytes(content)
    if rng.random() < 0.4:
        raw = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            mutate(rng, raw)
        path.write_bytes(bytes(raw))
    else:
        arrays, metadata = cache.read_npz(path)
        name = str(rng.choice(sorted(arrays)))
        arrays[name] = changed(rng, arrays[name])
        if rng.random() < 0.1:
            arrays.pop(name)
        if rng.random() < 0.1:
            arrays["other"] = np.zeros(int(rng.choice([1, 10**6])))
        if rng.random() < 0.9:
            metadata = {"nodes": len(arrays.get("ids", ())), "sha256": cache.checksum(arrays)}
        cache.write_npz(path, arrays, metadata, compress=bool(rng.random() < 0.5))
    joined = join_nodes(path, new, None, encoding=encoding, id="id").data
    assert torch.isfinite(joined.x.to_dense()).all()
    assert ((joined.edge_index >= 0) & (joined.edge_index < joined.num_nodes)).all()
    assert int(joined.sens.max()) < len(encoding.groups)
    return "joined"


def changed(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """An array of another type, shape, or with other values."""
    match rng.integers(0, 8):
        case 0:
            return array[..., : int(rng.integers(0, array.shape[-1]))]
        case 1:
            return np.concatenate([array, array], axis=int(rng.integers(array.ndim)))
        case 2:
            return array.reshape(-1)
        case 3:
            kind = str(rng.choice(["f4", "f8", "i8", "u1", "U5", "S3", "c8", "M8[s]", "?"]))
            try:
                return array.astype(kind)
            except (ValueError, TypeError, UnicodeEncodeError):
                return np.zeros(array.shape, kind)
        case 4 if array.dtype.kind in "iu":
            return array.astype(np.int64) + int(rng.choice([-1, -100, 1, 100, 2**40]))
        case 5 if array.dtype.kind == "f":
            return array * float(rng.choice([np.nan, np.inf, 1e30, -1]))
        case 6:
            return rng.permutation(array)
        case _:
            return np.zeros_like(array)


@functools.cache
def corrections() -> tuple[str, ...]:
    """Saved corrections of every kind, as JSON."""
    rng = np.random.default_rng(0)
    p, y, sex = rng.random(200), rng.integers(0, 2, 200), rng.choice(["f", "m"], 200)
    settings: list[dict[str, Any]] = [
        {},
        {"on": "probabilities"},
        {"criterion": "equalized_odds"},
        {"criterion": "equalized_odds", "on": "probabilities"},
        {"criterion": "equal_opportunity", "on": "probabilities"},
        {"target": 0.9, "confidence": 0.9},
        {"group_free": True},
    ]
    texts = []
    for arguments in settings:
        extra = {"features": rng.normal(size=(200, 2))} if arguments.get("group_free") else {}
        debiaser = Debiaser(**arguments).fit(p, y, sensitive_features=sex, **extra)
        texts.append(json.dumps(debiaser.to_dict()))
    return tuple(texts)


def correction(rng: np.random.Generator, place: Path) -> str:
    """The file of a correction with values or bytes changed is refused, or finite."""
    text = str(rng.choice(corrections()))
    path = place / "correction.json"
    if rng.random() < 0.4:
        raw = bytearray(text.encode())
        for _ in range(rng.integers(1, 4)):
            mutate(rng, raw)
        path.write_bytes(bytes(raw))
    else:
        record = json.loads(text)
        for _ in range(rng.integers(1, 3)):
            replace(rng, record)
        path.write_text(json.dumps(record))
    debiaser = Debiaser.load(path)
    scores = rng.random((6, len(debiaser.classes_)))
    scores = scores / scores.sum(1, keepdims=True)
    if debiaser.kind_ == "logits":
        scores = np.log(scores)
    groups = [rng.choice([*names, ""], 6) for _, names in debiaser.groups_]
    features = rng.normal(size=(6, 2)) if debiaser.group_free else None
    fair = debiaser.transform(
        scores,
        sensitive_features=dict(zip((n for n, _ in debiaser.groups_), groups, strict=True)),
        features=features,
    )
    assert np.isfinite(np.asarray(fair)).all()
    return "loaded"


def snapshot(place: Path) -> dict[str, str]:
    """Every path below a folder with its kind and content; links are not followed."""
    content = {}
    for at, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(at, name)
            if os.path.islink(path):
                content[path] = f"link {os.readlink(path)}"
            else:
                is_file = os.path.isfile(path)
                content[path] = f"file {Path(path).read_bytes()!r}" if is_file else "folder"
    return content


def plant(rng: np.random.Generator, place: Path) -> None:
    """Put things of the user around a goal."""
    precious = place / "precious"
    for name in ("new", "old"):
        (precious / name).mkdir(parents=True)
        (precious / name / "thesis").write_text("mine")
    for name in rng.choice(LOOKALIKES, int(rng.integers(1, 6)), replace=False):
        path = place / str(name)
        match rng.integers(0, 4):
            case 0:
                path.symlink_to(precious)
            case 1:
                path.write_text("mine")
            case 2:
                path.symlink_to(place / "nowhere")
            case _:
                (path / str(rng.choice(["new", "old", "other"]))).mkdir(parents=True)
                (path / "keep").write_text("mine")
                if rng.random() < 0.7:
                    (path / ".owner").write_text(str(rng.choice(OWNERS)), encoding="utf-8")
                if rng.random() < 0.5:
                    (path / ".lock").write_text("")


def around(rng: np.random.Generator, place: Path) -> str:
    """Results appear, or an error, and nothing else around them changes."""
    plant(rng, place)
    goal = place / "out"
    if rng.random() < 0.4:
        goal.mkdir()
        (goal / "older").write_text("mine")
    before, fails = snapshot(place), bool(rng.random() < 0.3)
    ours = {str(goal), str(goal / "a.txt")}
    try:
        match rng.integers(0, 3):
            case 0:
                with outputs.results(goal, overwrite=True) as folder:
                    (folder / "a.txt").write_text("new")
                    stop(fails)
            case 1:
                outputs.hold(goal, overwrite=True)
                with outputs.into(goal) as folder:
                    (folder / "a.txt").write_text("new")
                    stop(fails)
            case _:
                ours = {str(place / "a.txt")}
                with (
                    outputs.exclusive(place / "a.txt"),
                    outputs.atomic_file(place / "a.txt") as draft,
                ):
                    draft.write_text("new")
                    stop(fails)
        end = "written"
    except KeyboardInterrupt:
        end = "stopped"
    finally:
        outputs.release()
    after = snapshot(place)
    assert before.items() <= after.items(), before.items() - after.items()
    extra = set(after) - set(before)
    assert extra <= (set() if end == "stopped" else ours), extra
    return end


def stop(now: bool) -> None:
    if now:
        raise KeyboardInterrupt
