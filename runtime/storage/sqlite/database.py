"""The connections to one SQLite file: one that writes, one that reads.

The writing one also makes every checkpoint. Reading is done in short queries, so it neither blocks
the writer nor keeps the write-ahead log from being used again.

Four things about SQLite shape what is here:

- A commit is durable with `synchronous = FULL` alone. Rounds that nobody waits for are committed
  with NORMAL, which writes the log and does not sync it; the next FULL commit syncs the same file,
  and so makes them durable along with itself.
- It commits into a file that has lost its name as happily as into any. So the names are looked at
  again after a commit: what nobody will find is not acknowledged.
- After a failed sync the cache may show pages that the disk never got, marked clean. `failed` is
  final until `renew` has connected anew and copied the write-ahead log into the file, which writes
  what the disk may lack.
- Its locks do not outlive a fork of the process, and the child's closing would take the parent's
  away. So a file belongs to the process that opened it, and a child is refused.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from refold.runtime.errors import RefoldError
from refold.runtime.storage.errors import (
    FileCorrupt,
    LogFailed,
    NoStoreFile,
    StoreBusy,
    StoreFull,
    StoreRefused,
    Unavailable,
)
from refold.runtime.storage.files import exists, reported
from refold.runtime.storage.port import Port
from refold.runtime.storage.sqlite.names import SqliteNames
from refold.runtime.storage.sqlite.schema import (
    BUSY_SECONDS,
    WAL_BYTES,
    connect,
    identity_of,
    is_there,
    make_file,
    open_ours,
    prepare,
)

_log = logging.getLogger("refold")

_users: dict[str, int] = {}
"""Which process, of those that one forked from another, has which file open."""


class Database:
    """Transactions and reads of one SQLite file, from any thread.

    After a failure whose outcome cannot be known it takes no more transactions until `renew`.
    Raises `StoreRefused`, `StoreFull`, `Unavailable`, `FileCorrupt`, `LogFailed`.
    """

    def __init__(self, names: SqliteNames, port: Port) -> None:
        self._names, self._port = names, port
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._identities: list[tuple[int, int] | None] = []
        self._read_from: tuple[int, int] | None = None
        self._durable = True
        self._tell_at = 2 * WAL_BYTES
        self.failed: str | None = None

    @property
    def name(self) -> str:
        return str(self._names.path)

    def exists(self) -> bool:
        """Whether the file is there; raises `StoreRefused` if it is no plain file."""
        with reported(self._names.path):
            return is_there(self._port, self._names)

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """All that the block writes, or nothing; when it ends it is durable if that was asked for.

        What earlier ones wrote then is durable too.
        """
        with self._writing, reported(self._names.path), self._judged():
            if self.failed is not None:
                raise LogFailed(self.name, self.failed, -1)
            self._check_process()
            db = self._connected()
            self._set_synchronous(db, durable)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # where SQLite has rolled back by itself
                    db.execute("ROLLBACK")
                raise
            self._check_named()  # else what was written may be found by nobody
            self._keep_small(db)

    def _keep_small(self, db: sqlite3.Connection) -> None:
        """Empty a large write-ahead log; say so if a reader of an old state keeps it from that."""
        if self._port.lstat(self._names.wal).size <= WAL_BYTES:
            self._tell_at = 2 * WAL_BYTES
            return
        with suppress(sqlite3.Error):  # what it holds is as safe there
            _empty_log(db)
        size = self._port.lstat(self._names.wal).size
        if size >= self._tell_at:
            self._tell_at = 2 * size
            _log.warning(
                "%s has grown to %d MB, since a program that began to read %s long ago still does; "
                "end its transaction, and the next event empties it",
                self._names.wal,
                size >> 20,
                self.name,
            )

    def read(self, query: str, *values: object, most: int | None = None) -> list[Any]:
        """The rows of a query; with `most`, as many as bring its first column to that length."""
        with self._reading, reported(self._names.path), self._judged(reading=True):
            self._check_process()
            cursor = self._connected_reader().execute(query, values)
            try:
                return cursor.fetchall() if most is None else _rows_up_to(cursor, most)
            finally:
                cursor.close()

    def problems(self) -> tuple[str, ...]:
        """What SQLite finds wrong with the file's pages and indexes: the first few, a line each."""
        try:
            found = self.read(f"PRAGMA integrity_check({_PROBLEMS})") if self.exists() else []
        except FileCorrupt as damage:
            return (damage.reason,)
        lines = [line for (text,) in found for line in text.splitlines()]
        told = [line for line in lines if line != "ok" and not line.startswith("***")]
        return (*told[:_PROBLEMS],)

    def renew(self) -> None:
        """After a failure, connect anew and copy what the write-ahead log holds into the file.

        A failed sync can leave pages that the cache shows and the disk never got; copying them
        makes them dirty again.
        """
        with self._writing, reported(self._names.path), self._judged():
            if self.failed is None:
                return
            with self._reading:
                self._disconnect()
            [(busy, _, _)] = self._connected().execute(_EMPTY_LOG).fetchall()
            if busy:
                what = "what it holds could not be written anew, for others use it"
                raise Unavailable(self.name, what)
            self.failed = None

    def tidy(self) -> None:
        """Empty the write-ahead log, for a store that becomes idle; if others use it, it stays."""
        with self._writing, suppress(sqlite3.Error):
            if self._writer is not None and self.failed is None:
                _empty_log(self._writer)

    def close(self) -> None:
        """Let go of the file; the next use connects again."""
        with self._writing, self._reading:
            only_read = self._reader is not None and self._writer is None
            forked = _users.get(self.name, os.getpid()) != os.getpid()
            self._disconnect()
            if only_read and not forked:
                self._remove_made_by_reading()

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                with suppress(sqlite3.Error):  # what was committed stands
                    connection.close()
        self._reader = self._writer = None
        self._identities = []
        if _users.get(self.name) == os.getpid():
            del _users[self.name]

    def _remove_made_by_reading(self) -> None:
        # A connection that only reads makes an empty write-ahead log and cannot remove it. One that
        # may write does when it closes, and SQLite lets it where no other, anywhere, has the file.
        with suppress(sqlite3.Error, RefoldError, OSError):  # it is in nobody's way
            if self._port.lstat(self._names.wal).size == 0:
                open_ours(self._names.path, "rw").close()

    def _connected_reader(self) -> sqlite3.Connection:
        """A connection to the file that the name leads to now."""
        found = self._port.lstat(self._names.path).identity
        if self._reader is not None and found == self._read_from:
            return self._reader
        if self._reader is not None:
            self._reader.close()
        self._reader, self._read_from = None, found
        try:
            self._reader = open_ours(self._names.path, "ro")
        except sqlite3.OperationalError as error:
            if not self._is_at_rest(error.sqlite_errorcode):
                raise
            # Nothing can be made beside it, and nothing has to be there.
            self._reader = open_ours(self._names.path, "ro&immutable=1")
            self._read_from = None  # it would not see what is written from now on
        return self._reader

    def _is_at_rest(self, code: int) -> bool:
        """Whether a file that could not be opened so for reading is one that nobody has open."""
        wal = self._names.wal
        if code in _NO_ROOM_BESIDE:  # a try to read on a full disk can leave an empty log
            return not exists(self._port, wal) or self._port.lstat(wal).size == 0
        return code & 0xFF in _HINDERED and not exists(self._port, wal)

    def _connected(self) -> sqlite3.Connection:
        if self._writer is not None:
            self._check_named()
            return self._writer
        make_file(self._port, self._names)
        db = connect(self._names.path, "rw")
        try:
            prepare(db, self._names.path)
        except BaseException:
            db.close()
            raise
        self._writer, self._durable = db, True
        return db

    def _check_process(self) -> None:
        """Raise `StoreRefused` in a child of a process that has the file open.

        SQLite's locks do not outlive a fork, and the child would undo its parent's.
        """
        if _users.setdefault(self.name, os.getpid()) != os.getpid():
            found = "open in the process that this one was forked from"
            raise StoreRefused(self.name, found, "where SQLite is not safe; start a program anew")

    def _check_named(self) -> None:
        """Raise `LogFailed` once the file or its write-ahead log is not what its name leads to."""
        paths = (self._names.path, self._names.wal)
        found = [identity_of(self._port, path) for path in paths]
        if None in found or found != (self._identities or found):
            self.failed = "another program deleted, moved or replaced it or its write-ahead log"
            raise LogFailed(self.name, self.failed, -1)
        self._identities = found

    def _set_synchronous(self, db: sqlite3.Connection, durable: bool) -> None:
        if durable != self._durable:
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable

    @contextmanager
    def _judged(self, *, reading: bool = False) -> Iterator[None]:
        """Turn SQLite's errors into a store's."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            kind = code & 0xFF
            if kind == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
                raise StoreFull(self.name, str(error)) from error
            if kind == sqlite3.SQLITE_NOTADB:
                raise NoStoreFile(self.name, "no SQLite file") from error
            if kind == sqlite3.SQLITE_BUSY:
                reason = f"another process has been within a write for {BUSY_SECONDS} s"
                raise StoreBusy(self.name, reason) from error
            if kind == sqlite3.SQLITE_CORRUPT:
                raise FileCorrupt(self.name, str(error)) from error
            if reading or kind in _NOTHING_WRITTEN:
                raise Unavailable(self.name, str(error)) from error
            self.failed = str(error)
            raise LogFailed(self.name, self.failed, -1) from error
        except UnicodeDecodeError as error:  # in what SQLite says of a damaged schema
            raise FileCorrupt(self.name, "its schema cannot be read") from error


_HINDERED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})

_NO_ROOM_BESIDE = frozenset(
    {
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
    }
)
"""The memory that those share who have the file open could not be made, so none of them is."""

_NOTHING_WRITTEN = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_TOOBIG,
    }
)


_PROBLEMS = 5
"""Of a damaged file, so many are told: one makes many."""

_EMPTY_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"


def _empty_log(db: sqlite3.Connection) -> None:
    """Empty the write-ahead log unless somebody reads from it: nobody waits for a reader."""
    db.execute("PRAGMA busy_timeout = 0")
    try:
        db.execute(_EMPTY_LOG).fetchall()
    finally:
        db.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")


def _rows_up_to(cursor: sqlite3.Cursor, most: int) -> list[Any]:
    rows = []
    for row in cursor:
        rows.append(row)
        most -= len(row[0])
        if most <= 0:
            break
    return rows
