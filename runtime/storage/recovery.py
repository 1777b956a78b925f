"""Repair of a log that is opened for writing, by the holder of its lock (design 5.2).

Every step can be repeated: a crash between any two leaves a log that the next opening repairs the
same way, and a quarantine file that it reports.
"""

from __future__ import annotations

from runtime.events import SessionRecovered
from runtime.storage.files import CHUNK, read_all, write_all
from runtime.storage.layout import Layout
from runtime.storage.port import Port
from runtime.storage.quarantine import FileQuarantine, Quarantine, unreported
from runtime.storage.tail import Scan


def recover(port: Port, layout: Layout, fd: int, found: Scan) -> SessionRecovered | None:
    """Cut the torn tail, make what stands durable, and report what this and a crashed opening cut.

    Raises `OSError`; the log may then be opened again.
    """
    quarantine = FileQuarantine(port, layout, found.header.id)
    cut = found.end if found.torn is None else found.torn.offset
    if found.torn is not None and found.torn.dropped_bytes:
        quarantine.keep(cut, read_all(port, fd, cut))
        port.ftruncate(fd, cut)
        port.fdatasync(fd)
    _rewrite_undurable(port, fd, found, cut)
    if found.dur < 0:
        port.sync_directory(layout.folder)
    return report_of(quarantine, found)


def report_of(quarantine: Quarantine, found: Scan) -> SessionRecovered | None:
    """What an opening that found this log, and those before it that crashed, took from it."""
    reason = "unreported" if found.torn is None else found.torn.reason
    # Beside the log's end: before a newline that was put back, and before a header that is new.
    offsets = (found.end, found.end - 1) if found.records else (found.end, 0)
    report = unreported(quarantine, offsets, reason)
    if report is None and found.torn is not None:
        return SessionRecovered(0, 0, reason)
    return report


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
