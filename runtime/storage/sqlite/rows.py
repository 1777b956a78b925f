"""The rows of one session: its framed lines, and the bytes that repairs took from them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import attrs

from runtime.storage.errors import LogCorrupt, Unavailable
from runtime.storage.files import CHUNK
from runtime.storage.index import SavedIndex
from runtime.storage.sqlite.database import Database
from runtime.storage.tail import Scan, scan

TIME = re.compile(rb'"(?:seq":[0-9]+,"time|createdAt)":([0-9]{1,18})\b')


@attrs.frozen
class Rows:
    """What the row of one session leads to; `holder` is the token of who opened it last."""

    number: int
    header: bytes
    holder: str


def find(database: Database, session_id: str) -> Rows | None:
    """The session's row, or None where there is none."""
    query = "SELECT number, header, holder FROM sessions WHERE id = ?"
    found = database.read(query, session_id) if database.exists() else []
    return Rows(*found[0]) if found else None


@attrs.frozen
class RowLines:
    """The lines of a session's rows; see `Lines`."""

    _database: Database
    _session: str
    _rows: Rows

    @property
    def name(self) -> str:
        return name_of(self._database, self._session)

    def first(self) -> bytes:
        return self._rows.header

    def after(self, seq: int, offset: int, size: int | None) -> bytes | None:
        del offset  # rows are found by their seq
        query = "SELECT line FROM lines WHERE session = ? AND seq >= ? ORDER BY seq"
        lines: list[bytes] = []
        most = CHUNK if size is None else size
        while most > 0:
            found = self._database.read(query, self._rows.number, seq + len(lines), most=most)
            lines += [line for (line,) in found]
            if not found:
                break
            most -= 0 if size is None else sum(len(line) for (line,) in found)
        if not lines and seq and not self._has(seq - 1):
            return None
        return b"".join(lines)

    def _has(self, seq: int) -> bool:
        query = "SELECT 1 FROM lines WHERE session = ? AND seq = ?"
        return bool(self._database.read(query, self._rows.number, seq))

    def is_current(self) -> bool:
        # Not even an opening for writing leaves the row as it was.
        return find(self._database, self._session) == self._rows

    def close(self) -> None:
        """Reading holds nothing of its own."""


def scan_rows(
    database: Database, session_id: str, rows: Rows, saved: SavedIndex | None = None
) -> Scan:
    """The log as its rows say; raises as `scan` does, and `LogCorrupt` for an unreadable page."""
    lines = RowLines(database, session_id, rows)
    data, damage = read_raw(lines)
    found = scan(data, session_id, path=lines.name, saved=None if damage else saved)
    if damage:
        count = len(found.records)
        raise LogCorrupt(lines.name, found.end, count + 2, count, damage, found)
    return found


def read_raw(lines: RowLines) -> tuple[bytes, str]:
    """The header and the lines; where the file itself is damaged, those before that, and why."""
    try:
        return lines.first() + (lines.after(0, 0, None) or b""), ""
    except Unavailable as failure:
        cause = failure.__cause__
        if not isinstance(cause, sqlite3.DatabaseError) or cause.sqlite_errorcode & 0xFF != (
            sqlite3.SQLITE_CORRUPT
        ):
            raise
        return b"".join([lines.first(), *_readable(lines)]), str(cause)


def _readable(lines: RowLines) -> Iterator[bytes]:
    seq = 0
    while True:
        try:
            line = lines.after(seq, 0, 1)
        except Unavailable:
            return
        if not line:
            return
        yield line
        seq += 1


def name_of(database: Database, session_id: str) -> str:
    """What errors call a session's log."""
    return f"session {session_id} in {database.name}"


@attrs.frozen
class RowQuarantine:
    """Quarantined bytes in a table beside the rows; see `Quarantine`."""

    _database: Database
    _session: str

    def at(self, offset: int) -> Iterator[tuple[str, bytes]]:
        query = "SELECT number, bytes FROM torn WHERE session = ? AND offset = ? ORDER BY number"
        if self._database.exists():
            for number, data in self._database.read(query, self._session, offset):
                yield torn_name(self._session, offset, number), data

    def names(self) -> list[str]:
        """What all of the session's pieces are called."""
        query = "SELECT offset, number FROM torn WHERE session = ? ORDER BY offset, number"
        found = self._database.read(query, self._session) if self._database.exists() else []
        return [torn_name(self._session, offset, number) for offset, number in found]

    def keep(self, offset: int, data: bytes) -> None:
        with self._database.transaction(durable=True) as db:
            keep_torn(db, self._session, offset, data)


