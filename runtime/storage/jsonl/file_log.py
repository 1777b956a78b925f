"""One JSONL log that is open for writing, and rounds over many of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from refold.runtime.storage.batches import frame_batches
from refold.runtime.storage.beside import Beside
from refold.runtime.storage.errors import Fenced, LogClosed, LogFailed, StoreFull
from refold.runtime.storage.files import NO_ROOM, exists, write_all
from refold.runtime.storage.framing import frame_header
from refold.runtime.storage.index import records_of
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.lines import FileLines, StoredRecords
from refold.runtime.storage.local_store import Batches, Done, Failures, Log, SideBySide, contained
from refold.runtime.storage.port import Port
from refold.runtime.storage.writer_state import Opening, WriterState

_open_here: set[tuple[int, tuple[int, int]]] = set()
"""The files of the logs that this process has open for writing."""


def is_open_here(port: Port, fd: int) -> bool:
    """Whether this process has the log of a descriptor open for writing, through any store."""
    return (id(port), port.fstat(fd).identity) in _open_here


def _fdatasync(port: Port, fd: int) -> None:
    port.fdatasync(fd)


class JsonlLog:
    """The writer of one log; made by `JsonlFolder`.

    Not for two threads at once, but `sync` may run beside `append`. After any failure whose
    outcome cannot be known the log is poisoned: `append` and `sync` raise the same `LogFailed`
    until it is closed and opened again. Where another process took the log over they raise
    `Fenced`.
    """

    def __init__(
        self,
        port: Port,
        names: FolderNames,
        opening: Opening,
        fd: int | None,
        release: Callable[[], None],
        successor: Callable[[], int | None],
    ) -> None:
        """`fd` is None for a new log, which has no file before its first batch.

        `release` gives the lock back; `successor` says the term of whoever took the log over, None
        where nobody did.
        """
        self._state = WriterState(opening)
        self.header = opening.header
        self.recovered, self.last_owner = opening.recovered, opening.last_owner
        self.term = self._state.term
        self.records = StoredRecords(self._lines, records_of(opening.index))
        self.port = port
        self._port, self._names, self._path = port, names, names.log(opening.header.id)
        self._beside = Beside(port, names.folder, opening.header.id)
        self._release, self._successor = release, successor
        self._fd = fd
        self._entry: tuple[int, tuple[int, int]] | None = None
        if fd is not None:
            self._enter(fd)

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def next_seq(self) -> int:
        return self._state.written.next_seq

    @property
    def durable_seq(self) -> int:
        """The highest seq that is known to be durable; -1 while none is."""
        return self._state.durable_seq

    def append(self, *batches: Sequence[bytes]) -> None:
        """Write batches of encoded events with one write; durable only after `sync`.

        Each batch is whole or absent after a crash, and here all or none are taken. The first
        batch of a new log makes its file. Raises `SeqMismatch`, `InvalidEvent`, `LegacyEvent`,
        `LogClosed` and `StoreFull` with the log as it was, `LogFailed` or `Fenced`.
        """
        self._state.check_usable()
        framed = frame_batches(batches, self._state.written, self.durable_seq)
        if framed is None:
            return
        first = frame_header(self.header) if self._fd is None else b""
        try:
            if self._fd is None:
                self._beside.drop_mark()  # it must not judge the new log
                self._fd = self._port.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                self._enter(self._fd)
            elif (
                not self._is_named(self._fd)
                or self._port.fstat(self._fd).size != self._state.written.offset
            ):
                self._replaced()
            write_all(self._port, self._fd, first + framed.lines, self._state.written.offset)
            # Nobody may ask again before such a write is acknowledged.
            if self.header.level != "power" and not self._is_named(self._fd):
                self._replaced()
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._poison(error)
            self._take_back(error)
        self._state.go_on(framed, first)

    def sync(self, make_durable: Callable[[Port, int], None] = _fdatasync) -> int:
        """Make everything appended before the call durable; returns the highest durable seq.

        `make_durable` does so with the file of a descriptor, or raises `OSError`. Raises
        `LogClosed`, `Fenced`, or `LogFailed`: a failed sync is final and never tried again.
        """
        self._state.check_usable()
        target = self._state.written
        if self._fd is None or target == self._state.durable:
            return self.durable_seq
        try:
            make_durable(self._port, self._fd)
            if self.durable_seq < 0:
                self._port.sync_directory(self._names.folder)
            # What went into a file that is no longer the log's must not be acknowledged.
            if not self._is_named(self._fd):
                self._replaced()
        except OSError as error:
            self._poison(error)
        self._state.durable = target
        return self.durable_seq

    def write_mark(self) -> None:
        """Note beside the log how far it is durable; for one that becomes idle."""
        if self._fd is None or self._state.failure is not None or self.durable_seq < 0:
            return
        with suppress(OSError):
            named = self._port.lstat(self._path)
            if named.identity == self._port.fstat(self._fd).identity:  # else it is another's log
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
            self._leave()
            if self._fd is not None:
                with suppress(OSError):  # what was synced stands, whatever closing says
                    self._port.close(self._fd)
            self._release()

    def open_lock_file(self) -> int:
        """A descriptor of a file that the store has had since before this log was written to."""
        paths = (self._names.lock, self._names.session_lock(self.header.id))
        return self._port.open(paths[not self._port.has_range_locks], os.O_RDONLY)

    def _lines(self) -> FileLines:
        if self._state.closed:
            raise LogClosed(self.header.id)
        assert self._fd is not None, "a new log holds no records"
        return FileLines(self._port, self._fd, self._path)

    def _enter(self, fd: int) -> None:
        self._entry = (id(self._port), self._port.fstat(fd).identity)
        _open_here.add(self._entry)

    def _leave(self) -> None:
        if self._entry is not None:
            _open_here.discard(self._entry)

    def _is_named(self, fd: int) -> bool:
        try:
            named = self._port.lstat(self._path)
        except FileNotFoundError:
            if exists(self._port, self._names.aside(self.header.id)):
                self._fence(self.term + 1)  # of the takeover that is under way
            self._poison(OSError("another program deleted or moved the file"))
        return named.identity == self._port.fstat(fd).identity

    def _replaced(self) -> NoReturn:
        """Another program changed the log or put a file in its place."""
        term = self._successor()
        if term is None:
            self._poison(OSError("another program changed or replaced the file"))
        self._fence(term)

    def _fence(self, current_term: int) -> NoReturn:
        self._state.failure = Fenced(self.header.id, current_term, self._state.acknowledged_seq)
        raise self._state.failure

    def _take_back(self, error: OSError) -> NoReturn:
        """Leave the log as it was before a batch that had no room, or poison it."""
        end = self._state.written.offset
        try:
            if self._fd is not None and end == 0:
                if self._is_named(self._fd):  # else another owner's log has the name
                    self._port.unlink(self._path)
                self._port.close(self._fd)
                self._fd = None
                self._leave()
            elif self._fd is not None:
                self._port.ftruncate(self._fd, end)
                self._port.fdatasync(self._fd)
        except OSError as failure:
            self._poison(failure)
        raise StoreFull(self.name, _reason(error)) from error

    def _poison(self, error: OSError) -> NoReturn:
        self._state.failure = LogFailed(self.name, _reason(error), self.durable_seq)
        raise self._state.failure from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


WHOLE_FILE_SYSTEM = 16
"""From how many dirty files on one sync of the file system is cheaper."""


class FileRounds:
    """One write a file; then the syncs, side by side, or one for the whole file system.

    See `Rounds`. `logs` are those that are open, each under itself.
    """

    def __init__(self) -> None:
        self.logs: dict[Log, JsonlLog] = {}
        self._root: tuple[Port, int] | None = None

    def write(self, works: Sequence[tuple[Log, Batches]], *, durable: bool) -> Done:
        del durable  # files are synced one by one
        first = self.logs.get(works[0][0])
        if first is not None and first.port.has_syncfs:
            self._open_root(first)
        failures: Failures = {}
        for log, batches in works:
            failures |= contained([log], partial(log.append, *batches))
        return Done(failures, writes=len(works) - len(failures))

    def sync(self, logs: Sequence[Log], side_by_side: SideBySide) -> Done:
        own = [self.logs[log] for log in logs]
        if len(own) >= WHOLE_FILE_SYSTEM and own[0].port.has_syncfs:
            return Done(self._sync_file_system(own), syncs=1)
        failures: Failures = {}
        for failed in side_by_side([partial(contained, [log], log.sync) for log in own]):
            failures |= failed
        return Done(failures, syncs=len(own))

    def _sync_file_system(self, logs: Sequence[JsonlLog]) -> Failures:
        """One sync for all; when it fails nobody knows whose bytes are lost, so every log fails."""
        port, root = self._open_root(logs[0])
        outcome: list[OSError | None] = []

        def sync(_port: Port, _fd: int) -> None:
            if not outcome:
                outcome.append(_error_of(partial(port.syncfs, root)))
            if outcome[0] is not None:
                raise outcome[0]

        failures: Failures = {}
        for log in logs:
            failures |= contained([log], partial(log.sync, sync))
        return failures

    def _open_root(self, log: JsonlLog) -> tuple[Port, int]:
        """Open the descriptor that whole file systems are synced through, before any is written.

        A descriptor reports the errors since it was opened: an old one misses none of ours.
        """
        if self._root is None:
            self._root = log.port, log.open_lock_file()
        return self._root

    def stop(self) -> None:
        if self._root is not None:
            port, fd = self._root
            port.close(fd)
            self._root = None


def _error_of(work: Callable[[], object]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None
