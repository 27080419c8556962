from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.comparison.grid import Setting
from fairmp.datasets import social_network
from fairmp.datasets.validation import check
from fairmp.graph import Graph
from fairmp.nn.models import Network, build
from fairmp.training import defaults
from fairmp.training.loop import LocalReducer, fit, seeded
from fairmp.training.penalties import Regulariser


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=600, average_degree=8, seed=1)


def network(data: Data, propagation: torch.nn.Module | None = None, **arguments: object) -> object:
    with seeded(0):
        return build(
            in_channels=data.x.size(1), out_channels=2, propagation=propagation, **arguments
        )


def graph(data: Data) -> Graph:
    return Graph(data.edge_index, data.x.size(0))


def test_the_paper_s_settings() -> None:
    names = ("hidden", "num_layers", "lr", "weight_decay", "epochs")
    assert [defaults.PAPER[name] for name in names] == [64, 2, 1e-3, 1e-5, 300]
    model = FairClassifier(
        FMP(lambda_s=3.0),
        **{name: value for name, value in defaults.PAPER.items() if name != "lambda_s"},
    )
    assert (model.patience, model.calibrate) == (None, False)
    ours = {one.name: one.default for one in fields(FairClassifier)}
    assert (ours["lr"], ours["epochs"]) == (fit.__kwdefaults__["lr"], fit.__kwdefaults__["epochs"])
    assert Setting().lr == ours["lr"]


def test_one_epoch_is_one_step_of_adam(data: Data) -> None:
    net = network(data, PPR(3, 1.0))
    other = network(data, PPR(3, 1.0))
    fit(net, data, graph(data), epochs=1, lr=0.01, weight_decay=1e-3)
    optimiser = torch.optim.Adam(other.parameters(), lr=0.01, weight_decay=1e-3)
    logits = other(data.x, graph(data))
    torch.nn.functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask]).backward()
    optimiser.step()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_epoch_kept_is_the_best_on_validation_nodes(data: Data) -> None:
    net = network(data)
    history = fit(net, data, graph(data), epochs=60, lr=0.05)
    top = max(history.epochs, key=lambda e: (e.val_accuracy, -e.val_loss))
    assert history.best == top
    val = data.val_mask
    accuracy = (net(data.x, graph(data))[val].argmax(1) == data.y[val]).double().mean()
    assert float(accuracy) == history.best.val_accuracy
    assert not net.training


def test_selecting_by_loss(data: Data) -> None:
    history = fit(network(data), data, graph(data), epochs=60, lr=0.05, select="loss")
    assert history.best.val_loss == min(e.val_loss for e in history.epochs)


def test_patience_and_looking_less_often(data: Data) -> None:
    history = fit(network(data), data, graph(data), epochs=500, lr=0.05, patience=10, eval_every=5)
    last = history.epochs[-1].epoch
    assert last < 500
    assert last - history.best.epoch == 10
    assert all(e.epoch % 5 == 0 for e in history.epochs)


def test_a_seed_decides(data: Data) -> None:
    runs = []
    for seed in (3, 3, 4):
        net = network(data, FMP(2, 1.0), dropout=0.5)
        before = torch.random.get_rng_state()
        fit(net, data, graph(data), epochs=5, seed=seed)
        assert torch.equal(before, torch.random.get_rng_state())
        runs.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_the_regulariser_closes_the_gap(data: Data) -> None:
    gaps = []
    for strategy in (None, Regulariser(20.0)):
        net = network(data, PPR(3, 3.0))
        fit(net, data, graph(data), epochs=60, lr=0.02, strategy=strategy, select="loss")
        with torch.no_grad():
            p = net(data.x, graph(data)).softmax(1)[:, 1]
        train = data.train_mask
        means = [p[train & (data.sens == g)].mean() for g in (0, 1)]
        gaps.append(abs(float(means[0] - means[1])))
    assert gaps[1] < 0.3 * gaps[0]


