"""Any number of ranks trains what one process trains."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairmp.distributed import shard
from fairmp.metrics import Evaluation, evaluate
from fairmp.training import fitted
from tests.distributed.jobs import SETTINGS, awkward, classifier, curve, train
from tests.distributed.together import together

CLOSE = 1e-10
KINDS = {"plain": (2, 2), "many": (3, 3)}  # classes and groups
EPOCHS = {"plain": 20, "many": 5}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for kind, sizes in KINDS.items():
        shard(awkward(*sizes), folder / kind, parts=4, order="given")
    return folder


def settings(kind: str) -> list[str]:
    return list(SETTINGS) if kind == "plain" else ["projection"]


def of_independent_nodes(*arguments: Any, clusters: Any, **options: Any) -> Evaluation:
    """Intervals as ranks have them, none of which has the graph's communities."""
    return evaluate(*arguments, **options)


@cache
def alone(kind: str, setting: str) -> dict[str, Any]:
    """One process, with the whole graph in memory, and no shards."""
    data = awkward(*KINDS[kind])
    model = classifier(setting, epochs=EPOCHS[kind])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitted, "evaluate", of_independent_nodes)
        run = model.fit(data, bootstrap=20).run_
    return {
        "curve": curve(model).numpy(),
        "duals": model.group_duals_.numpy(),
        "batch": model.predict_proba(data).numpy(),
        "per-node": model.predict_proba(data, mode="per-node").numpy(),
        "weights": {k: v.numpy() for k, v in model.network_.state_dict().items()},
        "test": run.test.to_dict(),
    }


@pytest.mark.parametrize(("kind", "size"), [("plain", 1), ("plain", 2), ("plain", 4), ("many", 2)])
def test_ranks_train_what_one_process_trains(shards: Path, kind: str, size: int) -> None:
    parts = together(size, train, shards / kind, settings(kind), EPOCHS[kind])
    if size == 4:
        assert parts[2]["training"] == 0
        assert parts[3]["groups"][2] == 0
        assert all(part["halo"] > 0 for part in parts)
    for setting in settings(kind):
        expected = alone(kind, setting)
        for part in parts:
            mine = part[setting]
            np.testing.assert_allclose(mine["curve"], expected["curve"], rtol=0, atol=CLOSE)
            scale = max(1.0, float(np.abs(expected["duals"]).max()))
            np.testing.assert_allclose(mine["duals"], expected["duals"], rtol=0, atol=CLOSE * scale)
            for mode in ("batch", "per-node"):
                np.testing.assert_allclose(
                    mine[mode], expected[mode][part["number"]], rtol=0, atol=CLOSE
                )
            for name, weight in expected["weights"].items():
                np.testing.assert_allclose(mine["weights"][name], weight, rtol=0, atol=CLOSE)
            assert mine["test"]["intervals"] == expected["test"]["intervals"]
            assert fitted.INDEPENDENT_NOTE in mine["test"]["notes"]
            for figure in ("accuracy", "auc", "f1", "dp", "eo", "odds"):
                assert mine["test"][figure] == expected["test"][figure]
            for group, other in zip(
                mine["test"]["groups"], expected["test"]["groups"], strict=True
            ):
                # A mean of scores, which are the same up to rounding.
                error = pytest.approx(other["calibration_error"], rel=0, abs=CLOSE, nan_ok=True)
                assert group == other | {"calibration_error": error}
        for part in parts[1:]:  # every rank holds the same bits
            for name in expected["weights"]:
                assert np.array_equal(
                    part[setting]["weights"][name], parts[0][setting]["weights"][name]
                )
            assert np.array_equal(part[setting]["duals"], parts[0][setting]["duals"])


def test_awkward_graph_has_hubs_and_isolated_nodes() -> None:
    data = awkward()
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    assert degree.max() > 100
    assert (degree == 0).sum() > 10
