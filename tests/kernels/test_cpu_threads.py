"""The CPU kernels on one thread and several, with several callers, and without a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

numba = pytest.importorskip("numba")

import fairmp  # noqa: E402
from fairmp.graph import CSR, Adjacency  # noqa: E402
from fairmp.groups import group_operator  # noqa: E402
from fairmp.kernels.cpu import primitives as cpu  # noqa: E402
from fairmp.kernels.cpu import threads as cpu_threads  # noqa: E402
from fairmp.nn.solvers import projection  # noqa: E402


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def everything(classes: int) -> dict[str, Callable[[], Tensor]]:
    """Each primitive on enough work for several threads."""
    torch.manual_seed(classes)
    n = 30_000
    z, codes = torch.randn(n, classes), torch.randint(-1, 3, (n,), dtype=torch.int32)
    table = torch.randn(3, classes, dtype=torch.float64)
    length = torch.randint(0, 8, (n,))
    length[[0, n // 2]] = 50_000  # hubs, which several chunks share
    row = torch.cat([length.new_zeros(1), length.cumsum(0)])
    col = torch.randint(0, n, (int(row[-1]),), dtype=torch.int32)
    scale = torch.rand(n)
    return {
        "aggregate": lambda: cpu.aggregate((row, col, None, scale, scale), z, z, 0.3),
        "moments": lambda: cpu.moments(z, codes, table, 0.7),
        "shift": lambda: cpu.shift(z, codes, table),
        "segment_sum": lambda: cpu.segment_sum(z, codes, 3),
        "softmax_vjp": lambda: cpu.softmax_vjp(z, z, codes, table, 0.7, table),
        "coupling_backward": lambda: torch.cat(cpu.coupling_backward(z, z, codes, table)),
        "projection": lambda: projected(z, Adjacency(n, scale, CSR(row, col), CSR(row, col))),
    }


def projected(z: Tensor, graph: Adjacency) -> Tensor:
    """Two steps of the projection and their gradient: fused for two classes."""
    x = z.clone().requires_grad_()
    sens = (z[:, 0] > 0).long()
    f = projection(x, graph, group_operator(sens), K=2, lambda_s=1.0, target=0.05).f
    f.square().sum().backward()
    assert x.grad is not None
    return torch.cat([f.detach(), x.grad])


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two processors")
@pytest.mark.parametrize("classes", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    set_threads = numba.set_num_threads
    monkeypatch.setattr(
        cpu_threads.numba, "set_num_threads", lambda n: (asked.append(n), set_threads(n))
    )
    before = numba.get_num_threads()
    set_threads(1)  # so that each call has to ask for two
    for name, run in everything(classes).items():
        torch.set_num_threads(1)
        alone = run()
        assert not asked, name
        torch.set_num_threads(2)
        assert torch.equal(alone, run()), name
        assert asked, name
        assert asked == len(asked) // 2 * [2, 1], name
        asked.clear()
    set_threads(before)


def test_little_work_is_left_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(threads: int) -> None:
        raise AssertionError(f"asked for {threads} threads")

    monkeypatch.setattr(cpu_threads.numba, "set_num_threads", fail)
    torch.set_num_threads(2)
    cpu.segment_sum(torch.zeros(300, 2), torch.zeros(300, dtype=torch.int32), 2)


def test_a_call_leaves_the_configuration_of_numba_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    compile_core = numba.core.compiler.Compiler._compile_core

    def compiling(self: Any) -> Any:
        seen.append(numba.config.SLP_VECTORIZE)
        return compile_core(self)

    def fill(result: np.ndarray) -> None:
        for k in numba.prange(result.size):
            result[k] = k

    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])  # nothing is cached
    monkeypatch.setattr(numba.core.compiler.Compiler, "_compile_core", compiling)
    run, before = cpu_threads.Chunked(fill), dict(vars(numba.config))
    for _ in range(2):
        run(1, np.zeros(3))
        assert dict(vars(numba.config)) == before
    assert seen == [1]  # set while compiling, which happens once


def test_works_where_no_directory_is_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    out = np.zeros(3)

    def fill(result: np.ndarray) -> None:
        for k in numba.prange(result.size):
            result[k] = k

    cpu_threads.Chunked(fill)(1, out)
    assert out.tolist() == [0, 1, 2]


CROWD = """
import os, sys, torch
from concurrent.futures import ThreadPoolExecutor
from fairmp.kernels.cpu import primitives as cpu

torch.set_num_threads(2)
z, codes = torch.randn(40_000, 2), torch.zeros(40_000, dtype=torch.int32)
table = torch.zeros(1, 2, dtype=torch.float64)
first = cpu.moments(z, codes, table, 1.0)
with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda _: cpu.moments(z, codes, table, 1.0), range(40)))
assert all(torch.equal(first, result) for result in results)

child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(first, cpu.moments(z, codes, table, 1.0)) else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
@pytest.mark.parametrize("layer", ["workqueue", "default"])
def test_several_callers_and_a_forked_one(layer: str) -> None:
    # In a process of its own: what goes wrong here ends it.
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CROWD],
        env=os.environ | {"NUMBA_THREADING_LAYER": layer, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


KERNEL = """
import sys
import numpy as np
from fairmp.kernels.cpu import threads
from fairmp.kernels.cpu.threads import Chunked

def fill(out):
    for k in range(out.shape[0]):
        out[k] = NUMBER

if sys.argv[1:] == ["killed"]:
    write = threads._CacheFile._save_data
    threads._CacheFile._save_data = lambda *_: __import__("os")._exit(9)
kernel, out = Chunked(fill), np.zeros(3)
kernel(1, out)
print(out.tolist())
"""


def test_a_process_killed_while_it_saves_code_leaves_no_older_code(tmp_path) -> None:
    def run(number: int, *words: str) -> tuple[int, str]:
        (tmp_path / "kernel.py").write_text(KERNEL.replace("NUMBER", f"{number}.0"))
        done = subprocess.run(
            [sys.executable, "-B", str(tmp_path / "kernel.py"), *words],
            capture_output=True,
            text=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        )
        return done.returncode, done.stdout

    assert run(1) == (0, "[1.0, 1.0, 1.0]\n")
    assert run(22, "killed")[0] == 9
    assert run(22) == (0, "[22.0, 22.0, 22.0]\n")
    assert run(22) == (0, "[22.0, 22.0, 22.0]\n")


def test_code_is_compiled_again_where_a_file_it_calls_into_has_changed(tmp_path) -> None:
    package = Path(fairmp.__file__).parent
    shutil.copytree(package, tmp_path / "fairmp", ignore=shutil.ignore_patterns("__pycache__"))
    program = """
import torch
from fairmp.graph import aggregate, normalise
graph = normalise(torch.tensor([[0, 1], [1, 0]]), 2)
found = aggregate(torch.ones(2, 2), torch.zeros(2, 2), graph, 0.5)
print(found.round(decimals=3).flatten().tolist())
"""

    def run() -> str:
        environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-B", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
        ).stdout

    assert run() == "[0.5, 0.5, 0.5, 0.5]\n"
    edges = tmp_path / "fairmp" / "kernels" / "cpu" / "edges.py"
    source = edges.read_text()
    assert source.count("out[i, 1] = s1\n") == 1
    edges.write_text(source.replace("out[i, 1] = s1\n", "out[i, 1] = s1 + 1\n"))
    assert run() == "[0.5, 1.5, 0.5, 1.5]\n"
