"""The rows of one session: its framed lines, and the bytes that repairs took from them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs

from refold.runtime.storage.errors import (
    COPY_ADVICE,
    FileCorrupt,
    LogCorrupt,
    SessionBusy,
    Unavailable,
)
from refold.runtime.storage.files import CHUNK
from refold.runtime.storage.framing import Record
from refold.runtime.storage.index import SavedIndex
from refold.runtime.storage.quarantine import piece_name
from refold.runtime.storage.scan import Scan, scan
from refold.runtime.storage.sqlite.database import Database

TIME = re.compile(rb'"(?:seq":[0-9]+,"time|createdAt)":([0-9]{1,18})\b')


@attrs.frozen
class Rows:
    """What the row of one session leads to; `holder` is the token of who opened it last."""

    number: int
    header: bytes
    holder: str


def find(database: Database, session_id: str) -> Rows | None:
    """The session's row, or None where there is none."""
    # Damage can give a column another type, here and below.
    query = (
        "SELECT number, coalesce(CAST(header AS BLOB), x''), coalesce(CAST(holder AS TEXT), '') "
        "FROM sessions {} WHERE id = ?"
    )
    found = _of_sessions(database, query, session_id)
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
        query = (
            "SELECT coalesce(CAST(line AS BLOB), x''), coalesce(CAST(seq AS INTEGER), 0) "
            "FROM lines WHERE session = ? AND seq BETWEEN ? AND 9223372036854775807 ORDER BY seq"
        )
        lines: list[bytes] = []
        place, most = seq, CHUNK if size is None else size
        while most > 0:
            found = self._database.read(query, self._rows.number, place, most=most)
            if not found:
                break
            for line, number in found:
                lines += [line or _HOLE] if number == place else [_HOLE, line]
                place = max(place, number) + 1
            most -= 0 if size is None else sum(len(line) for line, _ in found)
        if not lines and seq and self.at(seq - 1) is None:
            return None
        return b"".join(lines)

    def at(self, seq: int) -> bytes | None:
        """The line of one seq, or None if it has no row."""
        query = "SELECT CAST(line AS BLOB) FROM lines WHERE session = ? AND seq = ?"
        found = self._database.read(query, self._rows.number, seq)
        return found[0][0] or b"" if found else None

    def last(self) -> int:
        """The seq of the last row, -1 if there is none."""
        query = "SELECT coalesce(max(seq), -1) FROM lines WHERE session = ?"
        return int(self._database.read(query, self._rows.number)[0][0])

    def is_current(self) -> bool:
        # Not even an opening for writing leaves the row as it was.
        return find(self._database, self._session) == self._rows

    def close(self) -> None:
        """Reading holds nothing of its own."""


_HOLE = b"\n"
"""What is read of an empty row, and where rows are missing: a line that fits nothing."""


def scan_rows(
    database: Database, session_id: str, rows: Rows, saved: SavedIndex | None = None
) -> Scan:
    """The log as its rows say; raises as `scan` does, and `LogCorrupt` for an unreadable page."""
    lines = RowLines(database, session_id, rows)
    _, newline, more = rows.header.partition(b"\n")
    if more or not newline:
        raise LogCorrupt(lines.name, 0, 1, None, "a damaged line")
    data, damage = read_raw(lines)
    found = scan(data, session_id, path=lines.name, saved=None if damage else saved)
    if damage:
        count = len(found.records)
        place = found.end.offset, count + 2, count
        raise LogCorrupt(lines.name, *place, damage, found, COPY_ADVICE)
    return found


def read_raw(lines: RowLines) -> tuple[bytes, str]:
    """The header and the lines; where the file itself is damaged, those before that, and why."""
    try:
        return lines.first() + (lines.after(0, 0, None) or b""), ""
    except FileCorrupt as damage:
        return b"".join([lines.first(), *_readable(lines)]), damage.reason


def _readable(lines: RowLines) -> Iterator[bytes]:
    seq = 0
    while True:
        try:
            line = lines.at(seq)
        except Unavailable:
            return
        if not line:
            return
        yield line
        seq += 1


def read_raw_on(lines: RowLines) -> bytes:
    """What `read_raw` gives, and where the file is damaged also what can be read behind that."""
    data, damage = read_raw(lines)
    if not damage:
        return data
    seq = sum(1 for _ in _readable(lines))
    return data + b"".join(_readable_behind(lines, seq))


