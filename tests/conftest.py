"""Fixtures that every test may use, and the guard that keeps tests out of the user's own folders."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import models


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M file."""
    return models.smollm2()


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The Gemma 3 270M file."""
    return models.gemma3()


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    """A run that was started in the background ignores Ctrl-C, and its children would too; tests of it need the default."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point edgeinfer's home at a folder of the test run; its caches, keyed by content, outlive the run.

    For the whole session, so that models loaded by fixtures of wider scopes see it too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        patch.setenv("EDGEINFER_CACHE", str(models.ROOT / ".cache" / "edgeinfer"))
        # prefixes on disk would outlive the run for models that do not; tests of them give them a folder of their own
        patch.setenv("EDGEINFER_PREFIX_CACHE", "0")
        for name in ("EDGEINFER_ISA", "EDGEINFER_THREADS", "EDGEINFER_OFFLINE", "EDGEINFER_DEBUG", "HF_HUB_OFFLINE"):
            patch.delenv(name, raising=False)
        yield
