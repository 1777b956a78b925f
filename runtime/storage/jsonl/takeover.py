"""Taking a log from an owner that may be alive, by force.

There is no takeover while a lock is held; but a lock file can be replaced, and then its holder
does not know that it is no owner any more. So the new owner goes on in a copy, and the old one
writes into nothing. Who acknowledges something has seen its file still bear the log's name after
the write, and the copy takes along what was written until the name was gone. One at a time does
that, by a lock on the log itself: nothing acknowledged is lost, wherever one of them is killed.

The order, and what a crash after each step leaves:

1. lock the log's own file, then see that it still bears the log's name: of two that take it over
   one goes on, and no lock file that is replaced meanwhile makes it two;
2. copy what stands there to `ID.copy-N`, a new file: the log is as it was, and a draft beside it;
3. rename `ID.jsonl` to `ID.aside`: the log has no name. Who reads it finds it under the other, and
   the old owner sees at its next look that it is fenced; the next opening gives the name back
   (`complete`);
4. copy what the old owner wrote between 2 and 3, sync the copy: as after 3;
5. link the copy to `ID.jsonl`, remove the draft's name: two files, and the one that bears the name
   has everything; the next opening removes the other, once the name is durable;
6. sync the folder, remove `ID.aside`, sync it again: the copy is the log.

Before 5 only the old file can be the log, and from then on only the copy: a link is all or nothing.
"""

from __future__ import annotations

import os

from refold.runtime.storage.errors import SessionBusy
from refold.runtime.storage.files import copy_all, exists, open_draft, open_plain, remove
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.port import Port


def take_over(port: Port, names: FolderNames, session_id: str, fd: int) -> int:
    """Put a copy in the place of the log that is open at `fd`; returns the copy's descriptor.

    Raises `SessionBusy` where somebody else takes over or has, and `OSError`; the log then has its
    name. Others are kept out until `fd` is closed.
    """
    _claim(port, names, session_id, fd)
    draft, target = open_draft(port, names.copy(session_id))
    try:
        _lock(port, target)
        size = port.fstat(fd).size
        copy_all(port, fd, target, range(size), 0)
        port.rename(names.log(session_id), names.aside(session_id))
        try:
            copy_all(port, fd, target, range(size, port.fstat(fd).size), size)
            port.fdatasync(target)
            port.link(draft, names.log(session_id))
        except BaseException:
            port.rename(names.aside(session_id), names.log(session_id))
            raise
        remove(port, draft)
        _end(port, names, session_id)
        if port.has_range_locks:
            port.unlock(target, 0)
    except BaseException:
        remove(port, draft)
        port.close(target)  # or its lock would keep everybody out
        raise
    return target


def complete(port: Port, names: FolderNames, session_id: str) -> None:
    """End a fork or a takeover that a crash cut short: the log bears its name, and no other.

    Raises `SessionBusy` while somebody takes the log over.
    """
    log, aside = names.log(session_id), names.aside(session_id)
    if exists(port, aside):
        fd = open_plain(port, aside, os.O_RDWR)
        try:
            if not _lock(port, fd):
                raise SessionBusy(session_id)
            _end(port, names, session_id)
        finally:
            port.close(fd)
    if exists(port, log) and port.lstat(log).links > 1:
        for twin in names.twins(port, session_id):
            if port.lstat(twin).identity == port.lstat(log).identity:
                remove(port, twin)


def _end(port: Port, names: FolderNames, session_id: str) -> None:
    log, aside = names.log(session_id), names.aside(session_id)
    if exists(port, log):  # the copy is whole, but its name may not be durable yet
        port.sync_directory(names.folder)
        remove(port, aside)
    elif exists(port, aside):
        port.rename(aside, log)
    port.sync_directory(names.folder)


def _claim(port: Port, names: FolderNames, session_id: str, fd: int) -> None:
    """Be the only one that takes this very file over, while it is the log."""
    log = names.log(session_id)
    held = _lock(port, fd)  # before its name is looked at, or both may be another's by then
    if not (held and exists(port, log) and port.lstat(log).identity == port.fstat(fd).identity):
        raise SessionBusy(session_id)


def _lock(port: Port, fd: int) -> bool:
    """Lock the log's own file, which no replaced lock file undoes; True where nobody can."""
    return not port.has_range_locks or port.lock(fd, 0)
