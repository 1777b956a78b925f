"""The one door to the operating system: every file operation of a store.

Faults are put in by wrapping a `Port`. All operations raise `OSError` as the system calls do.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs

_COPY_CHUNK = 1 << 20


@attrs.frozen
class FileStatus:
    """`identity` is device and inode number; `kind` one of file, link, directory, other.

    `mtime_ns` is when it was last written to, in epoch ns, 0 where nobody knows.
    """

    identity: tuple[int, int]
    kind: str
    links: int
    size: int
    mtime_ns: int = 0


class Port(Protocol):
    """File operations over descriptors and paths; offsets and sizes are bytes.

    `lock` takes an exclusive lock on the byte at `offset` for this open descriptor, `flock` one on
    the whole file; both return False instead of waiting. `is_locked` says whether another
    descriptor has a lock on that byte, and takes none. `has_range_locks` says whether these work,
    `has_syncfs` whether `syncfs` syncs a whole file system and reports its errors.
    `file_system` names the kind of the file system of a path, or "local".
    """

    @property
    def has_range_locks(self) -> bool: ...
    @property
    def has_syncfs(self) -> bool: ...
    def open(self, path: Path, flags: int, mode: int = 0o600) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, size: int, offset: int) -> bytes: ...
    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int: ...
    def copy_range(self, source: int, target: int, size: int, at: int, to: int) -> int: ...
    def fdatasync(self, fd: int) -> None: ...
    def syncfs(self, fd: int) -> None: ...
    def ftruncate(self, fd: int, size: int) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
    def fstat(self, fd: int) -> FileStatus: ...
    def lstat(self, path: Path) -> FileStatus: ...
    def mkdir(self, path: Path) -> None: ...
    def link(self, source: Path, target: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def listdir(self, path: Path) -> list[str]: ...
    def file_system(self, path: Path) -> str: ...
    def lock(self, fd: int, offset: int) -> bool: ...
    def unlock(self, fd: int, offset: int) -> None: ...
    def is_locked(self, fd: int, offset: int) -> bool: ...
    def flock(self, fd: int) -> bool: ...


class _System:
    """The real one."""

    has_range_locks = hasattr(fcntl, "F_OFD_SETLK") and sys.maxsize > 2**32

    @property
    def has_syncfs(self) -> bool:
        return sys.platform == "linux" and _kernel() >= (5, 8)  # older ones swallow its errors

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def copy_range(self, source: int, target: int, size: int, at: int, to: int) -> int:
        try:
            return os.copy_file_range(source, target, size, at, to)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _CANNOT_COPY:
                raise
            return os.pwrite(target, os.pread(source, min(size, _COPY_CHUNK), at), to)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def syncfs(self, fd: int) -> None:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fstat(self, fd: int) -> FileStatus:
        return _status(os.fstat(fd))

    def lstat(self, path: Path) -> FileStatus:
        return _status(os.lstat(path))

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def listdir(self, path: Path) -> list[str]:
        return os.listdir(path)  # noqa: PTH208 - names are wanted, not paths

    def file_system(self, path: Path) -> str:
        kind = _magic(path)
        if kind in _FILE_SYSTEMS:
            return _FILE_SYSTEMS[kind]
        # What has no disk of its own in this kernel is somebody else's, unless it is known not to.
        if kind and not os.major(path.stat().st_dev) and kind not in _WITHOUT_A_DISK:
            return f"a file system without a disk of this machine (type {kind:#x})"
        return "local"

    def lock(self, fd: int, offset: int) -> bool:
        return _taken(lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK, offset)))

    def unlock(self, fd: int, offset: int) -> None:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _range(fcntl.F_UNLCK, offset))

    def is_locked(self, fd: int, offset: int) -> bool:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _range(fcntl.F_WRLCK, offset))
        return found[:2] != struct.pack("h", fcntl.F_UNLCK)

    def flock(self, fd: int) -> bool:
        return _taken(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))


_CANNOT_COPY = frozenset(
    {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
)

_FILE_SYSTEMS = {
    0x6969: "an NFS file system",
    0x517B: "an SMB file system",
    0xFF534D42: "a CIFS file system",
    0xFE534D42: "an SMB file system",
    0x01021997: "a 9p file system",
    0x65735546: "a FUSE or virtiofs file system",
    0x00C36400: "a Ceph file system",
    0x5346414F: "an AFS file system",
    0x73757245: "a Coda file system",
    0x0BD00BD0: "a Lustre file system",
    0x47504653: "a GPFS file system",
    0x7461636F: "an OCFS2 file system",
    0x01161970: "a GFS2 file system",
    0x19830326: "a BeeGFS file system",
    0x20030528: "an OrangeFS file system",
    0x6B414653: "an AFS file system",
    0x0000564C: "an NCP file system",
    0x786F4256: "a shared folder of VirtualBox",
    0xBACBACBC: "a shared folder of VMware",
    0x7C7C6673: "a shared folder of Parallels",
}
"""By their type numbers, as the kernel's `statfs` gives them."""

_WITHOUT_A_DISK = frozenset(
    {
        0x01021994,  # tmpfs
        0x858458F6,  # ramfs
        0x794C7630,  # overlayfs, as containers have it
        0x9123683E,  # btrfs
        0x2FC12FC1,  # ZFS
        0xCA451A4E,  # bcachefs
        0xF15F,  # eCryptfs
        0x61756673,  # aufs
        0x24051905,  # UBIFS
    }
)
"""Those that are local though the device number of their files is none of a disk's."""

_KINDS = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "directory"}


def _status(found: os.stat_result) -> FileStatus:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    identity = (found.st_dev, found.st_ino)
    return FileStatus(identity, kind, found.st_nlink, found.st_size, found.st_mtime_ns)


def _magic(path: Path) -> int:
    """The type number that `statfs` reports; 0 where it cannot be asked."""
    if sys.platform != "linux":
        return 0
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).statfs(bytes(path), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(re.match("[0-9]*", minor)[0] or 0)  # type: ignore[index]  # it matches nothing at least


def _range(kind: int, offset: int) -> bytes:
    """The kernel's `struct flock` for one byte, as 64-bit Linux lays it out."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, offset, 1, 0)


def _taken(request: Callable[[], object]) -> bool:
    try:
        request()
    except (BlockingIOError, PermissionError):
        return False
    return True


OS: Port = _System()
"""The operating system's files."""
