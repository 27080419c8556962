from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.graph import Graph
from fairmp.nn.models import Network, build
from fairmp.training.nodes import LocalReducer, Names, TrainingNodes, graph_of
from fairmp.training.penalties import Regulariser
from fairmp.training.run import History, Run, Trial, versions
from fairmp.training.trainer import State, Trainer, TrainingSettings, seeded


@pytest.fixture(scope="module")
def run() -> Run:
    data = social_network(n=200, average_degree=6)
    return FairClassifier(None, backbone="logistic").fit(data, bootstrap=10).run_


def test_run_to_dict_has_everything_to_repeat_it(run: Run) -> None:
    record = json.loads(run.to_json())
    assert set(record["versions"]) == {"fairmp", "torch", "torch_geometric", "numpy"}
    assert record["versions"] == versions()
    assert (record["seed"], record["split_seed"]) == (0, None)
    assert record["config"]["backbone"] == "logistic"
    assert record["test"]["accuracy"] == run.test.accuracy
    assert record["tried"] == [run.tried[0].to_dict()]


def test_trial_to_dict_is_plain_json() -> None:
    trial = Trial("mlp", "features", gamma=(0.5, 1.0))
    assert json.loads(json.dumps(trial.to_dict()))["gamma"] == [0.5, 1.0]


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=600, average_degree=8, seed=1)


def network(data: Data, propagation: torch.nn.Module | None = None, **arguments: Any) -> Network:
    with seeded(0):
        return build(
            in_channels=data.x.size(1), out_channels=2, propagation=propagation, **arguments
        )


def graph(data: Data) -> Graph:
    return Graph(data.edge_index, data.x.size(0))


def train(net: Network, data: Data, *, seed: int = 0, **settings: Any) -> History:
    nodes = TrainingNodes(data, graph_of(data), Names.of(data))
    arguments = {
        name: settings.pop(name) for name in ("deterministic", "checkpoints") if name in settings
    }
    settings = {"patience": None, **settings}
    return Trainer(net, nodes, TrainingSettings(**settings), seed=seed, **arguments).train()


def weights(net: Network) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_one_epoch_is_one_step_of_adam(data: Data) -> None:
    net = network(data, PPR(3, 1.0))
    other = network(data, PPR(3, 1.0))
    train(net, data, epochs=1, lr=0.01, weight_decay=1e-3)
    optimiser = torch.optim.Adam(other.parameters(), lr=0.01, weight_decay=1e-3)
    logits = other(data.x, graph(data))
    torch.nn.functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask]).backward()
    optimiser.step()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_keeps_the_best_epoch_on_validation_nodes(data: Data) -> None:
    net = network(data)
    history = train(net, data, epochs=60, lr=0.05)
    top = max(history.epochs, key=lambda e: (e.val_accuracy, -e.val_loss))
    assert history.best == top
    val = data.val_mask
    accuracy = (net(data.x, graph(data))[val].argmax(1) == data.y[val]).double().mean()
    assert float(accuracy) == history.best.val_accuracy
    assert not net.training


def test_select_loss_keeps_the_lowest_validation_loss(data: Data) -> None:
    history = train(network(data), data, epochs=60, lr=0.05, select="loss")
    assert history.best.val_loss == min(e.val_loss for e in history.epochs)


def test_patience_and_eval_every(data: Data) -> None:
    history = train(network(data), data, epochs=500, lr=0.05, patience=10, eval_every=5)
    last = history.epochs[-1].epoch
    assert last < 500
    assert last - history.best.epoch == 10
    assert all(e.epoch % 5 == 0 for e in history.epochs)


def test_same_seed_same_weights(data: Data) -> None:
    runs = []
    for seed in (3, 3, 4):
        net = network(data, FMP(2, 1.0), dropout=0.5)
        before = torch.random.get_rng_state()
        train(net, data, epochs=5, seed=seed)
        assert torch.equal(before, torch.random.get_rng_state())
        runs.append(weights(net))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_regulariser_closes_the_gap(data: Data) -> None:
    gaps = []
    for strategy in (None, Regulariser(20.0)):
        net = network(data, PPR(3, 3.0))
        train(net, data, epochs=60, lr=0.02, strategy=strategy, select="loss")
        with torch.no_grad():
            p = net(data.x, graph(data)).softmax(1)[:, 1]
        means = [p[data.train_mask & (data.sens == g)].mean() for g in (0, 1)]
        gaps.append(abs(float(means[0] - means[1])))
    assert gaps[1] < 0.3 * gaps[0]


