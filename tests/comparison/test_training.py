"""One configuration on several splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import APPNP

from fairmp import FMP, FairClassifier, InputError
from fairmp.comparison import Record, training
from fairmp.comparison.training import (
    CHECKPOINTS,
    TrainingJob,
    remove_checkpoints,
    train_shards,
    train_splits,
)
from fairmp.datasets import social_network
from fairmp.datasets.splits import split
from fairmp.datasets.statistics import statistics
from fairmp.distributed import shard
from fairmp.distributed.ranks import Ranks
from fairmp.graph import Graph
from fairmp.metrics import evaluate
from fairmp.report.document import read
from fairmp.training.classifier import build_classifier
from tests.fitted import one_split


def make() -> FairClassifier:
    return FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=3, hidden=8)


def test_train_splits_records_every_split() -> None:
    data = social_network(n=200, average_degree=5)
    trained = train_splits(TrainingJob("fair", make, range(4, 6)), data)
    assert [(run.seed, run.split_seed) for run in trained.runs] == [(4, 4), (4, 5)]
    assert trained.model.run_ is trained.runs[0]
    records = trained.records("fair")
    assert [record["split"] for record in records] == [0, 1]
    assert {record["dataset"] for record in records} == {data.name}
    assert records[1]["run"] == trained.runs[1].to_dict()


def test_train_splits_of_a_fixed_split_varies_the_initialisation() -> None:
    data = social_network(n=200, average_degree=5)
    data.protocol = "nifty"
    runs = train_splits(TrainingJob("fair", make, range(2)), data).runs
    assert [(run.seed, run.split_seed) for run in runs] == [(0, None), (1, None)]


def test_train_shards_leaves_checkpoints_until_they_are_removed(tmp_path: Path) -> None:
    shard(social_network(n=200, average_degree=5), tmp_path / "g", parts=1)
    job, out = TrainingJob("fair", make, range(1)), tmp_path / "out"
    trained, folder = train_shards(job, tmp_path / "g", Ranks(), out=out, checkpoint_every=1)
    assert folder == out
    assert trained.data.nodes == 200
    assert [path.name for path in (out / CHECKPOINTS).iterdir()] == ["split-0.pt"]
    again, _ = train_shards(job, tmp_path / "g", Ranks(), out=out)  # resumes, and has nothing to do
    assert again.runs[0].test == trained.runs[0].test
    remove_checkpoints(out)
    assert not (out / CHECKPOINTS).exists()


def test_train_shards_refuses_a_split_that_was_not_written(tmp_path: Path) -> None:
    data = social_network(n=200, average_degree=5)
    for part in ("train_mask", "val_mask", "test_mask"):
        del data[part]
    shard(data, tmp_path / "g", parts=1)
    job = TrainingJob("fair", make, range(90, 92))
    with pytest.raises(InputError, match="split_seed"):
        train_shards(job, tmp_path / "g", Ranks(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=1200, average_degree=10, seed=3)


@pytest.fixture(scope="module")
def fitted(data: Data) -> tuple[Record, FairClassifier]:
    make = lambda: build_classifier(  # noqa: E731
        target=0.02, K=3, lambda_s=3.0, epochs=20, lr=0.02, backbone="mlp"
    )
    return one_split("projection", make, data, split=0, bootstrap=50)


def test_before_is_the_network_without_its_correction(data: Data, fitted) -> None:
    _, model = fitted
    report = training.document(data, model)
    test = split((data.y, data.sens), seed=0).test
    with torch.no_grad():
        logits = model.network_.logits(data.x, Graph(data.edge_index, data.num_nodes))
        plain = APPNP(3, alpha=1 / 4)(logits, data.edge_index)[test]
    expected = evaluate(data.y[test], plain, sensitive_features=data.sens[test], bootstrap=0)
    metrics = {criterion["name"]: criterion for criterion in report["metrics"]}
    assert metrics["ΔDP"]["before"] == pytest.approx(expected.dp)
    assert metrics["accuracy"]["before"] == pytest.approx(expected.accuracy)
    assert metrics["ΔDP"]["after"] == model.run_.test.dp
    assert metrics["ΔDP"]["target"] == 0.02
    decided = model.predict_proba(data, nodes=test).argmax(1)
    for g, group in enumerate(report["groups"]):
        inside = data.sens[test] == g
        changed = (decided != plain.argmax(1))[inside]
        assert group["changed"] == int(changed.sum())
    gaps = [point["gap"] for point in report["curve"]]
    assert gaps == sorted(gaps)
    assert gaps[0] < 0.02
    assert gaps[-1] == pytest.approx(expected.dp, abs=1e-5)
    assert report["curve"][-1]["accuracy"] == pytest.approx(expected.accuracy, abs=1e-5)


def test_plain_model_has_no_before(data: Data) -> None:
    make = lambda: build_classifier("plain", K=3, epochs=5, backbone="mlp")  # noqa: E731
    _, model = one_split("plain", make, data, split=0, bootstrap=0)
    report = training.document(data, model)
    assert all(criterion["before"] is None for criterion in report["metrics"])
    assert [point["kind"] for point in report["points"]] == ["chosen"]
    assert report["curve"][-1]["gap"] == pytest.approx(model.run_.test.dp, abs=1e-5)
    assert not any("at prediction" in line for line in report["assumptions"])


def test_papc_has_no_target(data: Data) -> None:
    make = lambda: build_classifier("papc", target=0.1, K=3, epochs=3, backbone="mlp")  # noqa: E731
    _, model = one_split("papc", make, data, split=0, bootstrap=0)
    report = training.document(data, model)
    assert report["target"] is None
    assert all(criterion["target"] is None for criterion in report["metrics"])


def test_statistics_instead_of_a_graph(data: Data, fitted, tmp_path: Path) -> None:
    record, model = fitted
    lines = training.write(statistics(data), [record], model, tmp_path, command="fairmp train")
    assert lines[0].name == "projection"
    report = read(tmp_path)
    assert "graph" not in report
    assert report["extra"][0].title == "The graph"
    assert "1,200" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_groups_as_probabilities(data: Data) -> None:
    soft = data.clone()
    soft.sens = torch.nn.functional.one_hot(data.sens, 2).float()
    soft.sens[::3] = 0.5
    make = lambda: build_classifier(K=2, lambda_s=1.0, epochs=3, backbone="mlp")  # noqa: E731
    _, model = one_split("projection", make, soft, split=0, bootstrap=0)
    report = training.document(soft, model)
    assert any("not certain" in note for note in report["notes"])
    assert sum(group["nodes"] for group in report["groups"]) < model.run_.test.n


def test_summary_counts_candidates_left_out_for_lack_of_time() -> None:
    model = FairClassifier(time_budget=0)
    model.fit(social_network(n=200, average_degree=6), bootstrap=0)
    assert any("1 tried; 8 more were not tried" in line for line in training.summary(model))


def test_records_and_report_have_both_tracks(data: Data) -> None:
    """Batch and per node, the latter with the gap that sampling alone leaves."""
    make = lambda: build_classifier(K=3, epochs=5, backbone="mlp")  # noqa: E731
    trained = training.train_splits(training.TrainingJob("FMP", make, range(2)), data)
    record = trained.records("FMP")[0]
    test = split(data, seed=0).test
    logits = trained.model.predict_proba(data, nodes=test, mode="per-node")
    decided, sens = logits.argmax(1).numpy(), data.sens[test].numpy()
    rates = [decided[sens == g].mean() for g in (0, 1)]
    assert record["per_node"]["dp"] == pytest.approx(abs(rates[0] - rates[1]))
    assert record["run"]["test"]["mode"] == "batch"
    # The oracle: the mean gap of two groups that get decisions by the same chance.
    counts = [int((sens == g).sum()) for g in (0, 1)]
    drawn = np.random.default_rng(0).binomial(counts, decided.mean(), (20_000, 2)) / counts
    floor = np.abs(drawn[:, 0] - drawn[:, 1]).mean()
    assert record["sampling_floor"] == pytest.approx(floor, rel=0.03)
    report = training.document(data, trained.model, per_node=record["per_node"])
    [section] = [part for part in report["extra"] if part.title == "Batch and per node"]
    assert section.rows[2][2] == f"{100 * record['per_node']['dp']:.1f}"
    assert section.rows[1][2] == f"{100 * record['run']['test']['dp']:.1f}"
    assert section.rows[2][2] in report["checks"][0]
    fairest = {**record["per_node"], "dp": 0.0}
    for served, is_warned in ((fairest, False), ({**fairest, "dp": 0.99}, True)):
        flags = training.document(data, trained.model, per_node=served).get("flags", [])
        assert any("worse than without a correction" in flag for flag in flags) == is_warned
