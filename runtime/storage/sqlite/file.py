"""A store of sessions in one SQLite file.

A row holds the framed line that a file would hold, and the same verifier reads it: SQLite drops a
flipped frame of its write-ahead log without a word (docs/design/stores.md, "SQLite").
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs

from refold.runtime.storage.address import SCHEME
from refold.runtime.storage.beside import Beside, Sidecars
from refold.runtime.storage.durable_mark import vanished
from refold.runtime.storage.errors import (
    AlreadyExists,
    FileCorrupt,
    LogCorrupt,
    NotFound,
    Unavailable,
)
from refold.runtime.storage.files import check_local, remove_beside, reported, write_file
from refold.runtime.storage.fork import fork_point, forkable, seeded
from refold.runtime.storage.framing import frame_header
from refold.runtime.storage.locks import StoreLock
from refold.runtime.storage.owners import busy, last_owner_of
from refold.runtime.storage.port import OS, Port
from refold.runtime.storage.quarantine import report_of, unreported
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.scan import Scan, Torn, scan
from refold.runtime.storage.session_header import SessionHeader, check_session_id
from refold.runtime.storage.sqlite.database import Database
from refold.runtime.storage.sqlite.names import SqliteNames
from refold.runtime.storage.sqlite.row_log import SqliteLog
from refold.runtime.storage.sqlite.row_rounds import RowRounds
from refold.runtime.storage.sqlite.rows import (
    RowLines,
    RowQuarantine,
    Rows,
    change_row,
    check_holder,
    copy_lines,
    delete_rows,
    find,
    ids,
    insert_lines,
    insert_session,
    keep_torn,
    last_number,
    last_time,
    name_of,
    read_raw_on,
    scan_rows,
    take_lines,
)
from refold.runtime.storage.writer_state import Opening


class SqliteFile:
    """The sessions in one file, which is made when it is first written to.

    See `LocalStore` and `MaintainedStore`. SQLite does its own reading and writing; locks and what
    stands beside a log go through `port`.
    """

    def __init__(self, path: Path, port: Port = OS) -> None:
        self._names, self._port = SqliteNames(path), port
        self._locks = StoreLock(self._names, port)
        self._database = Database(self._names, port)
        self.rounds = RowRounds(self._database)

    @property
    def address(self) -> str:
        return f"{SCHEME}{self._names.path}"

    @property
    def reports(self) -> Path:
        return self._names.beside_folder

    def create(self, header: SessionHeader) -> SqliteLog:
        with self._locked(header.id) as release:
            self._check_free(header.id)
            frame_header(header)  # refused now rather than at the first append
            cut = unreported(self._quarantine(header.id), (0,), "partial")
            self._beside(header.id).drop_mark()  # it must not judge the new log
            rows = Rows(0, b"", secrets.token_hex(8))
            return self._log(Opening(header, recovered=cut), rows, release)

    def open(self, session_id: str) -> SqliteLog:
        self._find(session_id)
        with self._locked(session_id) as release:
            return self._log(*self._recover(session_id), release)

    def read(self, session_id: str) -> Scan:
        return self._scan(session_id, self._find(session_id))

    def reader(self, session_id: str) -> LogReader:
        rows = self._find(session_id)
        return LogReader(RowLines(self._database, session_id, rows), session_id)

    def fork(self, source_id: str, seq: int | None, header: SessionHeader) -> None:
        check_session_id(header.id)
        source = self._find(source_id)
        found = forkable(partial(self._scan_to_fork, source_id, source), seq)
        point = fork_point(found, seq)
        with self._adding(seeded(header, found, point)) as (db, number):
            if not copy_lines(db, source.number, point, number):
                what = "the source changed while it was copied"
                raise Unavailable(name_of(self._database, source_id), what)

    def adopt(self, header: SessionHeader, lines: bytes) -> None:
        name = name_of(self._database, check_session_id(header.id))
        found = scan(frame_header(header) + lines, header.id, path=name)
        with self._adding(header) as (db, number):
            insert_lines(db, number, 0, lines)
        if found.records:
            self._beside(header.id).write(found.end)

    def replace(
        self, header: SessionHeader, lines: bytes, dropped: tuple[int, *tuple[bytes, ...]]
    ) -> str:
        with self._locked(header.id) as release:
            rows, before = self._find(header.id), self.raw(header.id)
            kept = self._names.damaged(self._port, header.id)
            write_file(self._port, kept, before, sync=True)
            self._beside(header.id).drop_mark()  # it vouches for what was
            with self._database.transaction(durable=True) as db:
                check_holder(db, header.id, rows)
                for piece in filter(None, dropped[1:]):
                    keep_torn(db, header.id, dropped[0], piece)
                take_lines(db, rows.number, 0)
                insert_lines(db, rows.number, 0, lines)
                change_row(db, rows.number, frame_header(header), secrets.token_hex(8))
            release()
            return str(kept)

    def delete(self, session_id: str) -> None:
        self._find(session_id)
        with self._locked(session_id) as release:
            number = self._find(session_id).number
            beside = self._names.beside(self._port, session_id)
            for path in beside:
                remove_beside(self._port, path)
            for folder in {path.parent for path in beside}:
                self._port.sync_directory(folder)  # the rows go last, or nobody would find the rest
            with self._database.transaction(durable=True) as db:
                delete_rows(db, number, session_id)
            release()

    def raw(self, session_id: str) -> bytes:
        return read_raw_on(RowLines(self._database, session_id, self._find(session_id)))

    def list(self) -> list[str]:
        return ids(self._database)

    def names(self) -> Sequence[str]:
        return self.list()

    def problems(self) -> tuple[str, ...]:
        return self._database.problems()

    def is_there(self) -> bool:
        with reported(self._names.path):
            return self._database.exists()

    def vanished(self) -> Sequence[str]:
        return vanished(self._port, self._names.beside_folder, self.list)

    def written_at(self, session_id: str) -> int:
        return last_time(self._database, session_id) * 1_000_000

    def write_number(self, session_id: str) -> int:
        return last_number(self._database, session_id)

    def is_held(self, session_id: str) -> bool | None:
        return self._locks.is_held(session_id)

    def beside(self, session_id: str) -> Sidecars:
        return self._beside(session_id).find(self._quarantine(session_id))

    def close(self) -> None:
        """Empty the write-ahead log and let go of the file; for when every log is closed."""
        if not self.rounds.logs:
            self._database.tidy()
        self._database.close()

    def _log(self, opening: Opening, rows: Rows, release: Callable[[], None]) -> SqliteLog:
        session = opening.header.id
        holder = partial(last_owner_of, partial(self.read, session))
        return SqliteLog(self.rounds, opening, rows, release, holder, self._beside(session))

    def _beside(self, session_id: str) -> Beside:
        return Beside(self._port, self._names.beside_folder, check_session_id(session_id))

    def _recover(self, session_id: str) -> tuple[Opening, Rows]:
        rows = attrs.evolve(self._find(session_id), holder=secrets.token_hex(8))
        with self._database.transaction(durable=True) as db:  # from here on no older owner writes
            change_row(db, rows.number, rows.header, rows.holder)
        found = self._scan(session_id, rows)
        if found.torn is not None:
            self._cut(session_id, rows, found.torn)
        return Opening.of(found, report_of(self._quarantine(session_id), found)), rows

    def _cut(self, session_id: str, rows: Rows, torn: Torn) -> None:
        """Take a damaged tail from the rows; no crash leaves one, since transactions are whole."""
        with self._database.transaction(durable=True) as db:
            check_holder(db, session_id, rows)
            data = take_lines(db, rows.number, 0)  # one row may hold several lines, or half of one
            end = torn.offset - len(rows.header)
            kept, dropped = data[:end], data[end:]
            insert_lines(db, rows.number, 0, kept + b"\n" * torn.missing_newline)
            if dropped:
                keep_torn(db, session_id, torn.offset, dropped)

    def _scan(self, session_id: str, rows: Rows) -> Scan:
        read = partial(scan_rows, self._database, session_id, rows)
        return self._beside(session_id).judge(read, name_of(self._database, session_id))

    def _scan_to_fork(self, session_id: str, rows: Rows) -> Scan:
        try:
            return self._scan(session_id, rows)
        except LogCorrupt:
            problems = self._database.problems()
            if problems:  # to write to such a file could take more of it
                raise FileCorrupt(self._database.name, problems[0]) from None
            raise

    def _find(self, session_id: str) -> Rows:
        found = find(self._database, check_session_id(session_id))
        if found is None:
            raise NotFound(session_id, self._database.name)
        return found

    @contextmanager
    def _adding(self, header: SessionHeader) -> Iterator[tuple[sqlite3.Connection, int]]:
        """A transaction that adds a session, and the number of its row."""
        with self._locked(header.id) as release:
            self._check_free(header.id)
            self._beside(header.id).drop_mark()  # it must not judge the new log
            with self._database.transaction(durable=True) as db:
                yield db, insert_session(db, header.id, frame_header(header), "")
            release()

    def _check_free(self, session_id: str) -> None:
        if find(self._database, check_session_id(session_id)) is not None:
            raise AlreadyExists(session_id)

    def _quarantine(self, session_id: str) -> RowQuarantine:
        return RowQuarantine(self._database, session_id)

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[Callable[[], None]]:
        """Hold the session's lock; the block, or who it hands `release` to, gives it back."""
        with reported(self._names.path):
            check_session_id(session_id)
            check_local(self._port, self._names.folder)
            if not self._locks.acquire(session_id):
                raise busy(session_id, last_owner_of(partial(self.read, session_id)))
            try:
                self._database.renew()
                yield partial(self._locks.release, session_id)
            except BaseException:
                self._locks.release(session_id)
                raise
