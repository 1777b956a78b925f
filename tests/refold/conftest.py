"""Fixtures of the command line's tests."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from tests.refold.cli_stores import CliStore, build


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> CliStore:
    """The store that is made once; tests that only read use it as it is."""
    return trio.run(partial(build, tmp_path_factory.mktemp("store")))


@pytest.fixture
def own_store(made_store: CliStore, tmp_path: Path) -> CliStore:
    """A copy of it, for tests that write, without what the last opening left beside the logs."""
    path = tmp_path / "store"
    path.mkdir()
    for log in sorted(made_store.path.glob("*.jsonl"), key=lambda found: found.stat().st_mtime_ns):
        shutil.copy2(log, path)
    return attrs.evolve(made_store, path=path)
