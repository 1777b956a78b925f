"""A store in memory: the same framing, rules and code over files that are no files."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import attrs

from refold.runtime.storage.jsonl.folder import JsonlFolder
from refold.runtime.storage.port import FileStatus


@attrs.define(eq=False)
class _File:
    number: int
    data: bytearray = attrs.field(factory=bytearray)
    links: int = 1


class MemoryPort:
    """The operations of a `Port` over one dict; every sync succeeds."""

    has_range_locks = True
    has_syncfs = False

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {Path("/"): _File(0)}
        self._open: dict[int, _File] = {}
        self._locks: dict[tuple[int, int], int] = {}
        self._numbers = count(1)

    def paths(self) -> list[Path]:
        """Every path that leads to a file or a folder."""
        return [*self._files]

    def kill(self) -> None:
        """What the death of its programs does: nothing is open or locked any more."""
        self._open.clear()
        self._locks.clear()

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        del mode  # there is nobody to keep out
        file = self._files.get(path)
        if file is None and not flags & os.O_CREAT:
            raise _error(errno.ENOENT, path)
        if file is not None and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        if file is None:
            file = self._files[path] = _File(next(self._numbers))
        if flags & os.O_TRUNC:
            file.data.clear()
        fd = next(self._numbers)
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]
        self._locks = {place: holder for place, holder in self._locks.items() if holder != fd}

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(memoryview(self._open[fd].data)[offset : offset + size])

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        file = self._open[fd].data
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data
        return len(data)

    def copy_range(self, source: int, target: int, size: int, at: int, to: int) -> int:
        return self.pwrite(target, self.pread(source, size, at), to)

    def syncfs(self, fd: int) -> None:
        self.fdatasync(fd)

    def fdatasync(self, fd: int) -> None:
        assert fd in self._open

    def ftruncate(self, fd: int, size: int) -> None:
        del self._open[fd].data[size:]

    def sync_directory(self, path: Path) -> None:
        del path

    def fstat(self, fd: int) -> FileStatus:
        return _status(self._open[fd])

    def lstat(self, path: Path) -> FileStatus:
        return _status(self._found(path))

    def mkdir(self, path: Path) -> None:
        self._files[path] = _File(next(self._numbers))

    def link(self, source: Path, target: Path) -> None:
        if target in self._files:
            raise _error(errno.EEXIST, target)
        self._files[target] = file = self._found(source)
        file.links += 1

    def unlink(self, path: Path) -> None:
        self._found(path).links -= 1
        del self._files[path]

    def rename(self, source: Path, target: Path) -> None:
        self._files[target] = self._found(source)
        del self._files[source]

    def listdir(self, path: Path) -> list[str]:
        return [file.name for file in self._files if file.parent == path and file != path]

    def file_system(self, path: Path) -> str:
        del path
        return "local"

    def lock(self, fd: int, offset: int) -> bool:
        place = (self._open[fd].number, offset)
        return self._locks.setdefault(place, fd) == fd

    def unlock(self, fd: int, offset: int) -> None:
        self._locks.pop((self._open[fd].number, offset), None)

    def is_locked(self, fd: int, offset: int) -> bool:
        return self._locks.get((self._open[fd].number, offset), fd) != fd

    def flock(self, fd: int) -> bool:
        return self.lock(fd, 0)

    def _found(self, path: Path) -> _File:
        try:
            return self._files[path]
        except KeyError:
            raise _error(errno.ENOENT, path) from None


class MemoryFolder(JsonlFolder):
    """A `JsonlFolder` that keeps its framed lines in memory and is gone with the object."""

    def __init__(self) -> None:
        super().__init__(Path("/memory"), MemoryPort())


def _status(file: _File) -> FileStatus:
    return FileStatus((0, file.number), "file", file.links, len(file.data))


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
