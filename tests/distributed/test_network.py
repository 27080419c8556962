"""Two machines with a network between them: two namespaces and a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairmp.datasets import social_network
from fairmp.distributed import shard
from tests.distributed.jobs import program
from tests.distributed.together import together
from tests.distributed.torchrun import environment, finish, start

TRAIN = ["--epochs", "4", "--splits", "1", "--hidden", "8", "--solver", "papc"]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces, joined by a veth pair; skipped where they cannot be made."""
    if not sys.platform.startswith("linux") or shutil.which("ip") is None:
        pytest.skip("needs Linux and iproute2's 'ip'")
    names = [f"fairmp{os.getpid() % 10_000}{side}" for side in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
            for k, name in enumerate(names):
                ip("link", "set", name, "netns", name)
                ip("-n", name, "addr", "add", f"10.213.77.{k + 1}/24", "dev", name)
                ip("-n", name, "link", "set", name, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here ({error})")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def sent(host: str) -> int:
    path = f"/sys/class/net/{host}/statistics/tx_bytes"
    return int(subprocess.check_output(["ip", "netns", "exec", host, "cat", path]))


def test_two_machines_train_what_two_processes_train(hosts: list[str], tmp_path: Path) -> None:
    shard(social_network(300, average_degree=6, features=4), tmp_path / "s", parts=2)
    words = ["train", "--shards", str(tmp_path / "s"), *TRAIN, "--out", "near"]
    outputs = together(2, program, tmp_path, [words, words], group=False)
    assert [status for status, _, _ in outputs] == [0, 0], outputs

    processes = []
    for k, host in enumerate(hosts):
        # Each machine has the manifest and its own part, nothing else.
        folder = tmp_path / f"machine{k}"
        shutil.copytree(tmp_path / "s" / f"part-0000{k}", folder / "s" / f"part-0000{k}")
        shutil.copy(tmp_path / "s" / "manifest.json", folder / "s")
        # What torchrun tells a rank, without a torchrun on each side to wait for.
        meet = {"RANK": str(k), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": host}
        meet |= {"MASTER_ADDR": "10.213.77.1", "MASTER_PORT": "29777"}
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "fairmp", "train"]
        command += ["--shards", "s", *TRAIN, "--out", "far"]
        processes.append(start(command, folder, environment(**meet)))
    for k, process in enumerate(processes):
        assert finish(process) == 0, (tmp_path / f"machine{k}" / "log.err").read_text()

    model = Path("model") / "model.safetensors"
    far = tmp_path / "machine0" / "far" / model
    assert far.read_bytes() == (tmp_path / "near" / model).read_bytes()
    assert not (tmp_path / "machine1" / "far").exists()
    assert min(sent(host) for host in hosts) > 50_000
