"""Graphs for every test, and the marker for a GPU."""

from __future__ import annotations

import os
import random

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
