"""Mending the end of a JSONL log that is opened for writing, by the holder of its lock.

The order, and what a crash after each step leaves:

1. write the torn bytes to a quarantine file, sync it and its name: the log is as it was, and the
   next opening finds the same tail; the bytes are kept once (`keep`), whoever comes again;
2. cut the log, sync it: it ends where its last whole batch does, and a quarantine file stands
   beside it that no event reports;
3. write again what no line calls durable, and the newline that a whole last line lost; sync: the
   same bytes, so a crash within it changes nothing;
4. report: the opening's first batch tells of every quarantine file at the log's end, those of
   openings that crashed before they could, too (`report_of`). That batch moves the end, so nothing
   is told twice.

So bytes leave the log only once they are safe elsewhere, and are reported until a report is safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs

from refold.runtime.events import SessionRecovered
from refold.runtime.storage.files import CHUNK, exists, open_plain, read_all, write_all, write_file
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.port import Port
from refold.runtime.storage.quarantine import report_of
from refold.runtime.storage.scan import Scan


@attrs.frozen
class FileQuarantine:
    """Quarantine files beside the log."""

    _port: Port
    _names: FolderNames
    _session: str

    def at(self, offset: int) -> Iterator[tuple[str, bytes]]:
        number = 0
        while exists(self._port, path := self._names.torn(self._session, offset, number)):
            yield path.name, self._read(path)
            number += 1

    def names(self) -> list[str]:
        """What all of the session's pieces are called."""
        if not exists(self._port, self._names.folder):
            return []
        return self._names.torn_names(self._port, self._session)

    def keep(self, offset: int, data: bytes) -> None:
        """Keep what stood from `offset` on, durably before the log is cut; the same only once."""
        kept = [found for _, found in self.at(offset)]
        if data in kept:  # by an opening that may have been killed before it synced the name
            self._port.sync_directory(self._names.folder)
            return
        path = self._names.torn(self._session, offset, len(kept))
        write_file(self._port, path, data, sync=True)

    def _read(self, path: Path) -> bytes:
        fd = open_plain(self._port, path, os.O_RDONLY)
        try:
            return read_all(self._port, fd)
        finally:
            self._port.close(fd)


def recover(port: Port, names: FolderNames, fd: int, found: Scan) -> SessionRecovered | None:
    """Cut the torn tail, make what stands durable, and report what this and a crashed opening cut.

    Raises `OSError`; the log may then be opened again.
    """
    quarantine = FileQuarantine(port, names, found.header.id)
    cut = found.end.offset if found.torn is None else found.torn.offset
    if found.torn is not None and found.torn.dropped_bytes:
        quarantine.keep(cut, read_all(port, fd, cut))
        port.ftruncate(fd, cut)
        port.fdatasync(fd)
    _rewrite_undurable(port, fd, found, cut)
    if found.end.dur < 0:
        port.sync_directory(names.folder)
    return report_of(quarantine, found)


def _rewrite_undurable(port: Port, fd: int, found: Scan, end: int) -> None:
    # A failed sync can leave pages that the cache shows and the disk never got, marked clean.
    # Writing the same bytes again marks them dirty; no crash on the way can lose anything.
    start = 0 if found.end.dur < 0 else _end_of(found, found.end.dur)
    for at in range(start, end, CHUNK):
        write_all(port, fd, read_all(port, fd, at, min(at + CHUNK, end)), at)
    if found.torn is not None and found.torn.missing_newline:
        write_all(port, fd, b"\n", end)
    port.fdatasync(fd)


def _end_of(found: Scan, seq: int) -> int:
    record = found.records[seq]
    return record.offset + record.length
