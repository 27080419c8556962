import json

import numpy as np
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE, SAGEConv

from fairmp import FMP, PPR, FairClassifier
from fairmp.datasets import social_network
from fairmp.datasets.splits import cut_folds
from fairmp.errors import InputError
from fairmp.training import auto
from fairmp.training.auto import Fitting, Folds, SelectionSettings
from fairmp.training.graph_features import GraphInputs, fingerprint, num_columns
from fairmp.training.judge import Candidate, CandidateFits, Judge
from fairmp.training.nodes import Names, TrainingNodes, graph_of
from fairmp.training.penalties import Regulariser

FAST = {"epochs": 20, "lr": 0.01, "eval_every": 5}


@pytest.fixture(scope="module")
def data():
    return social_network(n=300, average_degree=8)


@pytest.fixture(scope="module")
def chosen(data):
    model = FairClassifier(FMP(K=3, lambda_s="learned"), backbone="auto", **FAST)
    model.fit(data, seed=0, bootstrap=0)
    return model


def test_trials_list_all_candidates_and_their_shares(chosen):
    run = chosen.run_
    assert {(t.model, t.reads) for t in run.tried} == set(auto.CANDIDATES)
    assert sum(trial.weight for trial in run.tried) == pytest.approx(1)
    assert all(0 <= trial.accuracy <= 1 and trial.loss > 0 for trial in run.tried)
    # The blend is no worse than the best candidate on what it was chosen by.
    assert run.history.best.val_loss < 1.2 * min(trial.loss for trial in run.tried)
    assert json.loads(run.to_json())["tried"][0]["model"] == "logistic"
    assert run.test.dp <= 1 / 20


def test_same_seed_gives_the_same_choice(data, chosen):
    again = FairClassifier(FMP(K=3, lambda_s="learned"), backbone="auto", **FAST)
    run = again.fit(data, seed=0, bootstrap=0).run_
    assert [trial.weight for trial in run.tried] == [t.weight for t in chosen.run_.tried]
    assert torch.equal(again.predict_proba(data), chosen.predict_proba(data))


def test_labels_of_test_nodes_change_nothing(data, chosen):
    other = data.clone()
    other.y = torch.where(data.test_mask, 1 - data.y, data.y)
    model = FairClassifier(FMP(K=3, lambda_s="learned"), backbone="auto", **FAST)
    model.fit(other, seed=0, bootstrap=0)
    assert torch.equal(model.predict_proba(data), chosen.predict_proba(data))


def test_saved_choice_predicts_the_same(data, chosen, tmp_path):
    chosen.save(tmp_path / "model")
    loaded = FairClassifier.load(tmp_path / "model")
    for mode in ("batch", "per-node"):
        expected = chosen.predict_proba(data, mode=mode)
        assert torch.equal(loaded.predict_proba(data, mode=mode), expected)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["model.safetensors"]


def test_time_budget_ends_the_search(data):
    model = FairClassifier(FMP(), backbone="auto", time_budget=0, **FAST)
    first, *others = model.fit(data, bootstrap=0).run_.tried
    assert first.weight == 1
    assert all(trial.accuracy is None and "0 s" in trial.note for trial in others)


def test_without_graph_features_another_graph_does_not_warn(data, recwarn):
    model = FairClassifier(FMP(), backbone="auto", graph_features=False, **FAST)
    assert {trial.reads for trial in model.fit(data, bootstrap=0).run_.tried} == {"features"}
    model.predict_proba(social_network(n=200, average_degree=8, seed=1))
    assert not recwarn.list


def test_strategy_leaves_only_networks(data):
    model = FairClassifier(PPR(), backbone="auto", strategy=Regulariser(1.0), **FAST)
    assert {trial.model for trial in model.fit(data, bootstrap=0).run_.tried} == {"mlp"}


@pytest.mark.parametrize("backbone", ["trees", "forest", "logistic"])
@pytest.mark.parametrize("graph_features", [False, True])
def test_named_classifiers(data, backbone, graph_features, tmp_path):
    layer = FMP(K=2, lambda_s="learned")
    model = FairClassifier(layer, backbone=backbone, graph_features=graph_features)
    run = model.fit(data, bootstrap=0).run_
    (trial,) = run.tried
    assert (trial.model, trial.weight) == (backbone, 1)
    assert trial.reads == ("neighbourhood" if graph_features else "features")
    model.save(tmp_path / "model")
    loaded = FairClassifier.load(tmp_path / "model")
    assert torch.equal(loaded.predict_proba(data), model.predict_proba(data))
    assert layer.gamma == (0.5, 0.5)  # the argument stays as it was given


