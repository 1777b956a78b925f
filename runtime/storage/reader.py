"""Following a log through a descriptor of one's own (design 3.3, 5.2)."""

from __future__ import annotations

from pathlib import Path

from runtime.storage.errors import ForeignLog, LogCorrupt
from runtime.storage.files import read_all
from runtime.storage.framing import Record
from runtime.storage.port import Port
from runtime.storage.tail import check_seed_end, read_header
from runtime.storage.walk import Link, Records, Walk, walk


class LogReader:
    """Reads what a writer appends to one log, verifying every line; made by `JsonlFolder`.

    It takes no lock and trusts nothing but the bytes. `bytes_read` counts them.
    """

    def __init__(self, port: Port, fd: int, path: Path, session_id: str) -> None:
        """Takes over `fd`. Raises as `read_header` does, and `ForeignLog`."""
        self._port = port
        self._fd = fd
        self._path = path
        first = self._first_line()
        self.header, _, foreign = read_header(first, session_id, path=str(path))
        if foreign:
            raise ForeignLog(session_id)
        self.bytes_read = len(first)
        self._offset = len(first)
        self._link = Link()

    def read_new(self, max_bytes: int | None = None) -> list[Record]:
        """The records of `read_batches`, all built."""
        return list(self.read_batches(max_bytes))

    def read_batches(self, max_bytes: int | None = None) -> Records:
        """The records of the batches that were completed since the last call.

        Each is built when it is asked for; `select` passes over types that are not wanted. With
        `max_bytes`, about so many at most, but at least one batch if there is one: call again
        until none is left. Raises `LogCorrupt` where the log does not go on as it should, and
        `LegacyEvent`.
        """
        size = self._port.fstat(self._fd).size
        if size < self._offset:
            raise self._corrupt(0, "a log that became shorter")
        window = size - self._offset if max_bytes is None else max_bytes
        while True:
            found = self._walk(min(self._offset + window, size))
            if found.whole != self._link or self._offset + window >= size:
                return self._advance(found)
            window *= 2

    def reread(self, offset: int, length: int) -> bytes:
        """The bytes of a record's line again, framing and newline included."""
        return self._read(offset, offset + length)

    def close(self) -> None:
        """Give the descriptor back."""
        self._port.close(self._fd)

    def _first_line(self) -> bytes:
        data, end = b"", -1
        while end < 0:
            part = self._port.pread(self._fd, 4096, len(data))
            if not part:
                return data
            data, end = data + part, (data + part).find(b"\n")
        return data[: end + 1]

    def _walk(self, end: int) -> Walk:
        found = walk(self._read(self._offset, end), 0, self._link)
        if found.problem is not None:
            raise self._corrupt(found.offset(found.reached.seq), found.problem, found.reached.seq)
        return found

    def _advance(self, found: Walk) -> Records:
        records = found.records(self._offset)
        seeded = (self.header.seed_length or 0) - self._link.seq
        if 0 < seeded <= len(records):
            check_seed_end(self.header, records[seeded - 1], str(self._path))
        self._offset += found.offset(found.whole.seq)
        self._link = found.whole
        return records

    def _read(self, start: int, end: int) -> bytes:
        data = read_all(self._port, self._fd, start, end)
        self.bytes_read += len(data)
        return data

    def _corrupt(self, offset: int, found: str, seq: int | None = None) -> LogCorrupt:
        expected = self._link.seq if seq is None else seq
        return LogCorrupt(str(self._path), self._offset + offset, expected + 2, expected, found)
