"""A store of JSONL files: one folder, one log a session (design 5.2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from runtime.errors import InvalidSessionId, RefoldError
from runtime.events import SessionRecovered
from runtime.storage import recovery
from runtime.storage.errors import AlreadyExists, ForeignLog, NotFound, SessionBusy
from runtime.storage.files import check_local, exists, open_plain, read_all, remove, reported
from runtime.storage.fork import fork_point, seeded, write_fork
from runtime.storage.framing import frame_header
from runtime.storage.head import check_head, read_head
from runtime.storage.header import SessionHeader, check_session_id
from runtime.storage.layout import SUFFIX, Layout
from runtime.storage.locks import StoreLock
from runtime.storage.log import JsonlLog, Opening
from runtime.storage.owners import has_ended, is_running
from runtime.storage.port import OS, Port
from runtime.storage.reader import LogReader
from runtime.storage.tail import Scan, scan
from runtime.storage.walk import Records


class JsonlFolder:
    """The sessions in one folder, which is made when it is first written to.

    Every method raises `InvalidSessionId` for an id that is none, `StoreRefused` for files that
    cannot be trusted, and `Unavailable` where the operating system refuses. Reading never takes a
    lock and never changes a file.
    """

    def __init__(self, folder: Path, port: Port = OS) -> None:
        self._layout = Layout(folder)
        self._port = port
        self._locks = StoreLock(self._layout, port)

    def create(self, header: SessionHeader) -> JsonlLog:
        """A new log, locked; its file is made by the first append.

        Raises `AlreadyExists`, `SessionBusy`, `NotLosslessJson`.
        """
        with self._locked(header.id) as release:
            self._check_free(header.id)
            frame_header(header)  # refused now rather than at the first append
            cut = recovery.unreported(self._port, self._layout, header.id, (0,), "partial")
            return JsonlLog(self._port, self._layout, Opening(header, recovered=cut), release)

    def open(self, session_id: str) -> JsonlLog:
        """Lock a log, repair its tail and make what stands durable.

        Raises `NotFound`, `SessionBusy`, `LogCorrupt`, `LegacyEvent`, `ForeignLog`, `StoreFull`,
        and what `parse_header` raises.
        """
        self._check_there(session_id)
        with self._locked(session_id) as release:
            remove(self._port, self._layout.fork(session_id))
            opening = self._recover(session_id)
            return JsonlLog(self._port, self._layout, opening, release)

    def read(self, session_id: str) -> Scan:
        """What a log holds now; a torn tail is told in `Scan.torn` and left alone.

        Raises as `open` does, without `SessionBusy` and `ForeignLog`.
        """
        with self._reading(session_id) as fd:
            return self._scan(session_id, fd)

    def reader(self, session_id: str) -> LogReader:
        """A reader that follows one log; raises `NotFound` while the log has no file."""
        path = self._layout.log(check_session_id(session_id))
        with reported(path):
            fd = self._open_file(session_id, os.O_RDONLY)
            try:
                return LogReader(self._port, fd, path, session_id)
            except BaseException:
                self._port.close(fd)
                raise

    def fork(self, source_id: str, seq: int | None, header: SessionHeader) -> None:
        """Make the session of `header` from the events of another up to its `turn/end` at `seq`.

        By default that is the last one. The bytes are copied as they are, and durable when this
        returns. Raises `NoForkPoint`, `AlreadyExists`, `SessionBusy`, `ForeignLog`, `StoreFull`
        and what `read` raises of the source.
        """
        check_session_id(header.id)
        with self._reading(source_id) as source:
            found = self._scan(source_id, source)
            if found.foreign:
                raise ForeignLog(source_id)
            point = fork_point(found, seq)
            with self._locked(header.id) as release:
                self._check_free(header.id)
                whole = seeded(header, found, point)
                start = found.records[0].offset
                lines = range(start, point.offset + point.length)
                write_fork(self._port, self._layout, source, lines, whole)
                release()

    def _recover(self, session_id: str) -> Opening:
        fd = self._open_file(session_id, os.O_RDWR)
        try:
            found = self._scan_for_writing(session_id, fd)
            if self._may_have_another_writer(found):
                fd = self._move_to_new_inode(session_id, fd)
                found = self._scan_for_writing(session_id, fd)
            recovered = recovery.recover(self._port, self._layout, fd, found)
            return _opening(found, fd, recovered)
        except BaseException:
            self._port.close(fd)
            raise

    def _may_have_another_writer(self, found: Scan) -> bool:
        """Whether the lock, though we hold it, may be held by someone else on another file."""
        if self._locks.may_be_shared(found.header.id):
            return True
        last = found.last_owner()
        if last is None or last.released or last.owner.owner is None:
            return False
        return is_running(last.owner.owner)

    def _move_to_new_inode(self, session_id: str, fd: int) -> int:
        recovery.move_to_new_inode(self._port, self._layout, session_id, fd)
        moved = self._open_file(session_id, os.O_RDWR)
        self._port.close(fd)
        self._locks.settle(session_id)
        return moved

    def _scan(self, session_id: str, fd: int) -> Scan:
        # The head is read first: it must not be younger than the bytes that it judges.
        head = read_head(self._port, self._layout.head(session_id))
        path = str(self._layout.log(session_id))
        try:
            found = scan(read_all(self._port, fd), session_id, path=path)
        except NotFound:
            check_head(None, head, path)
            raise
        check_head(found, head, path)
        return found

    def _scan_for_writing(self, session_id: str, fd: int) -> Scan:
        try:
            found = self._scan(session_id, fd)
        except NotFound:
            self._set_aside(session_id, fd)
            raise
        if found.foreign:
            raise ForeignLog(session_id)
        return found

    def _set_aside(self, session_id: str, fd: int) -> None:
        """Move a file that ends inside its header line to quarantine."""
        data = read_all(self._port, fd)
        recovery.quarantine(self._port, self._layout, session_id, 0, data)
        self._port.unlink(self._layout.log(session_id))
        self._port.sync_directory(self._layout.folder)

    def _check_there(self, session_id: str) -> None:
        path = self._layout.log(check_session_id(session_id))
        with reported(path):
            if not exists(self._port, path):
                raise NotFound(session_id, str(path))

    def _check_free(self, session_id: str) -> None:
        if not exists(self._port, self._layout.log(session_id)):
            return
        fd = self._open_file(session_id, os.O_RDONLY)
        try:
            self._scan_for_writing(session_id, fd)
        except NotFound:
            return
        except RefoldError:
            pass
        finally:
            self._port.close(fd)
        raise AlreadyExists(session_id)

    def _open_file(self, session_id: str, flags: int) -> int:
        path = self._layout.log(session_id)
        try:
            return open_plain(self._port, path, flags, self._layout.fork(session_id))
        except FileNotFoundError:
            raise NotFound(session_id, str(path)) from None

    @contextmanager
    def _reading(self, session_id: str) -> Iterator[int]:
        path = self._layout.log(check_session_id(session_id))
        with reported(path):
            fd = self._open_file(session_id, os.O_RDONLY)
            try:
                yield fd
            finally:
                self._port.close(fd)

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[Callable[[], None]]:
        """Hold the session's lock; the block, or who it hands `release` to, gives it back."""
        with reported(self._layout.log(check_session_id(session_id))):
            if not self._locks.acquire(session_id):
                raise self._busy(session_id)
            try:
                check_local(self._port, self._layout.folder)
                yield partial(self._locks.release, session_id)
            except BaseException:
                self._locks.release(session_id)
                raise

    def _busy(self, session_id: str) -> SessionBusy:
        try:
            last = self.read(session_id).last_owner()
        except RefoldError:
            last = None
        if last is None or last.released or last.owner.owner is None:
            return SessionBusy(session_id, None, None, None)
        if has_ended(last.owner.owner):  # the holder has not written its own name yet
            return SessionBusy(session_id, None, None, None)
        return SessionBusy(session_id, last.owner.owner.pid, last.owner.owner.host, last.since)

    def list(self) -> list[str]:
        """The ids of the files that hold a session, damaged ones too, sorted.

        A file that ends inside its header line holds none.
        """
        folder = self._layout.folder
        with reported(folder):
            names = self._port.listdir(folder) if exists(self._port, folder) else []
        ids = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
        return sorted(found for found in ids if self._holds_session(found))

    def _holds_session(self, session_id: str) -> bool:
        try:
            self.reader(session_id).close()
        except (InvalidSessionId, NotFound):
            return False
        except RefoldError:
            return True
        return True


def _opening(found: Scan, fd: int, recovered: SessionRecovered | None) -> Opening:
    last = found.last_owner()
    assert isinstance(found.records, Records), "a foreign log is not opened"
    return Opening(
        header=found.header,
        fd=fd,
        end=found.end,
        next_seq=len(found.records),
        chain=found.chain,
        recovered=recovered,
        last_owner=None if last is None else last.owner,
        index=found.records.where,
    )
