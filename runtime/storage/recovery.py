"""Repair of a log that is opened for writing, by the holder of its lock (design 5.2).

Every step can be repeated: a crash between any two leaves a log that the next opening repairs the
same way, and a quarantine file that it reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from runtime.events import SessionRecovered
from runtime.storage.files import (
    CHUNK,
    copy_all,
    exists,
    open_plain,
    read_all,
    remove,
    write_all,
    write_file,
)
from runtime.storage.layout import Layout
from runtime.storage.port import Port
from runtime.storage.tail import Scan, count_begun


def recover(port: Port, layout: Layout, fd: int, found: Scan) -> SessionRecovered | None:
    """Cut the torn tail, make what stands durable, and report what this and a crashed opening cut.

    Raises `OSError`; the log may then be opened again.
    """
    cut = found.end if found.torn is None else found.torn.offset
    if found.torn is not None and found.torn.dropped_bytes:
        quarantine(port, layout, found.header.id, cut, read_all(port, fd, cut))
        port.ftruncate(fd, cut)
        port.fdatasync(fd)
    _rewrite_undurable(port, fd, found, cut)
    if found.dur < 0:
        port.sync_directory(layout.folder)
    return _report(port, layout, found)


def quarantine(port: Port, layout: Layout, session_id: str, offset: int, data: bytes) -> None:
    """Keep dropped bytes in a file of their own; the same bytes only once."""
    number = 0
    for path in _cut_at(port, layout, session_id, offset):
        if _read(port, path) == data:
            return
        number += 1
    write_file(port, layout.torn(session_id, offset, number), data, sync=True)


def unreported(
    port: Port, layout: Layout, session_id: str, offsets: Iterable[int], reason: str
) -> SessionRecovered | None:
    """A report of the quarantine files cut at `offsets`, near which the log ends now.

    A `session/recovered` that named one of them would stand behind that place, so none does.
    Several names are joined by commas.
    """
    paths = [path for offset in offsets for path in _cut_at(port, layout, session_id, offset)]
    if not paths:
        return None
    dropped = [_read(port, path) for path in paths]
    return SessionRecovered(
        sum(map(len, dropped)),
        sum(map(count_begun, dropped)),
        reason,
        ",".join(path.name for path in paths),
    )


def _cut_at(port: Port, layout: Layout, session_id: str, offset: int) -> Iterator[Path]:
    number = 0
    while exists(port, path := layout.torn(session_id, offset, number)):
        yield path
        number += 1


def move_to_new_inode(port: Port, layout: Layout, session_id: str, fd: int) -> None:
    """Put a copy in the log's place, so that whoever else has it open writes into nothing.

    Another writer acknowledges nothing once its file has lost its name. What it wrote between the
    copy and that moment is taken along.
    """
    path, draft = layout.log(session_id), layout.copy(session_id)
    remove(port, draft)
    target = port.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        size = port.fstat(fd).size
        copy_all(port, fd, target, range(size), 0)
        port.fdatasync(target)
        port.rename(draft, path)
        copy_all(port, fd, target, range(size, port.fstat(fd).size), size)
        port.fdatasync(target)
    finally:
        port.close(target)
    port.sync_directory(layout.folder)


def _rewrite_undurable(port: Port, fd: int, found: Scan, end: int) -> None:
    # A failed sync can leave pages that the cache shows and the disk never got, marked clean.
    # Writing the same bytes again marks them dirty; no crash on the way can lose anything.
    start = 0 if found.dur < 0 else _end_of(found, found.dur)
    for at in range(start, end, CHUNK):
        write_all(port, fd, read_all(port, fd, at, min(at + CHUNK, end)), at)
    if found.torn is not None and found.torn.missing_newline:
        write_all(port, fd, b"\n", end)
    port.fdatasync(fd)


def _end_of(found: Scan, seq: int) -> int:
    record = found.records[seq]
    return record.offset + record.length


def _report(port: Port, layout: Layout, found: Scan) -> SessionRecovered | None:
    reason = "unreported" if found.torn is None else found.torn.reason
    # Beside the log's end: before a newline that was put back, and before a header that is new.
    offsets = (found.end, found.end - 1) if found.records else (found.end, 0)
    report = unreported(port, layout, found.header.id, offsets, reason)
    if report is None and found.torn is not None:
        return SessionRecovered(0, 0, reason)
    return report


def _read(port: Port, path: Path) -> bytes:
    fd = open_plain(port, path, os.O_RDONLY, path)
    try:
        return read_all(port, fd)
    finally:
        port.close(fd)
