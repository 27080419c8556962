"""Compiled loops on one thread and several, with several callers, and their cache on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout
from numba.core.event import Event, Listener, install_listener
from torch import Tensor

import fairmp
from fairmp.graph import CSR, Adjacency
from fairmp.groups import group_operator
from fairmp.kernels.cpu import primitives as cpu
from fairmp.kernels.cpu import threads
from fairmp.kernels.cpu.threads import Chunked, chunk_size
from fairmp.kernels.types import Matrix
from fairmp.nn.solvers import projection

two_processors = pytest.mark.skipif(
    numba.config.NUMBA_NUM_THREADS < 2, reason="needs two processors"
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def parallel_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of threads of each call that ran on several."""
    calls: list[int] = []
    run = threads._call

    def record(function: object, args: tuple[object, ...]) -> object:
        if threads._POOL_LOCK.locked():
            calls.append(numba.get_num_threads())
        return run(function, args)

    monkeypatch.setattr(threads, "_call", record)
    return calls


def passes(classes: int) -> dict[str, Callable[[], Tensor]]:
    """Each primitive on enough work for several threads."""
    n = 30_000
    z, codes = torch.randn(n, classes), torch.randint(-1, 3, (n,), dtype=torch.int32)
    table = torch.randn(3, classes, dtype=torch.float64)
    length = torch.randint(0, 8, (n,))
    length[[0, n // 2]] = 50_000  # hubs, which several chunks share
    row = torch.cat([length.new_zeros(1), length.cumsum(0)])
    col = torch.randint(0, n, (int(row[-1]),), dtype=torch.int32)
    rows, scale = CSR(row, col), torch.rand(n)
    matrix = Matrix(rows, scale, scale)
    return {
        "aggregate": lambda: cpu.aggregate(matrix, z, z, 0.3),
        "aggregate_vjp": lambda: torch.cat(cpu.aggregate_vjp(matrix, z, 0.3)[:2]),
        "moments": lambda: cpu.moments(z, codes, table, 0.7),
        "shift": lambda: cpu.shift(z, codes, table),
        "segment_sum": lambda: cpu.segment_sum(z, codes, 3),
        "softmax_vjp": lambda: cpu.softmax_vjp(z, z, codes, table, 0.7, table),
        "projection": lambda: projected(z, Adjacency(n, scale, rows, CSR(row, col))),
    }


def projected(z: Tensor, graph: Adjacency) -> Tensor:
    """Two steps of the projection and their gradient."""
    x, sens = z.clone().requires_grad_(), (z[:, 0] > 0).long()
    f = projection(x, graph, group_operator(sens), K=2, lambda_s=1.0, target=0.05).f
    f.square().sum().backward()
    assert x.grad is not None
    return torch.cat([f.detach(), x.grad])


@two_processors
@pytest.mark.parametrize("classes", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(
    classes: int, parallel_calls: list[int]
) -> None:
    for name, run in passes(classes).items():
        torch.set_num_threads(1)
        alone = run()
        assert not parallel_calls, name
        torch.set_num_threads(2)
        assert torch.equal(alone, run()), name
        assert set(parallel_calls) == {2}, name
        parallel_calls.clear()


@two_processors
def test_a_call_restores_the_number_of_threads() -> None:
    numba.set_num_threads(1)
    try:
        torch.set_num_threads(2)
        cpu.segment_sum(torch.zeros(40_000, 2), torch.zeros(40_000, dtype=torch.int32), 2)
        assert numba.get_num_threads() == 1
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


@two_processors
@pytest.mark.parametrize(("nodes", "parallel"), [(300, False), (8000, False), (20_000, True)])
def test_little_work_runs_on_one_thread(
    nodes: int, parallel: bool, parallel_calls: list[int]
) -> None:
    torch.set_num_threads(2)
    cpu.segment_sum(torch.zeros(nodes, 2), torch.zeros(nodes, dtype=torch.int32), 2)
    assert bool(parallel_calls) == parallel


def test_chunk_size_depends_on_the_work_alone() -> None:
    assert chunk_size(1000) == 2048
    assert chunk_size(10_000_000) == 9766  # at most 1024 chunks
    assert chunk_size(1000, numbers=10_000) == 40_000  # results are smaller than a chunk


def fill(result: np.ndarray) -> None:
    for k in numba.prange(result.size):
        result[k] = k


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for numba's cache."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


class Compilations(Listener):
    """Call functions when numba starts and ends to compile."""

    def __init__(
        self, start: Callable[[], object] = lambda: None, end: Callable[[], object] = lambda: None
    ) -> None:
        self.start, self.end = start, end
        self.seen: list[object] = []

    def on_start(self, event: Event) -> None:
        self.seen.append(self.start())

    def on_end(self, event: Event) -> None:
        self.end()


@pytest.mark.usefixtures("cache")
def test_options_of_the_compiler_are_set_for_our_functions_alone() -> None:
    before, run = dict(vars(numba.config)), Chunked(fill)
    ours = Compilations(lambda: numba.config.SLP_VECTORIZE)
    with install_listener("numba:compile", ours):
        for _ in range(2):
            run(1, np.zeros(3))
            assert dict(vars(numba.config)) == before
    assert ours.seen == [1]  # compiled once
    others = Compilations(lambda: numba.config.SLP_VECTORIZE)
    with install_listener("numba:compile", others):
        numba.njit(lambda x: x + 1)(1)
    assert others.seen == [before["SLP_VECTORIZE"]]


def test_functions_without_a_directory_for_the_cache_run() -> None:
    """numba finds none for code that is in no file."""
    namespace: dict[str, Callable[..., None]] = {}
    exec("def fill(result):\n    for k in range(result.size):\n        result[k] = k", namespace)
    out = np.zeros(3)
    Chunked(namespace["fill"])(1, out)
    assert out.tolist() == [0, 1, 2]


def is_locked(cache: Path) -> bool:
    (path,) = cache.rglob("*.lock")
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def test_the_cache_is_locked_until_code_is_saved(cache: Path) -> None:
    run = Chunked(fill)
    compilations = Compilations(lambda: is_locked(cache))
    with install_listener("numba:compile", compilations):
        run(1, np.zeros(3))
        run(1, np.zeros(3, np.float32))
    assert compilations.seen == [True, True]
    assert not is_locked(cache)
    assert len(list(cache.rglob("*.nbc"))) == 2  # one for each type


def test_code_that_cannot_be_saved_runs(cache: Path) -> None:
    def break_cache() -> None:
        for path in cache.iterdir():
            shutil.rmtree(path)
            path.touch()  # a file where numba expects its directory

    out = np.zeros(3)
    with install_listener("numba:compile", Compilations(end=break_cache)):
        Chunked(fill)(1, out)
    assert out.tolist() == [0, 1, 2]


KERNEL = """
import sys
import numpy as np
from fairmp.kernels.cpu.threads import Chunked

@Chunked
def count(out):
    for k in range(out.size):
        out[k] = k

for kind in sys.argv[1:]:
    out = np.zeros(3, kind)
    count(1, out)
    assert out.tolist() == [0, 1, 2], (kind, out)
print(sum(count._serial.stats.cache_hits.values()))
"""


def test_processes_that_compile_at_once_do_not_mix_their_code(tmp_path: Path) -> None:
    program = tmp_path / "kernel.py"
    program.write_text(KERNEL)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def start(*kinds: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(program), *kinds]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    kinds = ["float32", "float64", "int64"]
    hits = [process.communicate(timeout=240)[0] for process in [start(kind) for kind in kinds]]
    assert hits == ["0\n"] * 3
    assert start(*kinds).communicate(timeout=240)[0] == "3\n"


PASSES = """
import torch
from fairmp.kernels.cpu import primitives as cpu
from tests.kernels.problems import binary_problem, compressed, unscaled
product = cpu.aggregate(unscaled(compressed([1], 1), 1), torch.ones(1, 2), None, 0.5)
print(product.flatten().tolist(), cpu.binary_root(binary_problem(50), None).passes)
"""


def test_a_change_of_any_kernel_file_is_compiled_again(tmp_path: Path) -> None:
    package = Path(fairmp.__file__).parent
    shutil.copytree(package, tmp_path / "fairmp", ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}

    def run() -> str:
        command = [sys.executable, "-B", "-c", PASSES]
        environ = {**os.environ, **environment}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environ
        ).stdout

    def edit(name: str, before: str, after: str) -> None:
        file = tmp_path / "fairmp" / "kernels" / name
        source = file.read_text()
        assert source.count(before) == 1
        file.write_text(source.replace(before, after))

    product, passes = run().rsplit(maxsplit=1)
    assert product == "[0.5, 0.5]"
    assert float(passes) > 1
    edit("cpu/edges.py", "        out[i, 1] = s1\n", "        out[i, 1] = s1 + 1\n")
    assert run() == f"[0.5, 1.5] {passes}\n"
    edit("root.py", "MAX_PASSES = 200", "MAX_PASSES = 1")
    assert run() == "[0.5, 1.5] 1.0\n"


CROWD = """
import os, torch
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
def test_several_threads_and_a_forked_process_may_call(layer: str) -> None:
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
