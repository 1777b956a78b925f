"""Where the bytes are kept that a repair took from a log, and which of them nobody reported yet.

A report (`session/recovered`) is written after the cut, so a crash may come between the two. The
kept bytes outlive that, and the next opening reports them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import attrs

from runtime.events import SessionRecovered
from runtime.storage.files import exists, open_plain, read_all, write_file
from runtime.storage.layout import Layout
from runtime.storage.port import Port
from runtime.storage.tail import count_begun


class Quarantine(Protocol):
    """The dropped bytes of one session, by the offset that they stood at."""

    def at(self, offset: int) -> Iterator[tuple[str, bytes]]:
        """The name and the bytes of each piece that was cut at `offset`, the oldest first."""
        ...


@attrs.frozen
class FileQuarantine:
    """Quarantine files beside the log."""

    _port: Port
    _layout: Layout
    _session: str

    def at(self, offset: int) -> Iterator[tuple[str, bytes]]:
        number = 0
        while exists(self._port, path := self._layout.torn(self._session, offset, number)):
            yield path.name, self._read(path)
            number += 1

    def names(self) -> list[str]:
        """What all of the session's pieces are called."""
        if not exists(self._port, self._layout.folder):
            return []
        return self._layout.torn_names(self._port, self._session)

    def keep(self, offset: int, data: bytes) -> None:
        """Keep what stood from `offset` on, durably before the log is cut; the same only once."""
        kept = [found for _, found in self.at(offset)]
        if data in kept:  # by an opening that may have been killed before it synced the name
            self._port.sync_directory(self._layout.folder)
            return
        path = self._layout.torn(self._session, offset, len(kept))
        write_file(self._port, path, data, sync=True)

    def _read(self, path: Path) -> bytes:
        fd = open_plain(self._port, path, os.O_RDONLY)
        try:
            return read_all(self._port, fd)
        finally:
            self._port.close(fd)


def lost_note(events: int) -> bytes:
    """A piece for events of which no byte is left, though the log was known to hold them."""
    return b"%d events are lost: the log ended behind them when it was last closed\n" % events


_LOST = re.compile(rb"([0-9]{1,18}) events are lost: [^\n]*\n")


def unreported(
    quarantine: Quarantine, offsets: Iterable[int], reason: str
) -> SessionRecovered | None:
    """A report of what was cut at `offsets`, near which the log ends now.

    A `session/recovered` that named any of it would stand behind that place, so none does.
    Several names are joined by commas. Events that a note says are lost count as records of no
    bytes.
    """
    found = [piece for offset in offsets for piece in quarantine.at(offset)]
    if not found:
        return None
    lost = [_LOST.fullmatch(data) for _, data in found]
    cut = [data for (_, data), note in zip(found, lost, strict=True) if note is None]
    return SessionRecovered(
        sum(map(len, cut)),
        sum(map(count_begun, cut)) + sum(int(note[1]) for note in lost if note is not None),
        reason if cut else "lost-events",
        ",".join(name for name, _ in found),
    )
