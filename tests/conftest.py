"""Graphs for every test, and the marker for a GPU."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, register_random, settings

# In CI the same examples each time: a rare one found there would stop a change it has nothing to
# do with. Everywhere else new ones.
settings.register_profile(
    "fairmp",
    deadline=None,
    max_examples=60,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("fairmp")


class _TorchRandom:
    """Torch's global generator, for Hypothesis to seed before each example."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = _TorchRandom()  # Hypothesis keeps a weak reference
register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seed every generator, so that a test does not depend on those before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Restore signal handlers: the program sets its own, also where a test calls it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Address of a PostgreSQL server, started for the tests where it is installed."""
    driver = next((name for name in ("psycopg", "psycopg2", "pg8000") if find_spec(name)), None)
    if driver is None or shutil.which("initdb") is None:
        pytest.skip("needs a driver and the programs of PostgreSQL")
    # PostgreSQL does not run as root.
    user = "nobody" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        if user is not None:
            shutil.chown(folder, user)

        def run(*words: str) -> None:
            done = subprocess.run(
                words, user=user, cwd=folder, capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"{words[0]}: {done.stderr.strip() or done.stdout.strip()}")

        place = f"{folder}/cluster"
        run("initdb", "-D", place, "-U", "test", "-A", "trust", "--no-sync")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        listen = f"-c listen_addresses=127.0.0.1 -c port={port} -c fsync=off -k {folder}"
        subprocess.run(
            ["pg_ctl", "-D", place, "-w", "-o", listen, "-l", f"{place}/log", "start"],
            user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield f"postgresql+{driver}://test@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", place, "-m", "immediate", "stop")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal output does not depend on who runs the tests."""
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def data_folder() -> str:
    """The folder with the data sets' raw files, where there is one."""
    folder = os.environ.get("FAIRMP_DATA")
    if not folder:
        pytest.skip("FAIRMP_DATA does not name a folder with the data sets' raw files")
    return folder


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
AXE = Path(__file__).parents[1] / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=BROWSER,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which ``make node_modules`` fetches from npm."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: run make node_modules (needs npm)")
    return AXE.read_text(encoding="utf-8")


def violations(page: Any, axe: str) -> list[str]:
    """Serious and critical accessibility violations of a page."""
    page.evaluate(axe)
    return serious(page.evaluate("axe.run()"))


def serious(results: dict[str, Any]) -> list[str]:
    """Serious and critical violations among the results of axe-core."""
    return [
        f"{violation['id']}: {violation['nodes'][0]['html'][:200]}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