def test_fixed_smoothing_is_kept(data):
    model = FairClassifier(FMP(K=2, lambda_s=3.0), backbone="logistic")
    model.fit(data, bootstrap=0)
    assert model.network_.propagation.gamma == (0.25, 0.25)


def test_learned_smoothing_validates_best(data):
    model = FairClassifier(
        FMP(K=2, lambda_s="learned"), backbone="logistic", calibrate=False, graph_features=False
    )
    run = model.fit(data, bootstrap=0).run_
    accuracies = []
    for lambda_s in (1e-9, 1.0, 3.0):
        fixed = FairClassifier(FMP(K=2, lambda_s=lambda_s), backbone="logistic", calibrate=False)
        accuracies.append(fixed.fit(data, bootstrap=0).run_.val.accuracy)
    assert run.val.accuracy >= max(accuracies)


def test_users_classifier_is_cloned_fitted_and_saved(data, tmp_path):
    classifier = GaussianNB()
    model = FairClassifier(None, backbone=classifier, calibrate=False).fit(data, bootstrap=0)
    assert not hasattr(classifier, "classes_")  # a clone was fitted
    train = data.train_mask
    oracle = GaussianNB().fit(data.x[train].numpy(), data.y[train].numpy())
    predicted = model.predict(data)
    expected = np.array(model.classes_)[oracle.predict(data.x.numpy())]
    np.testing.assert_array_equal(predicted, expected)
    model.save(tmp_path / "model")
    loaded = FairClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data), predicted)
    assert isinstance(loaded.backbone, GaussianNB)
    np.testing.assert_array_equal(loaded.fit(data, bootstrap=0).predict(data), predicted)


def test_classifier_of_an_unknown_type_needs_trust(data, tmp_path):
    model = FairClassifier(FMP(), backbone=KNeighborsClassifier(algorithm="kd_tree"))
    model.fit(data, bootstrap=0).save(tmp_path / "model")
    with pytest.raises(InputError, match=r"path: .*trust=True"):
        FairClassifier.load(tmp_path / "model")
    loaded = FairClassifier.load(tmp_path / "model", trust=True)
    assert torch.equal(loaded.predict_proba(data), model.predict_proba(data))


def test_users_forest_needs_no_trust(data, tmp_path):
    model = FairClassifier(FMP(), backbone=RandomForestClassifier(10, random_state=0))
    model.fit(data, bootstrap=0).save(tmp_path / "model")
    loaded = FairClassifier.load(tmp_path / "model")
    assert torch.equal(loaded.predict_proba(data), model.predict_proba(data))


class Own(nn.Module):
    """A user's GraphSAGE, called with features and edges alone."""

    def __init__(self, columns):
        super().__init__()
        self.first, self.last = SAGEConv(columns, 8), SAGEConv(8, 2)

    def forward(self, x, edge_index):
        """Return logits."""
        return self.last(self.first(x, edge_index).relu(), edge_index)


def test_users_module_is_copied_and_trained(data, tmp_path):
    torch.manual_seed(0)
    module = Own(data.x.size(1))
    before = [p.clone() for p in module.parameters()]
    model = FairClassifier(FMP(), backbone=module, **FAST)
    run = model.fit(data, bootstrap=0).run_
    assert run.test.dp < 0.1
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("graph_features", [False, True])
def test_users_module_is_loaded_into_another(data, tmp_path, graph_features):
    columns = num_columns(data.x.size(1), 2) if graph_features else data.x.size(1)
    settings = {"graph_features": graph_features, **FAST}
    model = FairClassifier(FMP(), backbone=Own(columns), **settings)
    model.fit(data, bootstrap=0)
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"module of your own, Own.*backbone=…"):
        FairClassifier.load(tmp_path / "model")
    loaded = FairClassifier.load(tmp_path / "model", backbone=Own(columns))
    assert torch.equal(loaded.predict_proba(data), model.predict_proba(data))
    with pytest.raises(InputError, match="do not match"):
        FairClassifier.load(tmp_path / "model", backbone=Own(columns + 1))
    loaded.set_params(backbone="mlp", graph_features=False).fit(data, bootstrap=0)
    loaded.save(tmp_path / "named")
    with pytest.raises(InputError, match="leave it out"):
        FairClassifier.load(tmp_path / "named", backbone=Own(columns))


