from __future__ import annotations

import torch

from benchmarks.fair_layers import TARGET, Task, fmp_layer, measure


def test_layer_without_edges_holds_the_target_and_has_a_gradient() -> None:
    task = Task.draw(300)
    layer = fmp_layer(task)
    assert task.gap(task.logits.sigmoid()) > 2 * TARGET
    logits = task.logits.clone().requires_grad_()
    predictions = layer(logits)
    assert abs(task.gap(predictions.detach())) <= TARGET + 1e-4
    predictions.backward(task.gradient)
    assert torch.isfinite(logits.grad).all()


def test_first_call_is_not_counted() -> None:
    task = Task.draw(50)
    times = measure({"sigmoid": lambda logits: logits.sigmoid()}, task, repeats=3)["sigmoid"]
    assert len(times.milliseconds) == 3
    assert times.gap == abs(task.gap(task.logits.sigmoid()))
