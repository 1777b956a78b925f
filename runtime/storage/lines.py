"""Reading one stored log's lines wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import attrs

from refold.runtime.storage.files import CHUNK, read_all
from refold.runtime.storage.framing import Record, record_at
from refold.runtime.storage.port import Port
from refold.runtime.storage.session_header import HEADER_BYTES
from refold.runtime.storage.walk import Index


class Lines(Protocol):
    """The lines of one log: its header, then its records in order.

    `name` is what errors call the log. Reading raises `OSError` or a store's own errors.
    """

    @property
    def name(self) -> str: ...

    def first(self) -> bytes:
        """The header's line with its newline, or what there is of it.

        Of a file not many bytes more than `HEADER_BYTES` are read for it, however large it is.
        """
        ...

    def after(self, seq: int, offset: int, size: int | None) -> bytes | None:
        """From the line of `seq` on, which starts `offset` bytes into the log.

        At least `size` bytes where there are so many, by default all; the last line may be cut.
        None if the log ends before that place.
        """
        ...

    def is_current(self) -> bool:
        """Whether these are still the session's; a repair or another program may replace them."""
        ...

    def close(self) -> None:
        """Give back what reading holds."""
        ...


class FileLines:
    """The lines of a file that is open at `fd`, which this takes over."""

    def __init__(self, port: Port, fd: int, path: Path) -> None:
        self._port, self._fd, self._path = port, fd, path

    @property
    def name(self) -> str:
        return str(self._path)

    def first(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size < HEADER_BYTES:
            part = self._port.pread(self._fd, max(4096, size), size)  # twice as much each time
            line, newline, _ = part.partition(b"\n")
            parts += [line, newline]
            size += len(part)
            if newline or not part:
                break
        return b"".join(parts)

    def after(self, seq: int, offset: int, size: int | None) -> bytes | None:
        del seq  # a file is read by its bytes
        end = self._port.fstat(self._fd).size
        if end < offset:
            return None
        return read_all(
            self._port, self._fd, offset, end if size is None else min(end, offset + size)
        )

    def is_current(self) -> bool:
        try:
            named = self._port.lstat(self._path)
        except OSError:  # what is the matter is said by whoever opens it anew
            return False
        return named.identity == self._port.fstat(self._fd).identity

    def close(self) -> None:
        self._port.close(self._fd)


@attrs.frozen
class StoredRecords:
    """The records that stood in a log when it was opened, read from the store when asked for.

    `lines` gives what they are read from, and raises `LogClosed` once the log is closed.
    """

    _lines: Callable[[], Lines]
    _index: Index

    def since_step(self, earlier: Collection[str]) -> Iterator[Record]:
        """All records from the last sealed step on, and before it those of the `earlier` types.

        What must not be passed over whatever its type is among them; see `odd_lines`.
        """
        return self._read(self._index.since_step(earlier))

    def _read(self, places: Iterable[int]) -> Iterator[Record]:
        data, base, ends = b"", 0, self._index.ends
        for place in places:
            start, end = self._index.begin(place), ends[place]
            if end > base + len(data):
                size = max(end, min(start + CHUNK, ends[-1])) - start
                data, base = self._lines().after(place, start, size) or b"", start
            yield record_at(data, start - base, end - 1 - base, base)