def _readable_behind(lines: RowLines, seq: int) -> Iterator[bytes]:
    try:
        last = lines.last()
    except Unavailable:
        return
    for place in range(seq, last + 1):
        with suppress(Unavailable):
            yield lines.at(place) or _HOLE


def name_of(database: Database, session_id: str) -> str:
    """What errors call a session's log."""
    return f"session {session_id} in {database.name}"


@attrs.frozen
class RowQuarantine:
    """Quarantined bytes in a table beside the rows; see `Quarantine`."""

    _database: Database
    _session: str

    def at(self, offset: int) -> Iterator[tuple[str, bytes]]:
        query = (
            "SELECT number, coalesce(CAST(bytes AS BLOB), x'') FROM torn "
            "WHERE session = ? AND offset = ? ORDER BY number"
        )
        if self._database.exists():
            for number, data in self._database.read(query, self._session, offset):
                yield piece_name(self._session, offset, number), data

    def names(self) -> list[str]:
        """What all of the session's pieces are called."""
        query = "SELECT offset, number FROM torn WHERE session = ? ORDER BY offset, number"
        found = self._database.read(query, self._session) if self._database.exists() else []
        return [piece_name(self._session, offset, number) for offset, number in found]


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
    query = (
        "SELECT coalesce(CAST(line AS BLOB), x'') FROM lines WHERE session = ? AND seq >= ? "
        "ORDER BY seq"
    )
    found = db.execute(query, (number, seq)).fetchall()
    db.execute("DELETE FROM lines WHERE session = ? AND seq >= ?", (number, seq))
    return b"".join(line for (line,) in found)


def check_holder(db: sqlite3.Connection, session_id: str, rows: Rows) -> None:
    """Within a transaction, raise `SessionBusy` unless nobody has opened the session since."""
    query = "SELECT holder FROM sessions WHERE number = ?"
    if db.execute(query, (rows.number,)).fetchall() != [(rows.holder,)]:
        raise SessionBusy(session_id)


def change_row(db: sqlite3.Connection, number: int, header: bytes, holder: str) -> None:
    """Within a transaction, give a session's row another header and holder."""
    query = "UPDATE sessions SET header = ?, holder = ? WHERE number = ?"
    db.execute(query, (header, holder, number))


def copy_lines(db: sqlite3.Connection, source: int, last: Record, target: int) -> bool:
    """Within a transaction, give one session the lines of another up to the record `last`.

    False if that record is not there any more; its checksum stands for all before it.
    """
    query = (
        "INSERT INTO lines SELECT ?, seq, line FROM lines WHERE session = ? AND seq <= ? "
        "ORDER BY seq"
    )
    copied = db.execute(query, (target, source, last.seq)).rowcount
    query = "SELECT line FROM lines WHERE session = ? AND seq = ?"
    found = db.execute(query, (target, last.seq)).fetchall()
    digits = b'{"crc":"%b"' % last.crc.encode()
    return copied == last.seq + 1 and found[0][0].startswith(digits)


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
        "SELECT CAST(header AS BLOB), (SELECT CAST(line AS BLOB) FROM lines "
        "WHERE session = number ORDER BY seq DESC LIMIT 1) FROM sessions WHERE id = ?"
    )
    try:
        found = database.read(query, session_id) if database.exists() else []
    except Unavailable:
        return 0
    times = [TIME.search(line or b"") for row in found for line in row]
    return max((int(time[1]) for time in times if time), default=0)


def last_number(database: Database, session_id: str) -> int:
    """The number of a session's last line among all lines, which SQLite counts up; 0 without."""
    query = (
        "SELECT (SELECT rowid FROM lines WHERE session = number ORDER BY seq DESC LIMIT 1) "
        "FROM sessions WHERE id = ?"
    )
    try:
        found = database.read(query, session_id) if database.exists() else []
    except Unavailable:
        return 0
    return next((number for (number,) in found if number is not None), 0)


def ids(database: Database) -> list[str]:
    """The ids of all sessions, sorted."""
    query = "SELECT coalesce(CAST(id AS TEXT), '') FROM sessions {} ORDER BY id"
    return [found for (found,) in _of_sessions(database, query)]


def _of_sessions(database: Database, query: str, *values: object) -> list[Any]:
    """What a query of the sessions gives, without their index where that is damaged."""
    if not database.exists():
        return []
    try:
        return database.read(query.format(""), *values)
    except FileCorrupt:
        return database.read(query.format("NOT INDEXED"), *values)
