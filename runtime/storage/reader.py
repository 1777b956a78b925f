"""Following a log beside its writer.

Through a descriptor of its own and without any state of the writer's: it sees what a stranger sees.
"""

from __future__ import annotations

import attrs

from refold.runtime.storage.errors import ForeignLog, LogCorrupt
from refold.runtime.storage.framing import Record, record_at
from refold.runtime.storage.lines import Lines
from refold.runtime.storage.scan import check_seed_end, read_header
from refold.runtime.storage.walk import LogEnd, Records, Walk, walk


class LogReader:
    """Reads what a writer appends to one log, verifying every line; made by a store.

    It takes no lock and trusts nothing but the bytes. `bytes_read` counts them.
    """

    def __init__(self, lines: Lines, session_id: str) -> None:
        """Takes over `lines`. Raises as `read_header` does, and `ForeignLog`."""
        self._lines = lines
        first = lines.first()
        self.header, _, foreign = read_header(first, session_id, path=lines.name)
        if foreign:
            raise ForeignLog(session_id)
        self.bytes_read = len(first)
        self.has_more = True
        """Whether the last reading left something that stood in the log then."""
        self._end = LogEnd(offset=len(first))

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
        window = max_bytes
        while True:
            data = self._read(self._end.next_seq, self._end.offset, window)
            found = self._walk(data)
            self.has_more = window is not None and len(data) >= window
            if found.whole.offset or window is None or len(data) < window:
                return self._advance(found)
            window *= 2

    def reread(self, record: Record) -> Record:
        """A record that was read, from the store again."""
        line = self._read(record.seq, record.offset, record.length)
        return record_at(line, 0, record.length - 1, record.offset)

    def is_current(self) -> bool:
        """Whether what is read is still the session's log; else only a new reader goes on."""
        return self._lines.is_current()

    def close(self) -> None:
        """Give back what reading holds."""
        self._lines.close()

    def _walk(self, data: bytes) -> Walk:
        found = walk(data, attrs.evolve(self._end, offset=0))
        if found.problem is not None:
            raise self._corrupt(found.reached.offset, found.problem, found.reached.next_seq)
        return found

    def _advance(self, found: Walk) -> Records:
        records = found.records(self._end.offset)
        seeded = (self.header.seed_length or 0) - self._end.next_seq
        if 0 < seeded <= len(records):
            check_seed_end(self.header, records[seeded - 1], self._lines.name)
        self._end = attrs.evolve(found.whole, offset=self._end.offset + found.whole.offset)
        return records

    def _read(self, seq: int, offset: int, size: int | None) -> bytes:
        data = self._lines.after(seq, offset, size)
        if data is None:
            raise self._corrupt(0, "a log that became shorter")
        self.bytes_read += len(data)
        return data

    def _corrupt(self, offset: int, found: str, seq: int | None = None) -> LogCorrupt:
        expected = self._end.next_seq if seq is None else seq
        at = self._end.offset + offset
        return LogCorrupt(self._lines.name, at, expected + 2, expected, found)