def test_labels_of_test_nodes_change_nothing(data: Data) -> None:
    hidden = data.clone()
    hidden.y = torch.where(data.test_mask, 1 - data.y, data.y)
    nets = []
    for source in (data, hidden):
        net = network(data, FMP(2, 1.0))
        train(net, source, epochs=10)
        nets.append(weights(net))
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
        ({"on": "luck"}, "on: 'luck'"),
    ],
)
def test_training_settings_name_the_wrong_argument(arguments: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        TrainingSettings(**arguments)  # type: ignore[arg-type]


def test_infinite_loss_is_an_error(data: Data) -> None:
    wild = data.clone()
    wild.x = data.x * 1e37
    with pytest.raises(InputError, match=r"lr: .*epoch"):
        train(network(data), wild, epochs=50, lr=1e6)


def test_seeded_restores_the_generators_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    forked_devices = []

    def fork_rng(devices: object = None) -> contextlib.nullcontext[None]:
        forked_devices.append(devices)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    with seeded(0):
        pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    with seeded(0):
        pass
    assert [list(devices) for devices in forked_devices] == [[], [0, 1]]


def test_fit_computes_logits_and_operators_once(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_shared_forward_pass_gives_the_same_epochs(data: Data, propagation: Any) -> None:
    histories = []
    for deterministic in (False, True):
        net = network(data, propagation)
        setting = {"epochs": 20, "lr": 0.05, "patience": 4, "eval_every": 2}
        history = train(net, data, deterministic=deterministic, **setting)
        histories.append((history.epochs, history.best, [p.tolist() for p in net.parameters()]))
    assert histories[0] == histories[1]


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_validation_shares_the_transform(data: Data, on: Any) -> None:
    counted = Counter[str]()
    histories = []
    for deterministic in (False, True):
        net = network(data, FMP(3, 1.0))

        def logits(x: Any, graph: Any, net: Any = net, kind: bool = deterministic) -> Any:
            counted[str(kind)] += 1
            return Network.logits(net, x, graph)

        net.logits = logits
        history = train(net, data, deterministic=deterministic, epochs=10, lr=0.05, on=on)
        histories.append([epoch.val_accuracy for epoch in history.epochs])
    assert counted == {"False": 20, "True": 11}
    # Decisions are closed from the correction of the training nodes instead of their own.
    assert histories[0] == pytest.approx(histories[1], abs=0.05 if on == "decisions" else 1e-9)


class Stopped(Exception):
    pass


@dataclass
class MemoryCheckpoints:
    """Keeps the state after every second epoch, and stops the training after one of them."""

    stop_after: int | None
    states: list[dict[str, Any]] = field(default_factory=list)

    def load(self) -> State:
        return State(**self.states[-1]) if self.states else State()

    def due(self, epoch: int) -> bool:
        return epoch % 2 == 0

    def save(self, state: State) -> None:
        copied = {name: value.clone() for name, value in state.network.items()}
        self.states.append({**vars(state), "history": list(state.history), "network": copied})
        if state.epoch == self.stop_after:
            raise Stopped


@pytest.mark.parametrize("deterministic", [False, True])
def test_resumed_training_gives_the_same_weights(data: Data, deterministic: bool) -> None:
    setting = {"epochs": 9, "lr": 0.05, "deterministic": deterministic}
    dropout = 0.0 if deterministic else 0.5
    whole = network(data, FMP(2, 1.0), dropout=dropout)
    history = train(whole, data, **setting)
    checkpoints = MemoryCheckpoints(stop_after=4)
    with pytest.raises(Stopped):
        train(network(data, FMP(2, 1.0), dropout=dropout), data, **setting, checkpoints=checkpoints)
    checkpoints.stop_after = None
    resumed = network(data, FMP(2, 1.0), dropout=dropout)
    again = train(resumed, data, **setting, checkpoints=checkpoints)
    assert torch.equal(weights(whole), weights(resumed))
    assert again.epochs == history.epochs
    assert [state["epoch"] for state in checkpoints.states] == [2, 4, 6, 8, 9]
    # A finished training is not continued.
    assert train(network(data), data, **setting, checkpoints=checkpoints).epochs == history.epochs
