"""A disk in memory that remembers what was done to it, and when."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import attrs

from refold.runtime.storage import FileStatus, MemoryPort


@attrs.frozen
class Write:
    """Bytes that were written to a file; not on the disk before a sync of it."""

    file: int
    offset: int
    data: bytes = attrs.field(repr=False)


@attrs.frozen
class Truncate:
    """A file that was cut to `size` bytes."""

    file: int
    size: int


@attrs.frozen
class Sync:
    """A sync of one file's bytes, or (None) of the whole file system."""

    file: int | None


@attrs.frozen
class FailedSync:
    """A sync that failed: what it was to make durable never reaches the disk by itself."""

    file: int


@attrs.frozen
class Entry:
    """One change of names: what each path leads to from now on, None for nothing.

    `operation` is create, mkdir, link, unlink or rename.
    """

    operation: str
    names: tuple[tuple[Path, int | None], ...]

    def __str__(self) -> str:
        return f"{self.operation} {' to '.join(path.name for path, _ in self.names)}"


@attrs.frozen
class SyncFolder:
    """A sync of the names in a folder."""

    folder: Path


@attrs.frozen
class Mark:
    """What the program under test was told at this point."""

    what: object


@attrs.frozen
class Acknowledged:
    """The mark of an event that is safe; `encoded` is its bytes without framing."""

    session: str
    seq: int
    encoded: bytes = attrs.field(repr=False)


Operation: TypeAlias = Write | Truncate | Sync | FailedSync | Entry | SyncFolder | Mark


@attrs.frozen
class Image:
    """What a disk holds: to which file each path leads, and the bytes of each file.

    A folder is a file without bytes. Two paths that lead to one file are hard links.
    """

    names: Mapping[Path, int] = attrs.field(factory=dict)
    contents: Mapping[int, bytes] = attrs.field(factory=dict, repr=False)

    def files(self) -> dict[Path, bytes]:
        """The bytes behind each path, folders left out."""
        return {
            path: self.contents[file] for path, file in self.names.items() if file in self.contents
        }


class RecordingDisk:
    """A `Port` over files in memory whose every change stands in `operations`, in order.

    It begins with what `image` holds. Faults are put in by a `FailingPort` before it; a sync that
    fails there loses what it was to sync (`lose_sync`). Not for several threads at once.
    """

    has_range_locks = True
    has_syncfs = True

    def __init__(self, image: Image | None = None) -> None:
        self.operations: list[Operation] = []
        self._files = MemoryPort()
        self.start = self._load(image or Image())
        """What it held at first, with the file numbers that `operations` use."""

    @property
    def marks(self) -> list[object]:
        """Everything that was marked so far."""
        return [operation.what for operation in self.operations if isinstance(operation, Mark)]

    def image(self) -> Image:
        """What it holds now, as its programs see it, synced or not."""
        names = {path: self._number(path) for path in self._files.paths() if path != path.parent}
        folders = {path.parent for path in names}
        files = {path: file for path, file in names.items() if path not in folders}
        return Image(names, {file: self._content(path) for path, file in files.items()})

    def kill(self) -> None:
        """What the death of its programs does: nothing is open or locked, and nothing is lost."""
        self._files.kill()

    def mark(self, what: object) -> None:
        """Note between two operations what the program under test was told is done."""
        self.operations.append(Mark(what))

    def acknowledge(self, session: str, seq: int, encoded: bytes) -> None:
        """Mark an event as acknowledged; `Journal.of` reads such marks."""
        self.mark(Acknowledged(session, seq, encoded))

    def lose_sync(self, fd: int) -> None:
        """Note that a sync of a file failed, as Linux has it.

        Reading shows the written bytes, later syncs succeed, and the disk never gets them unless
        they are written again.
        """
        self.operations.append(FailedSync(self._file(fd)))

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        is_new = path not in self._files.paths()
        fd = self._files.open(path, flags, mode)
        if is_new:
            self._enter("create", (path, self._file(fd)))
        elif flags & os.O_TRUNC:
            self.operations.append(Truncate(self._file(fd), 0))
        return fd

    def close(self, fd: int) -> None:
        self._files.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._files.pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self.operations.append(Write(self._file(fd), offset, bytes(data)))
        return self._files.pwrite(fd, data, offset)

    def copy_range(self, source: int, target: int, size: int, at: int, to: int) -> int:
        return self.pwrite(target, self.pread(source, size, at), to)

    def ftruncate(self, fd: int, size: int) -> None:
        self.operations.append(Truncate(self._file(fd), size))
        self._files.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self.operations.append(Sync(self._file(fd)))

    def syncfs(self, fd: int) -> None:
        del fd
        self.operations.append(Sync(None))

    def sync_directory(self, path: Path) -> None:
        self.operations.append(SyncFolder(path))

    def fstat(self, fd: int) -> FileStatus:
        return self._files.fstat(fd)

    def lstat(self, path: Path) -> FileStatus:
        return self._files.lstat(path)

    def mkdir(self, path: Path) -> None:
        self._files.mkdir(path)
        self._enter("mkdir", (path, self._number(path)))

    def link(self, source: Path, target: Path) -> None:
        self._files.link(source, target)
        self._enter("link", (target, self._number(target)))

    def unlink(self, path: Path) -> None:
        self._files.unlink(path)
        self._enter("unlink", (path, None))

    def rename(self, source: Path, target: Path) -> None:
        self._files.rename(source, target)
        self._enter("rename", (source, None), (target, self._number(target)))

    def listdir(self, path: Path) -> list[str]:
        return self._files.listdir(path)

    def file_system(self, path: Path) -> str:
        return self._files.file_system(path)

    def lock(self, fd: int, offset: int) -> bool:
        return self._files.lock(fd, offset)

    def unlock(self, fd: int, offset: int) -> None:
        self._files.unlock(fd, offset)

    def is_locked(self, fd: int, offset: int) -> bool:
        return self._files.is_locked(fd, offset)

    def flock(self, fd: int) -> bool:
        return self._files.flock(fd)

    def _enter(self, operation: str, *names: tuple[Path, int | None]) -> None:
        self.operations.append(Entry(operation, names))

    def _file(self, fd: int) -> int:
        return self._files.fstat(fd).identity[1]

    def _number(self, path: Path) -> int:
        return self._files.lstat(path).identity[1]

    def _content(self, path: Path) -> bytes:
        fd = self._files.open(path, os.O_RDONLY)
        try:
            return self._files.pread(fd, self._files.fstat(fd).size, 0)
        finally:
            self._files.close(fd)

    def _load(self, image: Image) -> Image:
        first: dict[int, Path] = {}
        for path, file in image.names.items():
            if file in first:
                self._files.link(first[file], path)
            elif file in image.contents:
                first[file] = path
                fd = self._files.open(path, os.O_RDWR | os.O_CREAT)
                self._files.pwrite(fd, image.contents[file], 0)
                self._files.close(fd)
            else:
                self._files.mkdir(path)
        names = {path: self._number(path) for path in image.names}
        return Image(names, {names[path]: image.contents[file] for file, path in first.items()})
