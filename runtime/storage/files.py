"""What is done with a store's files, step by step through the port."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

from refold.runtime.storage.errors import StoreFull, StoreRefused, Unavailable
from refold.runtime.storage.port import Port

CHUNK = 1 << 20

NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


_NO_FOLDER = "give a store's folder, or sqlite:///FILE where a SQLite file holds the sessions"


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into `StoreFull` or `Unavailable`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in NO_ROOM:
            raise StoreFull(str(path), reason) from error
        if error.errno == errno.ENOTDIR:
            raise Unavailable(str(path), reason, _NO_FOLDER) from error
        raise Unavailable(str(path), reason) from error


def exists(port: Port, path: Path) -> bool:
    try:
        port.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


Twins: TypeAlias = "Callable[[], Iterable[Path]]"


def open_plain(port: Port, path: Path, flags: int, twins: Twins | None = None) -> int:
    """Open a plain file; raises `StoreRefused`, `FileNotFoundError`.

    With `twins` it may have no second name (a hard link) except one of those: a crash in the middle
    of a fork or a takeover leaves such a name.
    """
    try:
        fd = port.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreRefused(str(path), "a symbolic link") from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise StoreRefused(str(path), "no plain file") from None
        raise
    try:
        _check_plain(port, path, fd, twins)
    except BaseException:
        port.close(fd)
        raise
    return fd


def _check_plain(port: Port, path: Path, fd: int, twins: Twins | None) -> None:
    status = port.fstat(fd)
    if status.kind != "file":
        raise StoreRefused(str(path), "no plain file")
    if status.links > 1 and twins is not None:
        ours = [twin for twin in twins() if port.lstat(twin).identity == status.identity]
        if status.links > 1 + len(ours):
            raise StoreRefused(str(path), f"a file with {status.links} names (hard links)")


def check_local(port: Port, folder: Path) -> None:
    """Raise `StoreRefused` for a folder on a network file system, before anything is made in it.

    One that is not there yet will be where the folder is that it is made in.
    """
    while not exists(port, folder) and folder != folder.parent:
        folder = folder.parent
    name = port.file_system(folder)
    if name != "local":
        raise StoreRefused(str(folder), f"on {name}")


def read_all(port: Port, fd: int, start: int = 0, end: int | None = None) -> bytes:
    """The bytes from `start` to `end` (by default, and at most, to the end of the file)."""
    stop = port.fstat(fd).size if end is None else end
    parts = []
    while start < stop:
        part = port.pread(fd, stop - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def is_blank(port: Port, fd: int) -> bool:
    """Whether a file holds nothing, or nothing but zeros; no more of it than a part is kept."""
    offset = 0
    while part := port.pread(fd, CHUNK, offset):
        if part.count(0) != len(part):
            return False
        offset += len(part)
    return True


def write_all(port: Port, fd: int, data: bytes, offset: int) -> None:
    """Write `data` at `offset`, going on after short writes."""
    rest = memoryview(data)
    while rest:
        written = port.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def copy_all(port: Port, source: int, target: int, part: range, to: int) -> None:
    """Copy the bytes at the offsets `part` of one file to `to` in another."""
    while part:
        copied = port.copy_range(source, target, len(part), part.start, to)
        if not copied:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        part, to = part[copied:], to + copied


def write_file(port: Port, path: Path, data: bytes, *, sync: bool, replace: bool = True) -> None:
    """Make the file at `path` as a whole, in the place of one that is there if that may be.

    Where it fails nothing is left of it, and a kill leaves no more than a draft beside it, which is
    in nobody's way. Raises `FileExistsError` for a name that is taken and must not be replaced.
    """
    draft, fd = open_draft(port, path.with_name(f"{path.name}.new"))
    try:
        try:
            write_all(port, fd, data, 0)
            if sync:
                port.fdatasync(fd)
        finally:
            port.close(fd)
        _give_name(port, draft, path, replace=replace)
    except BaseException:
        with suppress(OSError):  # what went wrong first is what is told
            remove(port, draft)
        raise
    if sync:
        port.sync_directory(path.parent)


def _give_name(port: Port, draft: Path, path: Path, *, replace: bool) -> None:
    if not replace:
        try:
            port.link(draft, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No more than a kill between these two can leave an empty file.
            port.close(port.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        else:
            remove(port, draft)
            return
    port.rename(draft, path)


_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What file systems answer that have no hard links."""


def open_draft(port: Port, begin: Path) -> tuple[Path, int]:
    """A new file that nobody else has, and its descriptor; `begin` is its name but for a number.

    Whatever else is called so, a link too, is left alone.
    """
    for number in count():
        path = begin.with_name(f"{begin.name}-{number}")
        with suppress(FileExistsError):
            return path, port.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    raise AssertionError("some number is free")


def make_folder(port: Port, folder: Path) -> None:
    """Make `folder`, private to its user, and make its name durable.

    The name of one that is there is synced, too: who made it may have been killed before that.
    """
    if exists(port, folder):
        with suppress(PermissionError):  # a folder of others was not made here
            port.sync_directory(folder.parent)
        return
    make_folder(port, folder.parent)
    with suppress(FileExistsError):
        port.mkdir(folder)
    port.sync_directory(folder.parent)


def remove(port: Port, path: Path) -> bool:
    """Unlink `path`; False if it is not there."""
    try:
        port.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_beside(port: Port, path: Path) -> bool:
    """As `remove`, of what stands beside a log; a folder, which no store made, stays."""
    with suppress(IsADirectoryError):
        return remove(port, path)
    return False
