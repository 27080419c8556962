"""Checkpoints: a training on disk, whole or not at all, and never pickled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairmp.distributed.ranks import Ranks
from fairmp.errors import InputError
from fairmp.training.loop import Epoch, State

FORMAT = 1


class FileCheckpoints:
    """One file that rank 0 writes, and that every rank hears of from rank 0.

    Args:
        path: the file; its folder must be reachable from wherever rank 0 may be started again.
        ranks: the ranks; all of them call each method at the same time.
        fingerprint: what the training is of, data and configuration; a checkpoint of anything else
            is refused.
        every: epochs between two checkpoints.
    """

    def __init__(
        self, path: Path, ranks: Ranks, fingerprint: Mapping[str, Any], every: int = 10
    ) -> None:
        if every < 1:
            raise InputError("checkpoint_every", f"{every} epochs is too few", "give 1 or more")
        self.path, self.ranks, self.every = path, ranks, every
        self.fingerprint = json.loads(json.dumps(dict(fingerprint)))

    def due(self, epoch: int) -> bool:
        """Whether an epoch is one of every so many."""
        return epoch % self.every == 0

    def load(self) -> State | None:
        """Return the state that was written last, ``None`` where there is none."""
        content = self.ranks.together(self._content)
        content = self.ranks.from_first(content)
        return None if content is None else _unpacked(content, self.ranks.rank)

    def save(self, state: State) -> None:
        """Write a state; a process that dies on the way leaves the one before."""
        drawn = self.ranks.objects([tensor.numpy().tobytes() for tensor in state.random])
        if self.ranks.rank == 0:
            write(self.path, _packed(state, drawn, self.fingerprint))

    def _content(self) -> bytes | None:
        if self.ranks.rank != 0 or not self.path.is_file():
            return None
        content = self.path.read_bytes()
        _check(self.path, content, self.fingerprint)
        return content


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step, and make sure that it is on the disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder) / "a", b"b")
        ...     [file.name for file in Path(folder).iterdir()]
        ['a']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _packed(state: State, drawn: list[list[bytes]], fingerprint: Mapping[str, Any]) -> bytes:
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for room, held in (("network", state.network), ("kept", state.kept)):
        tensors |= {f"{room}.{name}": value for name, value in held.items()}
    for index, values in state.optimiser["state"].items():
        for name, value in values.items():
            tensors[f"optimiser.{index}.{name}"] = torch.as_tensor(value)
    for rank, generators in enumerate(drawn):
        for k, content in enumerate(generators):
            tensors[f"random.{rank}.{k}"] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    rest = {
        "epoch": state.epoch,
        "seen": [asdict(epoch) for epoch in state.seen],
        "best": None if state.best is None else asdict(state.best),
        "seconds": state.seconds,
        "finished": state.finished,
        "optimiser": state.optimiser["param_groups"],
    }
    metadata = {
        "format": str(FORMAT),
        "sum": _sum(tensors),
        "fingerprint": json.dumps(fingerprint),
        "state": json.dumps(rest),
    }
    return save(tensors, metadata)


def _unpacked(content: bytes, rank: int) -> State:
    from safetensors.torch import load

    tensors = load(content)
    rest = json.loads(_metadata(content)["state"])
    state = State(
        rest["epoch"],
        seen=[Epoch(**epoch) for epoch in rest["seen"]],
        best=None if rest["best"] is None else Epoch(**rest["best"]),
        seconds=rest["seconds"],
        finished=rest["finished"],
    )
    groups = [{k: _tuple(v, k) for k, v in group.items()} for group in rest["optimiser"]]
    values: dict[int, dict[str, Tensor]] = {}
    random: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        room, _, inner = name.partition(".")
        if room == "network":
            state.network[inner] = tensor
        elif room == "kept":
            state.kept[inner] = tensor
        elif room == "optimiser":
            index, _, key = inner.partition(".")
            values.setdefault(int(index), {})[key] = tensor
        elif inner.partition(".")[0] == str(rank):
            random[int(inner.partition(".")[2])] = tensor
    state.optimiser = {"state": values, "param_groups": groups}
    # More ranks than before: those that are new draw on as they began.
    state.random = [random[k] for k in sorted(random)] or [torch.get_rng_state()]
    return state


def _tuple(value: Any, key: str) -> Any:
    return tuple(value) if key == "betas" else value


def _check(path: Path, content: bytes, fingerprint: Mapping[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        metadata = _metadata(content)
        whole = metadata["format"] == str(FORMAT) and _sum(load(content)) == metadata["sum"]
        theirs = json.loads(metadata["fingerprint"])
    except (SafetensorError, ValueError, KeyError):
        whole, theirs = False, {}
    if not whole:
        raise InputError(
            "--out", f"the checkpoint {path} is damaged", "remove it to start from the beginning"
        )
    for key in sorted({*fingerprint, *theirs}):
        one, two = fingerprint.get(key), theirs.get(key)
        if one != two:
            raise InputError(
                "--out",
                f"the checkpoint {path} is of another training: {key} was "
                f"{json.dumps(two)[:60]}, and is {json.dumps(one)[:60]}",
                "give another folder, or remove it",
            )


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return found


def _sum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
