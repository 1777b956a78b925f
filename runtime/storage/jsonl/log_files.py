"""Reading the files of a folder of logs, by session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import attrs

from refold.runtime.errors import InvalidSessionId, RefoldError
from refold.runtime.storage.beside import Beside
from refold.runtime.storage.errors import NotFound
from refold.runtime.storage.files import exists, is_blank, open_plain, read_all, reported
from refold.runtime.storage.index import SavedIndex
from refold.runtime.storage.jsonl.names import ASIDE, SUFFIX, FolderNames
from refold.runtime.storage.jsonl.torn_tail import FileQuarantine
from refold.runtime.storage.lines import FileLines
from refold.runtime.storage.port import Port
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.scan import Scan, scan
from refold.runtime.storage.session_header import check_session_id, from_file_name


@attrs.frozen
class LogFiles:
    """The log files in one folder, and what stands beside each; nothing here changes any."""

    names: FolderNames
    port: Port

    def found(self) -> list[str]:
        """What the files that end as logs do are called, sorted."""
        folder = self.names.folder
        with reported(folder):
            files = self.port.listdir(folder) if exists(self.port, folder) else []
        found = (name for name in files if name.endswith((SUFFIX, ASIDE)))
        begins = {name.removesuffix(SUFFIX).removesuffix(ASIDE) for name in found}
        return sorted(map(from_file_name, begins))

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
                    return self.beside(name).find(self.quarantine(name)).mark is not None
            self.read(name)
        except NotFound:
            return False
        except RefoldError:
            return True
        return True

    def written_at(self, name: str) -> int:
        """When a log was last written to, in epoch ns; 0 where nobody knows, or it is no file."""
        try:
            status = self.port.lstat(self.names.log(name))
        except OSError:
            return 0
        return status.mtime_ns if status.kind == "file" else 0

    def beside(self, session_id: str) -> Beside:
        return Beside(self.port, self.names.folder, check_session_id(session_id))

    def quarantine(self, session_id: str) -> FileQuarantine:
        return FileQuarantine(self.port, self.names, session_id)

    def open_file(self, session_id: str, flags: int) -> int:
        """A descriptor of the log; raises `NotFound`, `StoreRefused`, `OSError`."""
        path, twins = self.names.log(session_id), partial(self.names.twins, self.port, session_id)
        with suppress(FileNotFoundError):
            return open_plain(self.port, path, flags, twins)
        if flags == os.O_RDONLY:  # a takeover is under way, or a crash cut it short
            with suppress(FileNotFoundError):
                return open_plain(self.port, self.names.aside(session_id), flags, twins)
        raise NotFound(session_id, str(path))

    @contextmanager
    def reading(self, session_id: str) -> Iterator[int]:
        """The descriptor of a log for the block."""
        with reported(self.names.log(check_session_id(session_id))):
            fd = self.open_file(session_id, os.O_RDONLY)
            try:
                yield fd
            finally:
                self.port.close(fd)

    def reader(self, session_id: str) -> LogReader:
        """A reader that follows one log, through a descriptor of its own."""
        path = self.names.log(check_session_id(session_id))
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
        """What the file that is open at `fd` holds, judged by what stands beside it, too."""
        path = str(self.names.log(session_id))

        def read(saved: SavedIndex | None) -> Scan:
            return scan(read_all(self.port, fd), session_id, path=path, saved=saved)

        return self.beside(session_id).judge(read, path)
