"""Logs in a SQLite file that are open for writing, and the rounds that write them (design 5.3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import attrs

from runtime.errors import Broken, RefoldError
from runtime.events import SessionOwner, SessionRecovered
from runtime.storage.advisory import Advisory
from runtime.storage.batches import Framed, frame_batches
from runtime.storage.errors import Fenced, LogClosed, LogFailed, TooLarge
from runtime.storage.framing import frame_header
from runtime.storage.head import Head
from runtime.storage.header import SessionHeader
from runtime.storage.index import SavedIndex, records_of
from runtime.storage.lines import StoredRecords
from runtime.storage.sqlite.database import Database
from runtime.storage.sqlite.rows import (
    RowLines,
    Rows,
    find,
    insert_lines,
    insert_session,
    name_of,
)
from runtime.storage.tail import LastOwner

LARGEST = 900_000_000
"""SQLite takes a billion bytes in one row; what one log adds in a round is kept below that."""

Batches: TypeAlias = Sequence[Sequence[bytes]]


@attrs.frozen
class RowOpening:
    """What an opening found; `rows.number` is 0 for a new log, which has no row yet.

    `rows.holder` is the token that the session's row has as long as nobody else opens it.
    """

    header: SessionHeader
    rows: Rows
    end: int = 0
    next_seq: int = 0
    chain: int = 0
    recovered: SessionRecovered | None = None
    last_owner: SessionOwner | None = None
    index: SavedIndex | None = attrs.field(default=None, repr=False)
    indexed: int = 0


class SqliteLog:
    """The writer of one log; made by `SqliteFile`.

    After any failure whose outcome cannot be known the log is poisoned: `append` and `sync` raise
    the same `LogFailed` until it is closed and opened again. Where another process took the log
    over they raise `Fenced`.
    """

    def __init__(
        self,
        rounds: Rounds,
        opening: RowOpening,
        release: Callable[[], None],
        holder: Callable[[], LastOwner | None],
        advisory: Advisory,
    ) -> None:
        """`release` gives the lock back; `holder` says whom the log names as its owner now."""
        self.header = opening.header
        self.recovered = opening.recovered
        self.last_owner = opening.last_owner
        self.records = StoredRecords(self._lines, records_of(opening.index))
        self._index = opening.index
        self._rounds, self._rows = rounds, opening.rows
        self._release, self._holder, self._advisory = release, holder, advisory
        self._written = Head(opening.next_seq - 1, opening.end, opening.chain)
        self._durable = self._written
        self._staged: tuple[Rows, Head, Framed] | None = None
        self._failed: Broken | None = None
        self._closed = False
        rounds.logs.add(self)

    @property
    def name(self) -> str:
        return name_of(self._rounds.database, self.header.id)

    @property
    def term(self) -> int:
        """The fencing number of this opening, one more than that of the last owner."""
        return 1 if self.last_owner is None else self.last_owner.term + 1

    @property
    def next_seq(self) -> int:
        return self._written.seq + 1

    @property
    def durable_seq(self) -> int:
        """The highest seq that is known to be durable; -1 while none is."""
        return self._durable.seq

    def append(self, *batches: Sequence[bytes]) -> None:
        """Write batches of encoded events in one transaction; durable only after `sync`.

        All or none are taken. Raises `SeqMismatch`, `InvalidEvent`, `LegacyEvent`, `LogClosed`,
        `StoreFull` and `Unavailable` with the log as it was, `LogFailed` or `Fenced`.
        """
        self._check_usable()
        self._raise(self._rounds.write([(self, batches)], durable=False))

    def sync(self) -> int:
        """Make everything appended before the call durable; returns the highest durable seq.

        Raises `LogClosed`, `Fenced`, or `LogFailed`: a failed sync is final and never tried again.
        """
        self._check_usable()
        if self._durable != self._written:
            self._raise(self._rounds.write([(self, ())], durable=True))
        return self.durable_seq

    def _raise(self, failures: dict[SqliteLog, RefoldError]) -> None:
        if self in failures:
            raise failures[self]

    def stage(self, db: sqlite3.Connection, batches: Batches) -> None:
        """Within a transaction, add the lines; `settle` or `forget` follows."""
        self._check_usable()
        framed = frame_batches(batches, self._written, self.durable_seq)
        self._check_holder(db)
        if framed is None:
            return
        if len(framed.lines) > LARGEST:
            raise TooLarge(self.header.id, len(framed.lines), LARGEST)
        rows, first = self._rows, b""
        if not rows.number:
            first = frame_header(self.header)
            rows = Rows(insert_session(db, self.header.id, first, rows.holder), first, rows.holder)
        insert_lines(db, rows.number, self.next_seq, framed.lines)
        head = attrs.evolve(framed.head, end=framed.head.end + len(first))
        self._staged = rows, head, framed

    @property
    def has_staged(self) -> bool:
        """Whether the transaction that is under way adds to this log."""
        return self._staged is not None

    @property
    def standing(self) -> Head:
        """Where the log ends if the transaction that is under way is committed."""
        return self._written if self._staged is None else self._staged[1]

    def settle(self) -> None:
        """What was staged is committed."""
        if self._staged is not None:
            (self._rows, self._written, framed), self._staged = self._staged, None
            self._index = self._index or SavedIndex.of_new(self._rows.header)
            self._index.extend(framed.lines, framed.kinds, framed.link)

    def secure(self, head: Head) -> None:
        """What stands up to `head` is durable."""
        if head.seq > self.durable_seq:
            self._durable = head

    def forget(self, failure: Broken) -> Broken:
        """What was staged is not committed, or nobody knows; returns what to say of it here."""
        self._staged = None
        if isinstance(failure, LogFailed):
            self._failed = LogFailed(self.name, failure.reason, self.durable_seq)
        return self._failed or failure

    def write_head(self) -> None:
        """Note outside the file how far the log is durable; see `Advisory`."""
        if self._failed is None and self.durable_seq >= 0:
            with suppress(Broken):
                row = find(self._rounds.database, self.header.id)
                if row is not None and row.holder == self._rows.holder:  # else it is another's log
                    self._advisory.write(self._durable, self._index)

    def close(self) -> None:
        """Sync what is owed, write the head file, and release the lock last.

        Raises `LogFailed` if the sync fails; the lock is released even so. A second call does
        nothing.
        """
        if self._closed:
            return
        try:
            if self._failed is None:
                self.sync()
                self.write_head()
        finally:
            self._closed = True
            self._rounds.logs.discard(self)
            self._release()

    def _lines(self) -> RowLines:
        if self._closed:
            raise LogClosed(self.header.id)
        return RowLines(self._rounds.database, self.header.id, self._rows)

    def _check_usable(self) -> None:
        if self._closed:
            raise LogClosed(self.header.id)
        if self._failed is not None:
            raise self._failed

    def _check_holder(self, db: sqlite3.Connection) -> None:
        """Raise `Fenced` or `LogFailed` unless the rows are as this log left them."""
        query = (
            "SELECT number, holder, coalesce((SELECT max(seq) FROM lines WHERE session = number), "
            "-1) FROM sessions WHERE id = ?"
        )
        found = db.execute(query, (self.header.id,)).fetchall()
        rows = self._rows
        if found == ([(rows.number, rows.holder, self._written.seq)] if rows.number else []):
            return
        if found and found[0][1] != rows.holder:
            last = self._holder()
            term = self.term if last is None else last.owner.term
            self._failed = Fenced(self.header.id, max(term, self.term), self.durable_seq)
        else:
            reason = "another program changed or deleted it"
            self._failed = LogFailed(self.name, reason, self.durable_seq)
        raise self._failed


class Rounds:
    """Writes for every open log of one file, many in one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.logs: set[SqliteLog] = set()

    def write(
        self, works: Sequence[tuple[SqliteLog, Batches]], *, durable: bool
    ) -> dict[SqliteLog, RefoldError]:
        """Append to each log; with `durable`, make everything written so far durable.

        Returns what failed. One log's refusal leaves the others; a failure of the transaction is
        everybody's.
        """
        failures: dict[SqliteLog, RefoldError] = {}
        try:
            with self.database.transaction(durable=durable) as db:
                for log, batches in works:
                    try:
                        log.stage(db, batches)
                    except RefoldError as refused:
                        failures[log] = refused
                if durable and not any(log.has_staged for log, _ in works):
                    db.execute("UPDATE syncs SET count = count + 1")  # an empty commit is no sync
                standing = [(log, log.standing) for log in tuple(self.logs)]
        except LogFailed as failure:  # of the file, and so of every log in it
            return failures | {log: log.forget(failure) for log in tuple(self.logs)}
        except Broken as failure:
            return failures | {log: log.forget(failure) for log, _ in works}
        except BaseException as surprise:
            reason = f"{type(surprise).__name__}: {surprise}"
            for log, _ in works:
                log.forget(LogFailed(log.name, reason, log.durable_seq))
            raise
        for log, _ in works:
            log.settle()
        for log, head in standing if durable else ():
            log.secure(head)
        return failures
