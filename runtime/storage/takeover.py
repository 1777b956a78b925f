"""Taking a log from an owner that may be alive, by force (design 5.2).

There is no takeover while a lock is held; but a lock file can be replaced, and then its holder
does not know that it is no owner any more. So the new owner goes on in a copy, and the old one
writes into nothing. Who acknowledges something has seen its file still bear the log's name after
the write, and the copy takes along what was written until the name was gone: nothing acknowledged
is lost, however many take over at once, and wherever one of them is killed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from runtime.storage.errors import SessionBusy
from runtime.storage.files import copy_all, exists, remove
from runtime.storage.layout import Layout
from runtime.storage.port import Port


def take_over(port: Port, layout: Layout, session_id: str, fd: int) -> int:
    """Put a copy in the place of the log that is open at `fd`; returns the copy's descriptor.

    Raises `SessionBusy` where somebody else was faster, and `OSError`; the log then has its name.
    """
    draft, target = open_draft(port, layout, session_id)
    try:
        size = port.fstat(fd).size
        copy_all(port, fd, target, range(size), 0)
        _take_name(port, layout, session_id, fd)
        try:
            copy_all(port, fd, target, range(size, port.fstat(fd).size), size)
            port.fdatasync(target)
            port.link(draft, layout.log(session_id))
        except BaseException:
            _give_name_back(port, layout, session_id)
            raise
    except FileExistsError:
        port.close(target)
        raise SessionBusy(session_id, None, None, None) from None
    except BaseException:
        port.close(target)
        raise
    finally:
        remove(port, draft)
    port.sync_directory(layout.folder)
    remove(port, layout.aside(session_id))
    port.sync_directory(layout.folder)
    return target


def complete(port: Port, layout: Layout, session_id: str) -> None:
    """End a fork or a takeover that a crash cut short: the log bears its name, and no other."""
    log, aside = layout.log(session_id), layout.aside(session_id)
    if exists(port, aside):
        if exists(port, log):  # the copy is whole, but its name may not be durable yet
            port.sync_directory(layout.folder)
            remove(port, aside)
        else:
            port.rename(aside, log)
        port.sync_directory(layout.folder)
    if exists(port, log) and port.lstat(log).links > 1:
        for twin in layout.twins(port, session_id):
            if port.lstat(twin).identity == port.lstat(log).identity:
                remove(port, twin)


def open_draft(port: Port, layout: Layout, session_id: str) -> tuple[Path, int]:
    """A new file beside the log that nobody else writes to, and its descriptor."""
    for number in count():
        path = layout.copy(session_id, number)
        with suppress(FileExistsError):
            return path, port.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    raise AssertionError("some number is free")


def _take_name(port: Port, layout: Layout, session_id: str, fd: int) -> None:
    aside = layout.aside(session_id)
    try:
        port.rename(layout.log(session_id), aside)
    except FileNotFoundError:
        raise SessionBusy(session_id, None, None, None) from None
    if port.lstat(aside).identity != port.fstat(fd).identity:  # another took over meanwhile
        _give_name_back(port, layout, session_id)
        raise SessionBusy(session_id, None, None, None)


def _give_name_back(port: Port, layout: Layout, session_id: str) -> None:
    if not exists(port, layout.log(session_id)):
        with suppress(FileNotFoundError):  # somebody else did
            port.rename(layout.aside(session_id), layout.log(session_id))
