"""Fixtures of the command line's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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


@pytest.fixture(params=["files", "sqlite"])
def any_store(
    request: pytest.FixtureRequest, own_store: CliStore, tmp_path: Path
) -> Iterator[CliStore]:
    """`own_store`, and the same sessions in a SQLite file; each was closed and has a head file."""
    store = own_store
    if request.param == "sqlite":
        store = attrs.evolve(own_store, path=tmp_path, file=tmp_path / "sessions.db")
    with own_store.opened() as source, store.opened() as target:
        for session in sorted(source.list(), key=source.written_at):
            if store.file is None:
                source.open(session).close()
            else:
                target.adopt(source.read(session).header, body(source.raw(session)))
        yield store


def body(data: bytes) -> bytes:
    """The lines of a log behind its header."""
    return data.partition(b"\n")[2]
