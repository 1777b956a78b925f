"""Reading the files of a folder of logs, by session (design 5.2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import attrs

from runtime.errors import InvalidSessionId, RefoldError
from runtime.storage.errors import NotFound
from runtime.storage.files import exists, is_blank, open_plain, read_all, reported
from runtime.storage.head import Beside, check_head, read_head
from runtime.storage.header import check_session_id
from runtime.storage.index import read_index
from runtime.storage.layout import ASIDE, SUFFIX, Layout
from runtime.storage.lines import FileLines
from runtime.storage.port import Port
from runtime.storage.quarantine import FileQuarantine
from runtime.storage.reader import LogReader
from runtime.storage.tail import LastOwner, Scan, scan


@attrs.frozen
class LogFiles:
    """The log files in one folder, and what stands beside each; nothing here changes any."""

    layout: Layout
    port: Port

    def names(self) -> list[str]:
        """What the files that end as logs do are called, sorted."""
        folder = self.layout.folder
        with reported(folder):
            names = self.port.listdir(folder) if exists(self.port, folder) else []
        found = (name for name in names if name.endswith((SUFFIX, ASIDE)))
        return sorted({name.removesuffix(SUFFIX).removesuffix(ASIDE) for name in found})

    def holds_session(self, name: str) -> bool:
        """Whether a file holds a session, though a damaged one.

        Half a header is none, nor are zeros, unless the head file or what stands behind them tells
        of more.
        """
        try:
            self.reader(name).close()
        except InvalidSessionId:
            return False
        except NotFound:
            return self._held_session(name)
        except RefoldError:
            return True
        return True

    def _held_session(self, name: str) -> bool:
        """Whether more is known of a session than that there is no header."""
        try:
            with self.reading(name) as fd:
                if is_blank(self.port, fd):  # also a large one, which is not to be held in memory
                    return read_head(self.port, self.layout.head(name)) is not None
            self.read(name)
        except NotFound:
            return False
        except RefoldError:
            return True
        return True

    def written_at(self, name: str) -> int:
        """When a log was last written to, in epoch ns; 0 where nobody knows, or it is no file."""
        try:
            status = self.port.lstat(self.layout.log(name))
        except OSError:
            return 0
        return status.mtime_ns if status.kind == "file" else 0

    def beside(self, session_id: str) -> Beside:
        """What stands beside a log."""
        path = self.layout.head(check_session_id(session_id))
        with reported(path):
            head = read_head(self.port, path)
            damaged = head is None and exists(self.port, path)
            pieces = self.quarantine(session_id).names()
        return Beside(head, damaged, tuple(pieces))

    def quarantine(self, session_id: str) -> FileQuarantine:
        return FileQuarantine(self.port, self.layout, session_id)

    def open_file(self, session_id: str, flags: int) -> int:
        """A descriptor of the log; raises `NotFound`, `StoreRefused`, `OSError`."""
        path, twins = self.layout.log(session_id), partial(self.layout.twins, self.port, session_id)
        with suppress(FileNotFoundError):
            return open_plain(self.port, path, flags, twins)
        if flags == os.O_RDONLY:  # a takeover is under way, or a crash cut it short
            with suppress(FileNotFoundError):
                return open_plain(self.port, self.layout.aside(session_id), flags, twins)
        raise NotFound(session_id, str(path))

    @contextmanager
    def reading(self, session_id: str) -> Iterator[int]:
        """The descriptor of a log for the block."""
        with reported(self.layout.log(check_session_id(session_id))):
            fd = self.open_file(session_id, os.O_RDONLY)
            try:
                yield fd
            finally:
                self.port.close(fd)

    def reader(self, session_id: str) -> LogReader:
        """A reader that follows one log, through a descriptor of its own."""
        path = self.layout.log(check_session_id(session_id))
        with reported(path):
            lines = FileLines(self.port, self.open_file(session_id, os.O_RDONLY), path)
            try:
                return LogReader(lines, session_id)
            except BaseException:
                lines.close()
                raise

    def read(self, session_id: str) -> Scan:
        with self.reading(session_id) as fd:
            return self.scan(session_id, fd)

    def raw(self, session_id: str) -> bytes:
        with self.reading(session_id) as fd:
            return read_all(self.port, fd)

    def scan(self, session_id: str, fd: int) -> Scan:
        """What the file that is open at `fd` holds, judged by its head file, too."""
        # The head is read first: it must not be younger than the bytes that it judges.
        head = read_head(self.port, self.layout.head(session_id))
        path = str(self.layout.log(session_id))
        try:
            saved = read_index(self.port, self.layout.index(session_id))
            found = scan(read_all(self.port, fd), session_id, path=path, saved=saved)
        except NotFound:
            check_head(None, head, path)
            raise
        check_head(found, head, path)
        return found

    def find_owner(self, session_id: str) -> LastOwner | None:
        """The last owner that the log names; None also where it cannot be read."""
        try:
            return self.read(session_id).last_owner()
        except RefoldError:
            return None
