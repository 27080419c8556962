from __future__ import annotations

import torch

from experiments.random_graphs import Size, random_problem
from experiments.timing import networks, time_in_turns


def test_every_network_learns() -> None:
    """What is timed is training: each network's loss falls."""
    data = random_problem(Size(400, 1600, 6))
    for name, make in networks(data).items():
        network = make()
        optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
        losses = []
        for _ in range(15):
            optimiser.zero_grad()
            logits = network(data.x)[data.train_mask]
            loss = torch.nn.functional.cross_entropy(logits, data.y[data.train_mask])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0], name


def test_runs_are_timed_in_turns() -> None:
    order: list[str] = []
    seconds = time_in_turns(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2
    )
    assert set(order) == {"a", "b"}
    assert "".join(dict.fromkeys(order[: len(order) // 2])) == "ab"
    assert order[: len(order) // 2] == order[len(order) // 2 :]
    assert all(len(times) == 10 for times in seconds.values())