def test_networks_with_graph_features(data, tmp_path):
    for backbone in ("mlp", "gcn"):
        model = FairClassifier(FMP(), backbone=backbone, graph_features=True, **FAST)
        model.fit(data, bootstrap=0)
        model.save(tmp_path / backbone)
        loaded = FairClassifier.load(tmp_path / backbone)
        assert torch.equal(loaded.predict_proba(data), model.predict_proba(data))
    module = GraphSAGE(num_columns(data.x.size(1), 2), 8, 2, out_channels=2)
    FairClassifier(FMP(), backbone=module, graph_features=True, **FAST).fit(data, bootstrap=0)


@pytest.mark.parametrize("backbone", ["tree", 3, KNeighborsClassifier, None])
def test_other_backbones_are_refused(backbone):
    with pytest.raises(InputError, match="backbone"):
        FairClassifier(FMP(), backbone=backbone)


@pytest.mark.parametrize("backbone", ["mlp", "logistic", "trees"])
def test_training_nodes_of_weight_zero_do_not_count(data, backbone):
    weighted_nodes = data.train_mask & (torch.arange(data.num_nodes) % 3 > 0)
    weighted, fewer = data.clone(), data.clone()
    weighted.sample_weight = torch.where(data.train_mask & ~weighted_nodes, 0.0, 2.0)
    fewer.train_mask = weighted_nodes
    predictions = []
    for graph in (data, weighted, fewer):
        model = FairClassifier(None, backbone=backbone, **FAST)
        model.fit(graph, seed=0, bootstrap=0)
        predictions.append(model.predict_proba(data))
    # A weighted scikit-learn model bins, scales and regularises by all rows.
    distance = (predictions[1] - predictions[2]).abs().mean()
    assert distance < (
        1e-5 if backbone == "mlp" else 0.5 * (predictions[0] - predictions[2]).abs().mean()
    )


def test_wrong_sample_weights_are_refused(data):
    for weight in (torch.ones(3), -torch.ones(data.num_nodes), torch.zeros(data.num_nodes)):
        graph = data.clone()
        graph.sample_weight = weight
        with pytest.raises(InputError, match="sample_weight"):
            FairClassifier(None, backbone="mlp", **FAST).fit(graph)


@pytest.mark.parametrize("groups", [2, 3])
def test_weighted_gap_is_closed(data, groups):
    graph, rng = data.clone(), np.random.default_rng(0)
    graph.sens = graph.sens + 2 * torch.from_numpy(rng.integers(0, groups - 1, data.num_nodes))
    graph.sens = graph.sens.clamp_max(groups - 1)
    graph.sample_weight = torch.from_numpy(rng.gamma(0.5, size=data.num_nodes))
    model = FairClassifier(FMP(), backbone="mlp", **FAST)
    run = model.fit(graph, bootstrap=0).run_
    test = graph.test_mask
    weight, sens = graph.sample_weight[test], graph.sens[test]
    decided = model.predict_proba(graph, nodes=test).argmax(1)
    by_fairlearn = demographic_parity_difference(
        graph.y[test], decided, sensitive_features=sens, sample_weight=weight
    )
    assert run.test.dp == pytest.approx(by_fairlearn)
    one_node = max(float(weight[sens == k].max() / weight[sens == k].sum()) for k in range(groups))
    assert run.test.dp <= one_node
    plain = FairClassifier(FMP(), backbone="mlp", **FAST).fit(data, bootstrap=0).run_
    equal = data.clone()
    equal.sample_weight = torch.full((data.num_nodes,), 3.0)
    equal_run = FairClassifier(FMP(), backbone="mlp", **FAST).fit(equal, bootstrap=0).run_
    assert equal_run.test.dp == pytest.approx(plain.test.dp, abs=1e-6)


