"""The index file: where a log's lines are, so that a long log need not be walked.

It is never trusted. It counts only if its own checksums fit, and if the log's bytes up to its end
have the checksum that they had when they were last verified; else the log is walked from its
start, as it is without one. From the index's end on it is walked anyway.
"""

from __future__ import annotations

import os
import sys
from array import array
from itertools import accumulate, pairwise
from pathlib import Path
from zlib import crc32

import attrs
import orjson

from refold.runtime.storage.errors import StoreRefused
from refold.runtime.storage.files import open_plain, read_all, write_file
from refold.runtime.storage.framing import is_whole, seal
from refold.runtime.storage.odd_lines import odd_lines
from refold.runtime.storage.port import Port
from refold.runtime.storage.walk import Index, LogEnd, Records

_VERSION = 2

_FEWEST = 1000
"""A log of fewer records is walked as fast as its index is read."""

_MOST_TYPES = 0xFFFF
"""An index file numbers the types with two bytes."""


@attrs.define
class SavedIndex:
    """The lines of a log up to a batch's end, where that is, and the CRC-32 of its bytes."""

    where: Index
    end: LogEnd
    log_crc: int

    def fits(self, data: bytes, start: int) -> bool:
        """Whether `data`, whose events begin at `start`, begins with the bytes that it is of."""
        if self.where.start != start or self.end.offset > len(data):
            return False
        return crc32(memoryview(data)[: self.end.offset]) == self.log_crc

    def extend(self, data: bytes, kinds: list[bytes], end: LogEnd) -> None:
        """Go on with lines of these types, after which the log ends at `end`."""
        where, at, offset, count = self.where, 0, self.end.offset, len(self.where)
        for kind in kinds:
            at = data.index(b"\n", at) + 1
            where.ends.append(offset + at)
            where.kinds.append(where.kind(kind))
        where.odd += odd_lines(data, where, count, offset)
        self.end, self.log_crc = end, crc32(data, self.log_crc)

    @classmethod
    def of(cls, records: Records, end: LogEnd, indexed: int) -> SavedIndex:
        """The index of a log's verified records, for going on with; a saved one has `indexed`."""
        where = records.where.first(len(records))
        where.odd += odd_lines(records.data, where, indexed)
        return cls(where, end, records.crc())

    @classmethod
    def of_new(cls, first: bytes) -> SavedIndex:
        """The index of a log that holds nothing but its header's line yet."""
        return cls(Index(len(first)), LogEnd(offset=len(first)), crc32(first))

    def is_worth_saving(self, saved_count: int) -> bool:
        """Whether enough has come since `saved_count` lines were, for the cost to stay small."""
        count, has_room = len(self.where), len(self.where.names) <= _MOST_TYPES
        return has_room and count >= _FEWEST and count >= saved_count * 9 // 8 + 1


def records_of(index: SavedIndex | None) -> Index:
    """The lines that an index has now, which it may go on without."""
    return Index(0) if index is None else index.where.first(len(index.where))


def write_index(port: Port, path: Path, saved: SavedIndex) -> None:
    """Replace the index file; advisory, so it is not synced."""
    where = saved.where
    lengths = array("I", (after - before for before, after in pairwise((where.start, *where.ends))))
    body = _little(lengths) + _little(array("H", where.kinds))
    fields = {
        "version": _VERSION,
        "count": len(where),
        "start": where.start,
        "link": (saved.end.next_seq, saved.end.chain, saved.end.dur),
        "logCrc": saved.log_crc,
        "bodyCrc": crc32(body),
        "names": [name.decode("latin-1") for name in where.names],
        "odd": where.odd,
    }
    first = seal(b"," + orjson.dumps(fields)[1:])[0]
    write_file(port, path, first + body, sync=False)


def read_index(port: Port, path: Path) -> SavedIndex | None:
    """What an index file says, or None if there is none that is whole."""
    try:
        fd = open_plain(port, path, os.O_RDONLY)
    except (OSError, StoreRefused):
        return None
    try:
        data = read_all(port, fd)
    finally:
        port.close(fd)
    return _parse(data)


def _parse(data: bytes) -> SavedIndex | None:
    end = data.find(b"\n")
    if end < 0 or not is_whole(data, 0, end, 0):
        return None
    fields, body = orjson.loads(data[:end]), data[end + 1 :]
    if fields.get("version") != _VERSION or crc32(body) != fields["bodyCrc"]:
        return None
    split = 4 * fields["count"]
    lengths, kinds = _from_little("I", body[:split]), _from_little("H", body[split:])
    ends = array("Q", accumulate(lengths, initial=fields["start"]))[1:]
    names = [name.encode("latin-1") for name in fields["names"]]
    where = Index(fields["start"], ends, array("I", kinds), names, fields["odd"])
    next_seq, chain, dur = fields["link"]
    return SavedIndex(
        where, LogEnd(next_seq, where.begin(len(where)), chain, dur), fields["logCrc"]
    )


def _little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_little(code: str, data: bytes) -> array[int]:
    values: array[int] = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
