"""Making and opening a SQLite file that is ours."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from refold.runtime.storage.errors import NoStoreFile, StoreRefused
from refold.runtime.storage.files import check_local, exists, make_folder, remove
from refold.runtime.storage.port import Port
from refold.runtime.storage.sqlite.names import SqliteNames

OLDEST = (3, 37, 0)
"""The first version with strict tables."""

BUSY_SECONDS = 10
"""How long a transaction waits for another process's."""

WAL_BYTES = 64 << 20
"""From which size on the write-ahead log is emptied at once, though it costs more than a commit."""

_APPLICATION = 0x7266_6C64  # "rfld", 1919315044

_VERSION = 1

# With row ids a line of up to 4 kB stands in its page; without, from 1 kB on it takes its own.
# The number of a session that was deleted is never given to another: who still reads or deletes
# the first must not meet the second.
_SCHEMA = """
PRAGMA journal_mode = WAL;
BEGIN;
PRAGMA application_id = 1919315044;
PRAGMA user_version = 1;
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    header BLOB NOT NULL, holder TEXT NOT NULL
) STRICT;
CREATE TABLE lines (
    session INTEGER NOT NULL, seq INTEGER NOT NULL, line BLOB NOT NULL, PRIMARY KEY (session, seq)
) STRICT;
CREATE TABLE torn (
    session TEXT NOT NULL, offset INTEGER NOT NULL, number INTEGER NOT NULL, bytes BLOB NOT NULL,
    PRIMARY KEY (session, offset, number)
) STRICT;
CREATE TABLE syncs (one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL) STRICT;
INSERT INTO syncs VALUES (1, 0);
COMMIT;
"""


def is_there(port: Port, names: SqliteNames) -> bool:
    """Whether the file is there; raises `StoreRefused` if it is no plain file."""
    path = names.path
    if not exists(port, path):
        return False
    status = port.lstat(path)
    if status.kind != "file":
        found = "a symbolic link" if status.kind == "link" else "no plain file"
        raise StoreRefused(str(path), found)
    named_twice = status.links > 1 and not _drafts(port, names)
    if named_twice and port.lstat(path).links > 1:  # else its maker has just removed the draft
        raise StoreRefused(str(path), f"a file with {status.links} names (hard links)")
    return True


def make_file(port: Port, names: SqliteNames) -> None:
    """Make the file, whole or not at all, unless it is there; raises `OSError`, `StoreRefused`."""
    if sqlite3.sqlite_version_info < OLDEST:
        found = f"for SQLite 3.37 or newer, and this Python has {sqlite3.sqlite_version}"
        raise StoreRefused(str(names.path), found)
    make_folder(port, names.folder)
    check_local(port, names.folder)
    if not is_there(port, names):
        _make(port, names)
    for draft in _drafts(port, names):  # of a process that died between the two names
        remove(port, draft)


def _make(port: Port, names: SqliteNames) -> None:
    draft = names.draft(f"{os.getpid()}-{secrets.token_hex(4)}")
    port.close(port.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    try:
        with closing(connect(draft, "rw")) as db:
            db.executescript(_SCHEMA)
        fd = port.open(draft, os.O_RDWR)
        try:
            port.fdatasync(fd)
        finally:
            port.close(fd)
        with suppress(FileExistsError):  # another process was faster
            port.link(draft, names.path)
    finally:
        for own in ("", "-wal", "-shm", "-journal"):  # where it failed SQLite may have left these
            remove(port, draft.with_name(draft.name + own))
    port.sync_directory(names.folder)


def _drafts(port: Port, names: SqliteNames) -> list[Path]:
    """The other names that making the file may have left it."""
    identity = identity_of(port, names.path)
    found = [names.folder / name for name in port.listdir(names.folder)]
    drafts = [path for path in found if path.name.startswith(names.draft("").name)]
    return [path for path in drafts if identity_of(port, path) == identity]


def identity_of(port: Port, path: Path) -> tuple[int, int] | None:
    """Which file `path` leads to; None for none, also where it has just gone."""
    try:
        return port.lstat(path).identity
    except FileNotFoundError:
        return None


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection that begins and ends no transaction by itself.

    `mode` is "rw", "ro", or "ro&immutable=1" for a file that nobody writes to meanwhile.
    """
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    db.text_factory = _text
    return db


def _text(raw: bytes) -> str:
    """A damaged id is told as well as it can be: it must not stop the list of the others."""
    return raw.decode("utf-8", "replace")


def check_ours(db: sqlite3.Connection, path: Path) -> None:
    """Raise `NoStoreFile` for a file that is not ours or not of this version."""
    [(application,)] = db.execute("PRAGMA application_id").fetchall()
    if application != _APPLICATION:
        raise NoStoreFile(str(path), "a SQLite file of another program")
    [(version,)] = db.execute("PRAGMA user_version").fetchall()
    if version != _VERSION:
        raise NoStoreFile(str(path), f"a store of version {version} where {_VERSION} is known")


def open_ours(path: Path, mode: str) -> sqlite3.Connection:
    """A connection to a file that is a store; raises as `check_ours` does."""
    db = connect(path, mode)
    try:
        check_ours(db, path)
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Set a writing connection up; raises as `check_ours` does, and `StoreRefused`."""
    check_ours(db, path)
    [(mode,)] = db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = FULL")
    [(level,)] = db.execute("PRAGMA synchronous").fetchall()
    if (mode, level) != ("wal", 2):
        raise StoreRefused(str(path), f"a SQLite file in mode {mode}, synchronous {level}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    _warn_of_old_library()


@cache
def _warn_of_old_library() -> None:
    if has_wal_reset_race(sqlite3.sqlite_version_info):
        logging.getLogger("refold").warning(
            "SQLite %s can lose committed data when two processes write to one file (the WAL-reset "
            "race, fixed in 3.51.3): let one process at a time write to a SQLite store, or use a "
            "newer SQLite",
            sqlite3.sqlite_version,
        )


def has_wal_reset_race(version: tuple[int, ...]) -> bool:
    """Whether two writers can lose commits: SQLite 3.7.0 to 3.51.2, not 3.44.6 on and 3.50.7 on."""
    fixed = version[:2] in ((3, 44), (3, 50)) and version[2] >= {44: 6, 50: 7}[version[1]]
    return (3, 7, 0) <= version < (3, 51, 3) and not fixed