def test_held_out_labels_do_not_enter_the_models_of_their_fold(data):
    models = []
    fold = cut_folds(data, data.train_mask | data.val_mask, 5, seed=0)
    changed = data.clone()
    changed.y = torch.where(fold == 0, 1 - data.y, data.y)
    for graph in (data, changed):
        nodes = TrainingNodes(graph, graph_of(graph), Names.of(graph))
        labels = torch.where(fold >= 0, graph.y, -1)
        inputs = GraphInputs(labels, fingerprint(nodes.graph), 2, fold)
        held = [fold == k for k in range(5)]
        cut = Folds(inputs, labels >= 0, held)
        model = FairClassifier(PPR(K=2), **FAST)
        selection = SelectionSettings(
            backbone="auto",
            graph_features=None,
            time_budget=60.0,
            calibrate=True,
            folds=5,
            network=model.network_settings,
            training=model.training_settings,
        )
        judge = Judge(nodes, PPR(K=2), held, calibrate=True)
        fits = [
            CandidateFits(Candidate("trees", view), []) for view in ("features", "neighbourhood")
        ]
        fits.append(CandidateFits(Candidate("logistic", "edges"), []))
        for each in fits:
            Fitting(selection, nodes, cut, judge, seed=0).fit(each, fold=0)
        models.append(torch.stack([each.logits[0] for each in fits]))
    assert torch.equal(*models)


def test_out_of_fold_predictions_are_of_all_labelled_nodes_outside_the_test_set(data, chosen):
    held = chosen.held_out_
    assert torch.equal(held.nodes, data.train_mask | data.val_mask)
    assert len(held.logits) == int(held.nodes.sum()) == chosen.run_.val.n
    # In-sample predictions of the same nodes are more accurate than those out of fold.
    y = data.y[held.nodes]
    fitted = chosen.uncorrected()[held.nodes]
    assert (fitted.argmax(1) == y).double().mean() > (held.logits.argmax(1) == y).double().mean()


def test_cross_fitted_prediction_averages_the_models_of_all_folds(data, chosen):
    blend = chosen.network_.transform
    assert sorted(set(blend.folds)) == [0, 1, 2, 3, 4]
    rows = zip(blend.names, blend.views, blend.weights.tolist(), strict=True)
    by_fold = {}
    for fold, member in zip(blend.folds, rows, strict=True):
        by_fold.setdefault(fold, []).append(member)
    assert all(members == by_fold[0] for members in by_fold.values())
    logits = chosen.network_.calibrated(blend(data.x, chosen.graph_))
    torch.testing.assert_close(logits, chosen.logits_, atol=1e-4, rtol=1e-4)


def test_one_fold_chooses_on_validation_nodes(data):
    model = FairClassifier(FMP(K=3, lambda_s="learned"), folds=1, **FAST).fit(data, bootstrap=0)
    assert torch.equal(model.held_out_.nodes, data.val_mask)
    assert set(model.network_.transform.folds) == {0}


def test_folds_beyond_enough_held_out_nodes_are_not_fitted(data, monkeypatch):
    labelled = int((data.train_mask | data.val_mask).sum())
    monkeypatch.setattr(auto, "ENOUGH_HELD", labelled * 3 // 10)  # two folds of five
    model = FairClassifier(FMP(K=2, lambda_s="learned"), **FAST).fit(data, bootstrap=0)
    assert set(model.network_.transform.folds) == {0, 1}
    held_out = int(model.held_out_.nodes.sum())
    assert labelled * 0.3 < held_out < labelled * 0.5


def test_time_over_after_the_first_fold_keeps_its_models(data):
    model = FairClassifier(FMP(K=2, lambda_s="learned"), time_budget=0, **FAST)
    model.fit(data, bootstrap=0)
    assert set(model.network_.transform.folds) == {0}
    assert int(model.held_out_.nodes.sum()) < int((data.train_mask | data.val_mask).sum())


def test_labels_of_nodes_of_unknown_group_train(data):
    hidden = data.clone()
    unknown = data.train_mask & (torch.arange(data.num_nodes) % 2 == 0)
    hidden.sens = torch.where(unknown, -1, data.sens)
    model = FairClassifier(FMP(K=2, lambda_s="learned"), **FAST).fit(hidden, bootstrap=0)
    assert bool(model.held_out_.nodes[unknown].all())
    assert model.run_.test.dp <= 1 / 20


@given(st.integers(0, 10_000), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_folds_have_a_node_of_every_group_and_equal_sizes(seed, folds):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 80))
    sens = torch.from_numpy(rng.integers(-1, 3, n))
    graph = Data(y=torch.from_numpy(rng.integers(0, 3, n)), sens=sens)
    nodes = torch.from_numpy(rng.random(n) < 0.8)
    fold = cut_folds(graph, nodes, folds, seed=seed)
    assert torch.equal(fold >= 0, nodes)
    sizes = torch.bincount(fold[nodes])
    assert int(sizes.max() - sizes.min()) <= 1
    for group in sens[nodes].unique():
        members = nodes & (sens == group)
        if group >= 0:
            assert len(fold[members].unique()) == len(sizes)
