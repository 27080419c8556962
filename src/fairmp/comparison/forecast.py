"""How long a grid will take, by a few epochs of each network on each graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch_geometric.data import Data

from fairmp.comparison.grid import RunSpec, classifier, trainings

# An adversary's own steps, and the regulariser's gap, on top of an epoch; roughly.
_FACTOR = {"vanilla": 1.0, "regulariser": 1.1, "adversary": 1.3}
_EPOCHS = 3


def seconds(cells: Sequence[RunSpec], graphs: Mapping[str, Data], *, workers: int = 1) -> float:
    """Tell how long cells will take on the CPU, by timing each (data set, backbone) once.

    Example:
        >>> from fairmp.datasets.by_name import from_files
        >>> cells = [RunSpec("embedded:300", "mlp", split=k) for k in range(4)]
        >>> 0 < seconds(cells, {"embedded:300": from_files("embedded:300")}) < 60
        True
    """
    jobs = [job[0].training() for job in trainings(cells)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        an_epoch = {
            (cell.data, cell.backbone): _epoch(cell, graphs[cell.data])
            for cell in {(cell.data, cell.backbone): cell for cell in jobs}.values()
        }
    finally:
        torch.set_num_threads(threads)
    total = sum(
        an_epoch[cell.data, cell.backbone] * cell.setting.epochs * _FACTOR[cell.strategy]
        for cell in jobs
    )
    return total / max(1, min(workers, len(jobs)))


def _epoch(cell: RunSpec, data: Data) -> float:
    def fit(epochs: int) -> float:
        setting = replace(cell.setting, epochs=epochs)
        model = classifier(replace(cell, strategy="vanilla", strength=None, setting=setting))
        return model.fit(data, split_seed=0, bootstrap=0, progress=False).history.seconds

    fit(1)  # what is done once a process is not counted
    return fit(_EPOCHS) / _EPOCHS
