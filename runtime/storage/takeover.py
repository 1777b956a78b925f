"""Taking a log from an owner that may be alive, by force (design 5.2).

There is no takeover while a lock is held; but a lock file can be replaced, and then its holder
does not know that it is no owner any more. So the new owner goes on in a copy, and the old one
writes into nothing. Who acknowledges something has seen its file still bear the log's name after
the write, and the copy takes along what was written until the name was gone. One at a time does
that, by a lock on the log itself: nothing acknowledged is lost, wherever one of them is killed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from runtime.storage.errors import SessionBusy
from runtime.storage.files import copy_all, exists, open_plain, remove
from runtime.storage.layout import Layout
from runtime.storage.port import Port


def take_over(port: Port, layout: Layout, session_id: str, fd: int) -> int:
    """Put a copy in the place of the log that is open at `fd`; returns the copy's descriptor.

    Raises `SessionBusy` where somebody else takes over or has, and `OSError`; the log then has its
    name. Others are kept out until `fd` is closed.
    """
    _claim(port, layout, session_id, fd)
    draft, target = open_draft(port, layout, session_id)
    try:
        _lock(port, target)
        size = port.fstat(fd).size
        copy_all(port, fd, target, range(size), 0)
        port.rename(layout.log(session_id), layout.aside(session_id))
        try:
            copy_all(port, fd, target, range(size, port.fstat(fd).size), size)
            port.fdatasync(target)
            port.link(draft, layout.log(session_id))
        except BaseException:
            port.rename(layout.aside(session_id), layout.log(session_id))
            raise
        remove(port, draft)
        _end(port, layout, session_id)
        if port.has_range_locks:
            port.unlock(target, 0)
    except BaseException:
        remove(port, draft)
        port.close(target)  # or its lock would keep everybody out
        raise
    return target


def complete(port: Port, layout: Layout, session_id: str) -> None:
    """End a fork or a takeover that a crash cut short: the log bears its name, and no other.

    Raises `SessionBusy` while somebody takes the log over.
    """
    log, aside = layout.log(session_id), layout.aside(session_id)
    if exists(port, aside):
        fd = open_plain(port, aside, os.O_RDWR)
        try:
            if not _lock(port, fd):
                raise SessionBusy(session_id, None, None, None)
            _end(port, layout, session_id)
        finally:
            port.close(fd)
    if exists(port, log) and port.lstat(log).links > 1:
        for twin in layout.twins(port, session_id):
            if port.lstat(twin).identity == port.lstat(log).identity:
                remove(port, twin)


def _end(port: Port, layout: Layout, session_id: str) -> None:
    log, aside = layout.log(session_id), layout.aside(session_id)
    if exists(port, log):  # the copy is whole, but its name may not be durable yet
        port.sync_directory(layout.folder)
        remove(port, aside)
    elif exists(port, aside):
        port.rename(aside, log)
    port.sync_directory(layout.folder)


def open_draft(port: Port, layout: Layout, session_id: str) -> tuple[Path, int]:
    """A new file beside the log that nobody else writes to, and its descriptor."""
    for number in count():
        path = layout.copy(session_id, number)
        with suppress(FileExistsError):
            return path, port.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    raise AssertionError("some number is free")


def _claim(port: Port, layout: Layout, session_id: str, fd: int) -> None:
    """Be the only one that takes this very file over, while it is the log."""
    log = layout.log(session_id)
    held = _lock(port, fd)  # before its name is looked at, or both may be another's by then
    if not (held and exists(port, log) and port.lstat(log).identity == port.fstat(fd).identity):
        raise SessionBusy(session_id, None, None, None)


def _lock(port: Port, fd: int) -> bool:
    """Lock the log's own file, which no replaced lock file undoes; True where nobody can."""
    return not port.has_range_locks or port.lock(fd, 0)
