"""SQLite files for the tests of the store, as other programs would treat them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from refold.runtime.storage import SessionHeader, SqliteFile
from refold.runtime.storage.sqlite.database import Database
from refold.runtime.storage.sqlite.names import SqliteNames
from tests.runtime.storage.logs import HEADER, event

Rows = list[tuple[Any, ...]]


def sql(path: Path, statement: str, *values: object) -> Rows:
    """What one statement gives, done by another connection and committed."""
    with editing(path) as db:
        return db.execute(statement, values).fetchall()


@contextmanager
def editing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of another program, which does not wait for the disk."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        yield db


def fill(
    store: SqliteFile, header: SessionHeader = HEADER, sizes: Sequence[int] = (1, 2, 1)
) -> None:
    """A closed session with batches of so many events."""
    log = store.create(header)
    for size in sizes:
        log.append([event(log.next_seq + place, text="t" * 40) for place in range(size)])
        log.sync()
    log.close()


def closed(path: Path, *names: str, sizes: Sequence[int] = (1, 2, 1)) -> SqliteFile:
    """A store with such sessions, by default `demo`, that is not open anywhere; a new object."""
    store = SqliteFile(path)
    for name in names or (HEADER.id,):
        fill(store, SessionHeader(name, 1), sizes)
    store.close()
    return SqliteFile(path)


def texts(store: SqliteFile, session_id: str = "demo") -> list[bytes]:
    """The events of a session."""
    return [record.encoded for record in store.read(session_id).records]


def remove_heads(path: Path) -> None:
    """What happens to a store whose head files got lost."""
    for head in SqliteNames(path).beside_folder.glob("*.head"):
        head.unlink()


def break_index(path: Path, index: str = "sqlite_autoindex_torn_1") -> None:
    """Make the page of an index no b-tree page any more."""
    [(page,)] = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", index)
    break_page(path, page - 1)


def break_page(path: Path, page: int) -> None:
    """Make a page, counted from 0, no b-tree page any more."""
    data = bytearray(path.read_bytes())
    data[page * 4096 : page * 4096 + 8] = b"\xff" * 8
    path.write_bytes(data)


class Failing:
    """A connection that fails with one of SQLite's errors at statements that start so."""

    def __init__(self, inner: sqlite3.Connection, start: str, code: int) -> None:
        self._inner, self._start, self._code = inner, start, code
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(self._start):
            self.failures += 1
            error = sqlite3.OperationalError("on purpose")
            error.sqlite_errorcode = self._code
            raise error
        return self._inner.execute(statement, *values)


@contextmanager
def failing(store: SqliteFile, start: str, code: int) -> Iterator[Failing]:
    """While it lasts, the store's writing connection fails so."""
    database = database_of(store)
    inner = database._writer
    assert inner is not None, "the store has not written yet"
    stand_in = Failing(inner, start, code)
    database._writer = delegating = cast("sqlite3.Connection", stand_in)
    try:
        yield stand_in
    finally:
        if database._writer is delegating:  # else the store has connected anew
            database._writer = inner


def database_of(store: SqliteFile) -> Database:
    return store._database
