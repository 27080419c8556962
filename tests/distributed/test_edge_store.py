from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmp.datasets.edges import proper_rows, undirected
from fairmp.datasets.load_report import LoadReport
from fairmp.distributed import edge_store
from fairmp.distributed.edge_store import EdgeStore

graphs = st.integers(2, 20).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(-1, n - 1), st.integers(-1, n - 1)), max_size=80),
    )
)


@given(graphs, st.data())
def test_edges_are_those_found_in_memory(
    graph: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    n, rows = graph
    source, target = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    in_memory, report = LoadReport(), LoadReport()
    edge_index = undirected(source, target, n, in_memory)
    number = np.array(data.draw(st.permutations(range(n))))
    with tempfile.TemporaryDirectory() as scratch, EdgeStore(Path(scratch), n) as store:
        store.add(np.array([0]), np.array([1]))
        store.clear()
        for k in range(0, len(rows), 9):
            store.add(*proper_rows(source[k : k + 9], target[k : k + 9], report))
        store.find_edges(report)
        assert report == in_memory
        assert np.array_equal(all_columns(store, loops=False), edge_index[1])
        store.renumber(number)
        assert np.array_equal(all_columns(store, loops=True), columns_of(number[edge_index], n))


def columns_of(edge_index: np.ndarray, n: int) -> np.ndarray:
    """Columns of A+I, computed by sorting all entries."""
    row, col = np.concatenate([edge_index, np.tile(np.arange(n), (2, 1))], axis=1)
    return col[np.lexsort((col, row))]


def all_columns(store: EdgeStore, *, loops: bool) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *store.columns(loops=loops)])


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """More rows than fit the memory limit."""
    monkeypatch.setattr(edge_store, "MIN_MEMORY", 60_000_000)
    monkeypatch.setattr(edge_store, "MAX_THREADS", 1)
    source, target = np.random.default_rng(0).integers(0, 1 << 20, (2, 1 << 22))
    return source, target + (source == target)


def test_edges_beyond_memory_go_to_the_scratch_folder(
    tmp_path: Path, crowded: tuple[np.ndarray, np.ndarray]
) -> None:
    source, target = crowded
    n = 1 << 20
    stored, report = LoadReport(), LoadReport()
    edge_index = undirected(source, target % n, n, report)
    with EdgeStore(tmp_path, n) as store:
        for rows in np.array_split(np.arange(len(source)), 8):
            store.add(*proper_rows(source[rows], target[rows] % n, stored))
        store.find_edges(stored)
        assert stored == report
        assert (tmp_path / "duckdb").is_dir()
        assert np.array_equal(all_columns(store, loops=False), edge_index[1])
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may be larger than a megabyte."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_is_an_error_of_the_disk(
    tmp_path: Path, crowded: tuple[np.ndarray, np.ndarray], small_files: None
) -> None:
    with EdgeStore(tmp_path, 1 << 21) as store:
        store.add(*crowded)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            store.find_edges(LoadReport())


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from fairmp.datasets.load_report import LoadReport
from fairmp.distributed.edge_store import EdgeStore

signal.signal(signal.SIGINT, signal.default_int_handler)
with EdgeStore(Path(sys.argv[1]), 1 << 20) as store:
    store.add(*np.random.default_rng(0).integers(0, 1 << 20, (2, 1 << 20)))
    store.find_edges(LoadReport())
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            for _ in store.columns(loops=True):
                pass
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_interrupt_ends_a_query(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (process.stdout, process.stderr) == ("interrupted\n", "")


def test_node_numbers_are_as_wide_as_needed(tmp_path: Path) -> None:
    for n, dtype in ((2**31 - 1, np.int32), (2**31, np.int64)):
        with EdgeStore(tmp_path, n) as store:
            store.add(np.array([n - 1]), np.array([0]))
            store.find_edges(LoadReport())
            (low, high), *_ = store.edges()
        assert (low.tolist(), high.tolist()) == ([0], [n - 1])
        assert high.dtype == store.dtype == dtype
