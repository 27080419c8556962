"""Checkpoints of a training on several ranks, in one file."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fairmp import outputs
from fairmp.distributed.ranks import Ranks
from fairmp.errors import InputError, check_integer
from fairmp.training.run import Epoch
from fairmp.training.trainer import State

DIGEST_BYTES = hashlib.sha256().digest_size


class FileCheckpoints:
    """A file that rank 0 writes and reads for all ranks, which call each method together.

    It holds a checksum and what ``torch.save`` writes, and is read without executing anything.

    Args:
        path: the file; its folder must be reachable wherever rank 0 may be restarted.
        ranks: the ranks.
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

    def save(self, state: State) -> None:
        """Save a state; a process killed meanwhile leaves the previous one."""
        random = self.ranks.objects(state.random)
        if self.ranks.rank == 0:
            buffer = io.BytesIO()
            torch.save([self.fingerprint, {**asdict(state), "random": random}], buffer)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with outputs.atomic_file(self.path) as draft:
                content = buffer.getvalue()
                draft.write_bytes(hashlib.sha256(content).digest() + content)

    def load(self) -> State:
        """Return the last state saved, or a new one."""
        content = self.ranks.on_rank_zero(self._read)
        if content is None:
            return State()
        _, state = _unpack(content)
        state["history"] = [Epoch(**epoch) for epoch in state["history"]]
        state["best"] = state["best"] and Epoch(**state["best"])
        if self.ranks.rank < len(state["random"]):
            state["random"] = state["random"][self.ranks.rank]
        else:  # more ranks than before: the new ones continue with the state they have
            state["random"] = [torch.get_rng_state()]
        return State(**state)

    def _read(self) -> bytes | None:
        """Read and check the file."""
        if not self.path.is_file():
            return None
        content = self.path.read_bytes()
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            value = f"the checkpoint {self.path} is damaged"
            raise InputError("path", value, "remove it to start from the beginning")
        before, _ = _unpack(content)
        for key in sorted({*self.fingerprint, *before}):
            then, now = json.dumps(before.get(key)), json.dumps(self.fingerprint.get(key))
            if now != then:
                change = f"{key} was {then[:60]}, and is {now[:60]}"
                value = f"the checkpoint {self.path} is of another training: {change}"
                raise InputError("path", value, "give another folder, or remove it")
        return content


def _unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fingerprint and the state in a checkpoint."""
    packed = io.BytesIO(content[DIGEST_BYTES:])
    fingerprint, state = torch.load(packed, map_location="cpu", weights_only=True)
    return fingerprint, state
