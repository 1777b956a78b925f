"""Chosen calls fail, and no others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.faults import OPERATIONS, FailingPort, Fault
from refold.runtime.storage import MemoryPort, Port

FILE, OTHER = Path("/there.jsonl"), Path("/there.head")


def port_with(*faults: Fault) -> FailingPort:
    return FailingPort(MemoryPort(), *faults)


def opened(port: Port, path: Path = FILE) -> int:
    return port.open(path, os.O_RDWR | os.O_CREAT)


CALLS: dict[str, Callable[[Port, int], object]] = {
    "close": lambda port, fd: port.close(fd),
    "pread": lambda port, fd: port.pread(fd, 1, 0),
    "pwrite": lambda port, fd: port.pwrite(fd, b"x", 0),
    "copy_range": lambda port, fd: port.copy_range(fd, fd, 1, 0, 1),
    "fdatasync": lambda port, fd: port.fdatasync(fd),
    "syncfs": lambda port, fd: port.syncfs(fd),
    "ftruncate": lambda port, fd: port.ftruncate(fd, 0),
    "sync_directory": lambda port, fd: port.sync_directory(FILE.parent),
    "fstat": lambda port, fd: port.fstat(fd),
    "lstat": lambda port, fd: port.lstat(FILE),
    "mkdir": lambda port, fd: port.mkdir(Path("/new")),
    "link": lambda port, fd: port.link(FILE, OTHER),
    "unlink": lambda port, fd: port.unlink(FILE),
    "rename": lambda port, fd: port.rename(FILE, OTHER),
    "listdir": lambda port, fd: port.listdir(FILE.parent),
    "file_system": lambda port, fd: port.file_system(FILE),
    "lock": lambda port, fd: port.lock(fd, 0),
    "unlock": lambda port, fd: port.unlock(fd, 0),
    "is_locked": lambda port, fd: port.is_locked(fd, 0),
    "flock": lambda port, fd: port.flock(fd),
    "open": lambda port, fd: opened(port),
}


@pytest.mark.parametrize("operation", CALLS)
def test_every_operation_can_fail_once_and_then_does_what_the_inner_one_does(
    operation: str,
) -> None:
    port, plain = (
        port_with(Fault(operation, errno.EIO, after=int(operation == "open"))),
        MemoryPort(),
    )
    fd, same = opened(port), opened(plain)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        CALLS[operation](port, fd)
    assert caught.value.errno == errno.EIO
    assert CALLS[operation](port, fd) == CALLS[operation](plain, same)
    assert port.calls.count(operation) == 2 + (operation == "open")


def test_what_a_port_can_do_is_what_the_inner_one_can() -> None:
    port = port_with()
    assert (port.has_range_locks, port.has_syncfs) == (True, False)


def test_the_operations_are_those_of_a_port() -> None:
    assert {*OPERATIONS} == {*CALLS}


@pytest.mark.parametrize("name", ["bogus", "fsync", "write", "", "has_syncfs", "__init__"])
def test_a_fault_that_could_never_strike_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"no operation .* name open, close, .*fdatasync"):
        Fault(name, errno.EIO)


def test_a_fault_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would happen to pwrite"):
        Fault("pwrite")
    with pytest.raises(ValueError, match="only for pread, pwrite, copy_range"):
        Fault("fdatasync", short=3)
    with pytest.raises(ValueError, match="an error or short="):
        Fault("pwrite", errno.EIO, short=3)


def test_the_third_call_alone_fails() -> None:
    port = port_with(Fault("pwrite", errno.ENOSPC, after=2))
    fd = opened(port)
    port.pwrite(fd, b"1", 0)
    port.pwrite(fd, b"2", 1)
    with pytest.raises(OSError, match="No space"):
        port.pwrite(fd, b"3", 2)
    port.pwrite(fd, b"4", 2)
    assert port.pread(fd, 9, 0) == b"124"


def test_every_call_fails_from_then_on() -> None:
    fault = Fault("pwrite", errno.EROFS, times=None)
    port = port_with(fault)
    fd = opened(port)
    for _ in range(5):
        with pytest.raises(OSError, match="Read-only"):
            port.pwrite(fd, b"x", 0)
    assert not fault.is_spent


def test_a_short_operation_does_so_much_and_no_more() -> None:
    port = port_with(
        Fault("pwrite", short=3), Fault("pread", short=2), Fault("copy_range", short=1)
    )
    fd = opened(port)
    assert port.pwrite(fd, b"hello", 0) == 3
    assert port.pread(fd, 9, 0) == b"he"
    assert port.copy_range(fd, fd, 3, 0, 3) == 1
    assert port.pread(fd, 9, 0) == b"helh"


def test_a_fault_strikes_files_of_its_name_only() -> None:
    fault = Fault("fdatasync", errno.EIO, name="*.head")
    port = port_with(fault)
    port.fdatasync(opened(port))
    assert not fault.is_spent
    with pytest.raises(OSError, match="Input/output"):
        port.fdatasync(opened(port, OTHER))
    assert fault.is_spent
