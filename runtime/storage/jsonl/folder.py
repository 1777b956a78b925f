"""A store of JSONL files: one folder, one log a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from refold.runtime.errors import RefoldError
from refold.runtime.storage.beside import Sidecars
from refold.runtime.storage.durable_mark import vanished
from refold.runtime.storage.errors import AlreadyExists, ForeignLog, NotFound
from refold.runtime.storage.files import (
    check_local,
    exists,
    read_all,
    remove,
    remove_beside,
    reported,
)
from refold.runtime.storage.fork import fork_point, forkable, seeded
from refold.runtime.storage.framing import frame_header
from refold.runtime.storage.jsonl.file_log import FileRounds, JsonlLog, is_open_here
from refold.runtime.storage.jsonl.log_files import LogFiles
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.jsonl.takeover import complete, take_over
from refold.runtime.storage.jsonl.torn_tail import recover
from refold.runtime.storage.jsonl.whole_log import replace_log, write_log
from refold.runtime.storage.locks import StoreLock
from refold.runtime.storage.owners import busy, last_owner_of, may_write_still
from refold.runtime.storage.port import OS, Port
from refold.runtime.storage.quarantine import unreported
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.scan import Scan, scan
from refold.runtime.storage.session_header import SessionHeader, check_session_id
from refold.runtime.storage.writer_state import Opening


class JsonlFolder:
    """The sessions in one folder, which is made when it is first written to.

    See `LocalStore` and `MaintainedStore`.
    """

    def __init__(self, folder: Path, port: Port = OS) -> None:
        self._names = FolderNames(folder)
        self._port = port
        self._files = LogFiles(self._names, port)
        self._locks = StoreLock(self._names, port)
        self.rounds = FileRounds()

    @property
    def address(self) -> str:
        return str(self._names.folder)

    @property
    def reports(self) -> Path:
        return self._names.folder

    def create(self, header: SessionHeader) -> JsonlLog:
        with self._locked(header.id) as release:
            self._check_free(header.id)
            frame_header(header)  # refused now rather than at the first append
            cut = unreported(self._files.quarantine(header.id), (0,), "partial")
            return self._log(Opening(header, recovered=cut), None, release)

    def open(self, session_id: str) -> JsonlLog:
        self._check_there(session_id)
        with self._locked(session_id) as release:
            return self._log(*self._recover(session_id), release)

    def read(self, session_id: str) -> Scan:
        return self._files.read(session_id)

    def raw(self, session_id: str) -> bytes:
        return self._files.raw(session_id)

    def reader(self, session_id: str) -> LogReader:
        return self._files.reader(session_id)

    def fork(self, source_id: str, seq: int | None, header: SessionHeader) -> None:
        check_session_id(header.id)
        with self._files.reading(source_id) as source:
            found = forkable(partial(self._files.scan, source_id, source), seq)
            if found.foreign:
                raise ForeignLog(source_id)
            point = fork_point(found, seq)
            with self._locked(header.id) as release:
                self._check_free(header.id)
                whole = seeded(header, found, point)
                lines = range(found.records[0].offset, point.offset + point.length)
                write_log(self._port, self._names, (source, lines), whole)
                release()

    def adopt(self, header: SessionHeader, lines: bytes) -> None:
        path = self._names.log(check_session_id(header.id))
        found = scan(frame_header(header) + lines, header.id, path=str(path))
        with self._locked(header.id) as release:
            self._check_free(header.id)
            write_log(self._port, self._names, lines, header)
            if found.records:
                self._files.beside(header.id).write(found.end)
            release()

    def replace(
        self, header: SessionHeader, lines: bytes, dropped: tuple[int, *tuple[bytes, ...]]
    ) -> str:
        with self._locked(header.id) as release:
            before = self._files.raw(header.id)
            for piece in filter(None, dropped[1:]):
                self._files.quarantine(header.id).keep(dropped[0], piece)
            kept = replace_log(self._port, self._names, before, lines, header)
            release()
            return str(kept)

    def delete(self, session_id: str) -> None:
        self._check_there(session_id)
        with self._locked(session_id) as release:
            for path in self._names.beside(self._port, session_id):
                remove_beside(self._port, path)
            self._port.sync_directory(self._names.folder)
            remove(self._port, self._names.log(session_id))  # last, or nobody would find the rest
            self._port.sync_directory(self._names.folder)
            release()

    def list(self) -> list[str]:
        return [name for name in self._files.found() if self._files.holds_session(name)]

    def names(self) -> Sequence[str]:
        return self._files.found()

    def problems(self) -> tuple[str, ...]:
        return ()  # the file system's own are not ours to find

    def is_there(self) -> bool:
        with reported(self._names.folder):
            return exists(self._port, self._names.folder)

    def vanished(self) -> Sequence[str]:
        return vanished(self._port, self._names.folder, self.names)

    def written_at(self, session_id: str) -> int:
        return self._files.written_at(session_id)

    def write_number(self, session_id: str) -> int:
        del session_id
        return 0  # nothing in a folder grows with every write

    def is_held(self, session_id: str) -> bool | None:
        return self._locks.is_held(session_id)

    def beside(self, session_id: str) -> Sidecars:
        return self._files.beside(session_id).find(self._files.quarantine(session_id))

    def close(self) -> None:
        """A folder is open only where its logs are."""

    def _log(self, opening: Opening, fd: int | None, release: Callable[[], None]) -> JsonlLog:
        def close() -> None:
            del self.rounds.logs[log]
            release()

        def successor() -> int | None:
            last = last_owner_of(partial(self.read, opening.header.id))
            if last is not None and last.owner.term > log.term:
                return last.owner.term
            # Whoever has just taken the log over has not written its own name yet.
            return log.term + 1 if self._locks.is_held_by_another(opening.header.id) else None

        log = JsonlLog(self._port, self._names, opening, fd, close, successor)
        self.rounds.logs[log] = log
        return log

    def _recover(self, session_id: str) -> tuple[Opening, int]:
        fd = self._files.open_file(session_id, os.O_RDWR)
        try:
            found = self._scan_for_writing(session_id, fd)
            if self._may_have_another_writer(found, fd):
                fd = self._move_to_new_inode(session_id, fd)
                found = self._scan_for_writing(session_id, fd)
            recovered = recover(self._port, self._names, fd, found)
            return Opening.of(found, recovered), fd
        except BaseException:
            self._port.close(fd)
            raise

    def _may_have_another_writer(self, found: Scan, fd: int) -> bool:
        """Whether the lock, though we hold it, may be held by someone else on another file."""
        shared = self._locks.may_be_shared(found.header.id)
        return shared or is_open_here(self._port, fd) or may_write_still(found.last_owner())

    def _move_to_new_inode(self, session_id: str, fd: int) -> int:
        moved = take_over(self._port, self._names, session_id, fd)
        self._port.close(fd)
        self._locks.settle(session_id)
        return moved

    def _scan_for_writing(self, session_id: str, fd: int) -> Scan:
        try:
            found = self._files.scan(session_id, fd)
        except NotFound:  # it ends inside its header line
            self._files.quarantine(session_id).keep(0, read_all(self._port, fd))
            self._port.unlink(self._names.log(session_id))
            self._port.sync_directory(self._names.folder)
            raise
        if found.foreign:
            raise ForeignLog(session_id)
        return found

    def _check_there(self, session_id: str) -> None:
        path = self._names.log(check_session_id(session_id))
        with reported(path):
            if not exists(self._port, path) and not exists(
                self._port, self._names.aside(session_id)
            ):
                raise NotFound(session_id, str(path))

    def _check_free(self, session_id: str) -> None:
        if not exists(self._port, self._names.log(session_id)):
            return
        fd = self._files.open_file(session_id, os.O_RDONLY)
        try:
            self._scan_for_writing(session_id, fd)
        except NotFound:
            return
        except RefoldError:
            pass
        finally:
            self._port.close(fd)
        raise AlreadyExists(session_id)

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[Callable[[], None]]:
        """Hold the session's lock; the block, or who it hands `release` to, gives it back."""
        with reported(self._names.log(check_session_id(session_id))):
            check_local(self._port, self._names.folder)
            if not self._locks.acquire(session_id):
                raise busy(session_id, last_owner_of(partial(self.read, session_id)))
            try:
                complete(self._port, self._names, session_id)
                yield partial(self._locks.release, session_id)
            except BaseException:
                self._locks.release(session_id)
                raise
