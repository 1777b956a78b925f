"""A port on which chosen operations fail."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from refold.faults.recording import RecordingDisk
from refold.runtime.storage import FileStatus, Port

OPERATIONS = tuple(name for name, call in vars(Port).items() if name[0] != "_" and callable(call))
"""What a `Fault` can strike: every call of a `Port`."""

SIZED = ("pread", "pwrite", "copy_range")
"""Those that may do less than they were asked for."""


def _check_operation(_fault: Fault, _attribute: object, operation: str) -> None:
    if operation not in OPERATIONS:
        known = ", ".join(OPERATIONS)
        raise ValueError(f"a port has no operation {operation!r}, so it cannot fail; name {known}")


def _check_short(fault: Fault, _attribute: object, short: int | None) -> None:
    if short is not None and (fault.error is not None or fault.operation not in SIZED):
        raise ValueError(
            f"{fault.operation} cannot be short with error {fault.error}: give an error or short=, "
            f"and short= only for {', '.join(SIZED)}"
        )
    if short is None and fault.error is None:
        raise ValueError(f"nothing would happen to {fault.operation}: give an errno, or short=")


@attrs.define
class Fault:
    """What is to happen to calls of one operation of a `Port`, one of `OPERATIONS`.

    The first `after` calls go well; then `times` of them (None: every one) raise `OSError` with
    the errno `error`, or, without one, do no more than `short` bytes. `name` is a pattern, such
    as `*.jsonl`, that the name of the file must match. Raises `ValueError` for a fault that could
    never strike or would do nothing.
    """

    operation: str = attrs.field(validator=_check_operation)
    error: int | None = None
    short: int | None = attrs.field(default=None, kw_only=True, validator=_check_short)
    after: int = attrs.field(default=0, kw_only=True)
    times: int | None = attrs.field(default=1, kw_only=True)
    name: str = attrs.field(default="*", kw_only=True)

    @property
    def is_spent(self) -> bool:
        return self.times == 0

    def strikes(self, operation: str, path: Path) -> bool:
        """Whether this call is one to fail; counts it."""
        if self.is_spent or operation != self.operation or not fnmatchcase(path.name, self.name):
            return False
        if self.after:
            self.after -= 1
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class FailingPort:
    """A `Port` in front of another, on which `faults` happen; more may be put in at any time.

    `calls` names every operation that was asked for, in order. Of several faults that strike at
    once the first counts. A sync that fails before a `RecordingDisk` loses there what it was to
    sync, as Linux has it.
    """

    def __init__(self, inner: Port, *faults: Fault) -> None:
        self.inner = inner
        self.faults = [*faults]
        self.calls: list[str] = []
        self._paths: dict[int, Path] = {}

    @property
    def has_range_locks(self) -> bool:
        return self.inner.has_range_locks

    @property
    def has_syncfs(self) -> bool:
        return self.inner.has_syncfs

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        self._meet("open", path)
        fd = self.inner.open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._meet("close", self._paths[fd])
        self.inner.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self.inner.pread(fd, self._size("pread", fd, size), offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return self.inner.pwrite(fd, data[: self._size("pwrite", fd, len(data))], offset)

    def copy_range(self, source: int, target: int, size: int, at: int, to: int) -> int:
        return self.inner.copy_range(source, target, self._size("copy_range", target, size), at, to)

    def fdatasync(self, fd: int) -> None:
        try:
            self._meet("fdatasync", self._paths[fd])
        except OSError:
            if isinstance(self.inner, RecordingDisk):
                self.inner.lose_sync(fd)
            raise
        self.inner.fdatasync(fd)

    def syncfs(self, fd: int) -> None:
        self._meet("syncfs", self._paths[fd])
        self.inner.syncfs(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        self._meet("ftruncate", self._paths[fd])
        self.inner.ftruncate(fd, size)

    def sync_directory(self, path: Path) -> None:
        self._meet("sync_directory", path)
        self.inner.sync_directory(path)

    def fstat(self, fd: int) -> FileStatus:
        self._meet("fstat", self._paths[fd])
        return self.inner.fstat(fd)

    def lstat(self, path: Path) -> FileStatus:
        self._meet("lstat", path)
        return self.inner.lstat(path)

    def mkdir(self, path: Path) -> None:
        self._meet("mkdir", path)
        self.inner.mkdir(path)

    def link(self, source: Path, target: Path) -> None:
        self._meet("link", target)
        self.inner.link(source, target)

    def unlink(self, path: Path) -> None:
        self._meet("unlink", path)
        self.inner.unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self._meet("rename", target)
        self.inner.rename(source, target)

    def listdir(self, path: Path) -> list[str]:
        self._meet("listdir", path)
        return self.inner.listdir(path)

    def file_system(self, path: Path) -> str:
        self._meet("file_system", path)
        return self.inner.file_system(path)

    def lock(self, fd: int, offset: int) -> bool:
        self._meet("lock", self._paths[fd])
        return self.inner.lock(fd, offset)

    def unlock(self, fd: int, offset: int) -> None:
        self._meet("unlock", self._paths[fd])
        self.inner.unlock(fd, offset)

    def is_locked(self, fd: int, offset: int) -> bool:
        self._meet("is_locked", self._paths[fd])
        return self.inner.is_locked(fd, offset)

    def flock(self, fd: int) -> bool:
        self._meet("flock", self._paths[fd])
        return self.inner.flock(fd)

    def _size(self, operation: str, fd: int, size: int) -> int:
        fault = self._meet(operation, self._paths[fd])
        return size if fault is None or fault.short is None else min(size, fault.short)

    def _meet(self, operation: str, path: Path) -> Fault | None:
        """The fault that strikes this call; raises it if it is an error."""
        self.calls.append(operation)
        fault = next((one for one in self.faults if one.strikes(operation, path)), None)
        if fault is not None and fault.error is not None:
            raise OSError(fault.error, os.strerror(fault.error), str(path))
        return fault