def torn_name(session_id: str, offset: int, number: int) -> str:
    return f"{session_id}.torn-{offset}-{number}"


def keep_torn(db: sqlite3.Connection, session_id: str, offset: int, data: bytes) -> None:
    """Within a transaction, keep what a repair takes; the same bytes only once."""
    query = "SELECT bytes FROM torn WHERE session = ? AND offset = ?"
    kept = [found for (found,) in db.execute(query, (session_id, offset))]
    if data not in kept:
        values = (session_id, offset, len(kept), data)
        db.execute("INSERT INTO torn VALUES (?, ?, ?, ?)", values)


def insert_lines(db: sqlite3.Connection, number: int, seq: int, data: bytes) -> None:
    """Within a transaction, add lines of which the first is that of `seq`."""
    lines = data.split(b"\n")[:-1]
    db.executemany(
        "INSERT INTO lines VALUES (?, ?, ?)",
        [(number, place, line + b"\n") for place, line in enumerate(lines, seq)],
    )


def insert_session(db: sqlite3.Connection, session_id: str, header: bytes, holder: str) -> int:
    """Within a transaction, add a session's row; returns its number."""
    query = "INSERT INTO sessions (id, header, holder) VALUES (?, ?, ?) RETURNING number"
    [(number,)] = db.execute(query, (session_id, header, holder)).fetchall()
    return int(number)


def take_lines(db: sqlite3.Connection, number: int, seq: int) -> bytes:
    """Within a transaction, remove the lines from that of `seq` on; returns them."""
    query = "SELECT line FROM lines WHERE session = ? AND seq >= ? ORDER BY seq"
    found = db.execute(query, (number, seq)).fetchall()
    db.execute("DELETE FROM lines WHERE session = ? AND seq >= ?", (number, seq))
    return b"".join(line for (line,) in found)


def restore_newline(db: sqlite3.Connection, number: int, seq: int) -> None:
    """Within a transaction, end a whole line as it should."""
    query = "SELECT line FROM lines WHERE session = ? AND seq = ?"
    [(line,)] = db.execute(query, (number, seq)).fetchall()
    whole = line.rstrip(b"\0\n") + b"\n"
    db.execute("UPDATE lines SET line = ? WHERE session = ? AND seq = ?", (whole, number, seq))


def change_row(db: sqlite3.Connection, number: int, header: bytes, holder: str) -> None:
    """Within a transaction, give a session's row another header and holder."""
    query = "UPDATE sessions SET header = ?, holder = ? WHERE number = ?"
    db.execute(query, (header, holder, number))


def copy_lines(db: sqlite3.Connection, source: int, last_seq: int, target: int) -> None:
    """Within a transaction, give one session the lines of another up to that of `last_seq`."""
    query = (
        "INSERT INTO lines SELECT ?, seq, line FROM lines WHERE session = ? AND seq <= ? "
        "ORDER BY seq"
    )
    db.execute(query, (target, source, last_seq))


def delete_rows(db: sqlite3.Connection, number: int, session_id: str) -> None:
    """Within a transaction, remove a session with everything of it."""
    db.execute("DELETE FROM lines WHERE session = ?", (number,))
    db.execute("DELETE FROM sessions WHERE number = ?", (number,))
    db.execute("DELETE FROM torn WHERE session = ?", (session_id,))


def last_time(database: Database, session_id: str) -> int:
    """The time of a session's last event, or of its making if that is later, in epoch ms.

    A fork's last event may be its parent's. 0 where neither tells.
    """
    query = (
        "SELECT header, (SELECT line FROM lines WHERE session = number ORDER BY seq DESC LIMIT 1) "
        "FROM sessions WHERE id = ?"
    )
    found = database.read(query, session_id) if database.exists() else []
    times = [TIME.search(line or b"") for row in found for line in row]
    return max((int(time[1]) for time in times if time), default=0)