def test_the_test_nodes_are_never_looked_at(data: Data) -> None:
    hidden = data.clone()
    hidden.y = torch.where(data.test_mask, 1 - data.y, data.y)
    nets = []
    for source in (data, hidden):
        net = network(data, FMP(2, 1.0))
        fit(net, source, graph(source), epochs=10)
        nets.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*nets)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"epochs": 0}, "epochs: 0"),
        ({"lr": 0.0}, "lr: 0.0"),
        ({"weight_decay": -1.0}, "weight_decay: -1.0"),
        ({"select": "luck"}, "select: 'luck'"),
        ({"patience": 0}, "patience: 0"),
        ({"eval_every": 0}, "eval_every: 0"),
    ],
)
def test_wrong_settings_are_named(data: Data, arguments: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        fit(network(data), data, graph(data), **arguments)  # type: ignore[arg-type]


def test_a_loss_that_runs_away_is_named(data: Data) -> None:
    wild = data.clone()
    wild.x = data.x * 1e37
    with pytest.raises(InputError, match="no longer finite in epoch"):
        fit(network(data), wild, graph(data), epochs=50, lr=1e6)


def test_wrong_strengths_and_backbones_are_named() -> None:
    with pytest.raises(InputError, match="h: -1"):
        Regulariser(-1.0)
    with pytest.raises(InputError, match="backbone: 'rnn'"):
        build("rnn", in_channels=2, out_channels=2)  # type: ignore[arg-type]
    for arguments, word in (
        ({"hidden": 0}, "hidden: 0"),
        ({"num_layers": 0}, "num_layers: 0"),
        ({"dropout": 1.0}, "dropout: 1.0"),
        ({"norm": "magic"}, "norm: 'magic'"),
    ):
        with pytest.raises(InputError, match=word):
            build(in_channels=2, out_channels=2, **arguments)  # type: ignore[arg-type]


def spoiled(data: Data, **changes: object) -> Data:
    copy = data.clone()
    for name, value in changes.items():
        setattr(copy, name, value)
    return copy


def test_wrong_graphs_are_named(data: Data) -> None:
    n = data.num_nodes
    nan = data.x.clone()
    nan[3, 1] = math.nan
    cases = [
        (spoiled(data, x=nan), ["data.x", "node 3", "column 1", "nan"]),
        (spoiled(data, x=data.x.long()), ["data.x", "int64"]),
        (spoiled(data, y=data.y[:-1]), ["data.y", f"({n - 1},)", f"x has {n} rows"]),
        (spoiled(data, y=torch.full((n,), -1)), ["data.y", "unknown", "labelled nodes"]),
        (spoiled(data, y=torch.ones(n, dtype=torch.long)), ["data.y", "two classes"]),
        (spoiled(data, y=data.y - 5), ["data.y", "-5"]),
        (spoiled(data, sens=torch.zeros(n, dtype=torch.long)), ["data.sens", "at least two"]),
        (spoiled(data, sens=torch.full((n,), -1)), ["data.sens", "unknown"]),
        (spoiled(data, sens=data.sens * 2), ["data.sens", "group 1 has no node"]),
        (spoiled(data, sens=data.sens.float()), ["data.sens", "float32"]),
        (spoiled(data, sens=None), ["data.sens", "missing"]),
        (spoiled(data, val_mask=data.train_mask), ["val_mask", "train_mask", "disjoint"]),
        (spoiled(data, test_mask=data.val_mask), ["test_mask", "val_mask", "disjoint"]),
        (spoiled(data, train_mask=torch.zeros(n, dtype=torch.bool)), ["train_mask", "no node"]),
        (
            spoiled(data, y=torch.where(data.val_mask, -1, data.y)),
            ["val_mask", "no known label"],
        ),
    ]
    for wrong, words in cases:
        with pytest.raises(InputError) as error:
            check(wrong, masks=True)
        assert all(word in str(error.value) for word in words), str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="first item"):
        check([data])  # type: ignore[arg-type]


def test_seeding_names_the_devices_to_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def fork_rng(devices: object = None) -> contextlib.nullcontext[None]:
        given.append(devices)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    with seeded(0):
        pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    with seeded(0):
        pass
    assert [list(devices) for devices in given] == [[], [0, 1]]


def test_a_fit_computes_everything_once(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    for owner, name in ((Network, "logits"), (LocalReducer, "group_operator")):
        method = getattr(owner, name)

        def counted(*arguments: object, method: Any = method, **options: object) -> object:
            calls[method.__name__] += 1
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)
    for propagation, operators in ((FMP(2, 1.0), 3), (PPR(2, 1.0), 1), (None, 1)):
        calls.clear()
        model = FairClassifier(propagation, epochs=1, strategy=Regulariser(1.0), backbone="mlp")
        model.fit(data, bootstrap=0)
        # Training, validation, and everything afterwards; one operator per population.
        assert calls == {"logits": 3, "group_operator": operators}


@pytest.mark.parametrize("propagation", [None, PPR(3, 1.0)])
def test_a_shared_forward_pass_changes_nothing(data: Data, propagation: Any) -> None:
    found = []
    for deterministic in (False, True):
        net = network(data, propagation)
        setting = {"epochs": 20, "lr": 0.05, "patience": 4, "eval_every": 2}
        history = fit(net, data, graph(data), deterministic=deterministic, **setting)
        found.append((history.epochs, history.best, [p.tolist() for p in net.parameters()]))
    assert found[0] == found[1]


@pytest.mark.parametrize(("temperature", "calls"), [("decisions", 11), (0.1, 11)])
def test_validation_shares_the_transform(data: Data, temperature: Any, calls: int) -> None:
    counted = Counter[str]()
    histories = []
    for deterministic in (False, True):
        net = network(data, FMP(3, 1.0))

        def logits(x: Any, graph: Any, net: Any = net, kind: bool = deterministic) -> Any:
            counted[str(kind)] += 1
            return Network.logits(net, x, graph)

        net.logits = logits
        setting = {"epochs": 10, "lr": 0.05, "temperature": temperature}
        history = fit(net, data, graph(data), deterministic=deterministic, **setting)
        histories.append([epoch.val_accuracy for epoch in history.epochs])
    assert counted == {"False": 20, "True": calls}
    # Decisions are closed from the correction of the training nodes instead of their own.
    assert histories[0] == pytest.approx(histories[1], abs=0.05 if temperature != 0.1 else 1e-9)
