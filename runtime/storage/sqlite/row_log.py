"""One log in a SQLite file that is open for writing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs

from refold.runtime.errors import Broken
from refold.runtime.storage.batches import Framed, frame_batches
from refold.runtime.storage.beside import Beside
from refold.runtime.storage.errors import Fenced, LogClosed, LogFailed, TooLarge
from refold.runtime.storage.framing import frame_header
from refold.runtime.storage.index import records_of
from refold.runtime.storage.lines import StoredRecords
from refold.runtime.storage.local_store import Batches
from refold.runtime.storage.scan import LastOwner
from refold.runtime.storage.sqlite.row_rounds import RowRounds
from refold.runtime.storage.sqlite.rows import (
    RowLines,
    Rows,
    find,
    insert_lines,
    insert_session,
    name_of,
)
from refold.runtime.storage.walk import LogEnd
from refold.runtime.storage.writer_state import Opening, WriterState

LARGEST = 900_000_000
"""SQLite takes a billion bytes in one row; what one log adds in a round is kept below that."""


@attrs.frozen
class _Staged:
    """What a transaction that is under way adds to one log; `first` is a new log's header."""

    rows: Rows
    framed: Framed
    first: bytes

    @property
    def end(self) -> LogEnd:
        return attrs.evolve(self.framed.end, offset=self.framed.end.offset + len(self.first))


class SqliteLog:
    """The writer of one log; made by `SqliteFile`.

    After any failure whose outcome cannot be known the log is poisoned: `append` and `sync` raise
    the same `LogFailed` until it is closed and opened again. Where another process took the log
    over they raise `Fenced`.
    """

    def __init__(
        self,
        rounds: RowRounds,
        opening: Opening,
        rows: Rows,
        release: Callable[[], None],
        holder: Callable[[], LastOwner | None],
        beside: Beside,
    ) -> None:
        """`rows.number` is 0 for a new log, which has no row yet; `rows.holder` is the token that
        the session's row has as long as nobody else opens it.

        `release` gives the lock back; `holder` says whom the log names as its owner now.
        """
        self._state = WriterState(opening)
        self.header = opening.header
        self.recovered, self.last_owner = opening.recovered, opening.last_owner
        self.term = self._state.term
        self.records = StoredRecords(self._lines, records_of(opening.index))
        self._rounds, self._rows = rounds, rows
        self._release, self._holder, self._beside = release, holder, beside
        self._staged: _Staged | None = None
        rounds.logs[self] = self

    @property
    def name(self) -> str:
        return name_of(self._rounds.database, self.header.id)

    @property
    def next_seq(self) -> int:
        return self._state.written.next_seq

    @property
    def durable_seq(self) -> int:
        """The highest seq that is known to be durable; -1 while none is."""
        return self._state.durable_seq

    def append(self, *batches: Sequence[bytes]) -> None:
        """Write batches of encoded events in one transaction; durable only after `sync`.

        All or none are taken. Raises `SeqMismatch`, `InvalidEvent`, `LegacyEvent`, `LogClosed`,
        `StoreFull` and `Unavailable` with the log as it was, `LogFailed` or `Fenced`.
        """
        self._state.check_usable()
        self._commit(batches, durable=False)

    def sync(self) -> int:
        """Make everything appended before the call durable; returns the highest durable seq.

        Raises `LogClosed`, `Fenced`, or `LogFailed`: a failed sync is final and never tried again.
        """
        self._state.check_usable()
        if self.is_owed:
            self._commit((), durable=True)
        return self.durable_seq

    @property
    def is_owed(self) -> bool:
        """Whether more is written than durable."""
        return self._state.durable != self._state.written

    def _commit(self, batches: Batches, *, durable: bool) -> None:
        failures = self._rounds.commit([(self, batches)], durable=durable)
        if self in failures:
            raise failures[self]

    def stage(self, db: sqlite3.Connection, batches: Batches) -> None:
        """Within a transaction, add the lines; `settle` or `forget` follows."""
        self._state.check_usable()
        framed = frame_batches(batches, self._state.written, self.durable_seq)
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
        self._staged = _Staged(rows, framed, first)

    @property
    def has_staged(self) -> bool:
        """Whether the transaction that is under way adds to this log."""
        return self._staged is not None

    @property
    def standing(self) -> LogEnd:
        """Where the log ends if the transaction that is under way is committed."""
        return self._state.written if self._staged is None else self._staged.end

    def settle(self) -> None:
        """What was staged is committed."""
        if self._staged is not None:
            staged, self._staged = self._staged, None
            self._rows = staged.rows
            self._state.go_on(staged.framed, staged.first)

    def secure(self, end: LogEnd) -> None:
        """What stands up to `end` is durable."""
        if end.next_seq > self._state.durable.next_seq:
            self._state.durable = end

    def forget(self, failure: Broken) -> Broken:
        """What was staged is not committed, or nobody knows; returns what to say of it here."""
        self._staged = None
        if isinstance(failure, LogFailed):
            self._state.failure = LogFailed(self.name, failure.reason, self.durable_seq)
        return self._state.failure or failure

    def write_mark(self) -> None:
        """Note outside the file how far the log is durable; for one that becomes idle."""
        if self._state.failure is None and self.durable_seq >= 0:
            with suppress(Broken):
                row = find(self._rounds.database, self.header.id)
                if row is not None and row.holder == self._rows.holder:  # else it is another's log
                    self._state.note(self._beside)

    def close(self) -> None:
        """Sync what is owed, write the durable mark, and release the lock last.

        Raises `LogFailed` if the sync fails; the lock is released even so. A second call does
        nothing.
        """
        if self._state.closed:
            return
        try:
            if self._state.failure is None:
                self.sync()
                self.write_mark()
        finally:
            self._state.closed = True
            self._rounds.logs.pop(self, None)
            self._release()

    def _lines(self) -> RowLines:
        if self._state.closed:
            raise LogClosed(self.header.id)
        return RowLines(self._rounds.database, self.header.id, self._rows)

    def _check_holder(self, db: sqlite3.Connection) -> None:
        """Raise `Fenced` or `LogFailed` unless the rows are as this log left them."""
        query = (
            "SELECT number, holder, coalesce((SELECT max(seq) FROM lines WHERE session = number), "
            "-1) FROM sessions WHERE id = ?"
        )
        found, rows = db.execute(query, (self.header.id,)).fetchall(), self._rows
        if found == ([(rows.number, rows.holder, self.next_seq - 1)] if rows.number else []):
            return
        failure: Broken
        if found and found[0][1] != rows.holder:
            # The new owner's claim may not be written yet; its term is above this one all the same.
            last, term = self._holder(), self.term + 1
            term = term if last is None else max(term, last.owner.term)
            failure = Fenced(self.header.id, term, self._state.acknowledged_seq)
        else:
            reason = "another program changed or deleted it"
            failure = LogFailed(self.name, reason, self.durable_seq)
        self._state.failure = failure
        raise failure
