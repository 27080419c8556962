"""Checkpoints of a training: one atomic file, never pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairmp.distributed.ranks import Ranks
from fairmp.errors import InputError, check_integer
from fairmp.training.loop import Epoch, State
from fairmp.training.model_files import read_tensors, write_tensors


class FileCheckpoints:
    """A file that rank 0 writes and reads, for all ranks.

    Args:
        path: the file; its folder must be reachable wherever rank 0 may be restarted.
        ranks: the ranks; all of them call each method together.
        fingerprint: data and configuration; a checkpoint of another training is an error.
        every: epochs between two checkpoints.
    """

    def __init__(
        self, path: Path, ranks: Ranks, fingerprint: Mapping[str, Any], every: int = 10
    ) -> None:
        self.path, self.ranks = path, ranks
        self.every = check_integer("checkpoint_every", every, "give 1 epoch or more")
        self.fingerprint = json.loads(json.dumps(dict(fingerprint)))

    def due(self, epoch: int) -> bool:
        """Whether to save after an epoch."""
        return epoch % self.every == 0

    def load(self) -> State | None:
        """Return the last state saved, ``None`` if there is none."""
        content = self.ranks.on_first(self._content)
        return None if content is None else _state(content, self.ranks.rank)

    def save(self, state: State) -> None:
        """Save a state; a process killed meanwhile leaves the previous one."""
        generators = self.ranks.objects(state.random)
        if self.ranks.rank > 0:
            return
        tensors: dict[str, Tensor] = {
            **{f"network.{name}": value for name, value in state.network.items()},
            **{f"best_network.{name}": value for name, value in state.best_network.items()},
        }
        for index, values in state.optimiser["state"].items():
            for name, value in values.items():
                tensors[f"optimiser.{index}.{name}"] = torch.as_tensor(value)
        for rank, held in enumerate(generators):
            tensors |= {f"random.{rank}.{k}": value for k, value in enumerate(held)}
        rest = {
            "epoch": state.epoch,
            "history": [asdict(epoch) for epoch in state.history],
            "best": None if state.best is None else asdict(state.best),
            "seconds": state.seconds,
            "finished": state.finished,
            "param_groups": state.optimiser["param_groups"],
        }
        write_tensors(self.path, tensors, {"fingerprint": self.fingerprint, "state": rest})

    def _content(self) -> bytes | None:
        """Read and check the file."""
        if not self.path.is_file():
            return None
        content = self.path.read_bytes()
        try:
            found = read_tensors(content)[1]["fingerprint"]
        except (ValueError, KeyError, TypeError):
            raise InputError(
                "--out",
                f"the checkpoint {self.path} is damaged",
                "remove it to start from the beginning",
            ) from None
        for key in sorted({*self.fingerprint, *found}):
            now, then = self.fingerprint.get(key), found.get(key)
            if now != then:
                raise InputError(
                    "--out",
                    f"the checkpoint {self.path} is of another training: {key} was "
                    f"{json.dumps(then)[:60]}, and is {json.dumps(now)[:60]}",
                    "give another folder, or remove it",
                )
        return content


def _state(content: bytes, rank: int) -> State:
    tensors, description = read_tensors(content)
    rest = description["state"]

    def part(prefix: str) -> dict[str, Tensor]:
        start = f"{prefix}."
        return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}

    optimiser: dict[int, dict[str, Tensor]] = {}
    for name, value in part("optimiser").items():
        index, _, key = name.partition(".")
        optimiser.setdefault(int(index), {})[key] = value
    for group in rest["param_groups"]:
        group["betas"] = tuple(group["betas"])
    random = part(f"random.{rank}")
    return State(
        rest["epoch"],
        network=part("network"),
        optimiser={"state": optimiser, "param_groups": rest["param_groups"]},
        # More ranks than before: the new ones continue with the state they have.
        random=[random[k] for k in sorted(random, key=int)] or [torch.get_rng_state()],
        history=[Epoch(**epoch) for epoch in rest["history"]],
        best=None if rest["best"] is None else Epoch(**rest["best"]),
        best_network=part("best_network"),
        seconds=rest["seconds"],
        finished=rest["finished"],
    )
