"""The tail rule: what stands in the bytes of a log file, and what to think of its end.

From the first line that does not fit on, the tail is *torn* (a crash came before it was durable),
unless a later line that fits its own predecessor names the bad seq as durable: then the file is
*corrupt* (docs/design/stores.md, "The tail rule"). Pure, over bytes; nothing is decoded but
headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from mmap import mmap
from typing import Any, Literal, TypeAlias
from zlib import crc32

import attrs
import orjson

from refold.runtime.envelope import decode_line
from refold.runtime.errors import RefoldError
from refold.runtime.events import SessionOwner
from refold.runtime.storage.errors import LogCorrupt, NotFound
from refold.runtime.storage.foreign import read_events
from refold.runtime.storage.framing import COVERED, FRAMED, SEALED, Record, is_whole, lines
from refold.runtime.storage.index import SavedIndex
from refold.runtime.storage.session_header import HEADER_BYTES, SessionHeader, parse_header
from refold.runtime.storage.walk import LogEnd, Records, Walk, walk

TornReason: TypeAlias = Literal[
    "partial", "nul-tail", "bad-crc", "incomplete-batch", "missing-newline"
]

SECTOR = 512
"""What a disk writes whole, or not at all."""


@attrs.frozen
class Torn:
    """What a crash left behind the last complete batch.

    From `offset` on, `dropped_bytes` are no part of the log; `dropped_records` lines began in
    them. `missing_newline`: the last record is whole and only its newline is lost.
    """

    offset: int
    dropped_bytes: int
    dropped_records: int
    reason: TornReason
    missing_newline: bool = False


@attrs.frozen
class LastOwner:
    """The last `session/owner` of a log, when it was written (epoch ms), and if it was released."""

    owner: SessionOwner
    since: int
    released: bool


@attrs.frozen
class Scan:
    """A log as its bytes say.

    `end` is where the next batch begins once a torn tail is repaired. `indexed` records were not
    walked, since a saved index has them.
    """

    header: SessionHeader
    records: Sequence[Record]
    end: LogEnd
    torn: Torn | None
    foreign: bool = False
    indexed: int = 0

    def select(self, types: Collection[str]) -> Iterator[Record]:
        """The records of these types, in order; of our own logs the others are never built."""
        if isinstance(self.records, Records):
            return self.records.select(types)
        return (record for record in self.records if record.type in types)

    def last_owner(self) -> LastOwner | None:
        """Who last opened the log for writing, if anyone did; a fork's seed is its parent's."""
        found, inherited = None, self.header.seed_length or 0
        for record in self.select(("session/owner", "session/released")):
            if record.seq < inherited:
                continue
            if record.type == "session/owner":
                found = _parse_owner(record)
            elif found is not None:
                found = attrs.evolve(found, released=True)
        return found


def _parse_owner(record: Record) -> LastOwner | None:
    try:
        event = decode_line(record.encoded)
    except RefoldError:
        return None
    if not isinstance(event.data, SessionOwner):
        return None
    return LastOwner(event.data, event.time, released=False)


def scan(
    data: bytes | mmap, session_id: str, *, path: str, saved: SavedIndex | None = None
) -> Scan:
    """Read the bytes of a log file and judge its end; `path` is for the errors alone.

    With a `saved` index that fits them, only what comes after it is walked. Raises `NotFound` for
    a file that ends inside its header line, `LogCorrupt`, `LegacyEvent`, and what `parse_header`
    raises.
    """
    if isinstance(data, mmap):
        data = data[:]  # a copy: a file that is cut while it is mapped would kill the process
    header, start, foreign = read_header(data, session_id, path=path)
    if foreign:
        return _scan_foreign(data, start, header, path)
    return _scan_framed(data, start, header, path, saved)


def read_header(data: bytes, session_id: str, *, path: str) -> tuple[SessionHeader, int, bool]:
    """The header of a log, where its events begin, and whether the log is foreign.

    Raises as `scan` does; `data` need not reach beyond the first line.
    """
    end = data.find(b"\n", 0, HEADER_BYTES)
    if (end < 0 and len(data) < HEADER_BYTES) or _never_reached_the_disk(data):
        raise NotFound(session_id, path, len(data))
    if end < 0:
        raise LogCorrupt(path, 0, 1, None, f"no end of a line within {HEADER_BYTES} bytes")
    record = _parse_first_line(data, end, path)
    foreign = record.pop("crc", None) is None
    return parse_header(record, session_id, foreign=foreign), end + 1, foreign


def _never_reached_the_disk(data: bytes) -> bool:
    """Zeros first, and no record that could tell of a log.

    Where a whole sector is zeros, the write that began with it may have reached the disk without
    it; then only a record that calls something durable tells of a log.
    """
    least = -1 if data[:SECTOR].strip(b"\0") else 0
    return data[:1] == b"\0" and _witness(data, 0, least, 0) is None


def _parse_first_line(data: bytes, end: int, path: str) -> dict[str, Any]:
    try:
        record = orjson.loads(data[:end])
    except orjson.JSONDecodeError:
        record = None
    if not isinstance(record, dict) or ("crc" in record and not is_whole(data, 0, end, 0)):
        raise LogCorrupt(path, 0, 1, None, "a damaged line")
    return record


def _scan_foreign(data: bytes, start: int, header: SessionHeader, path: str) -> Scan:
    records, end = read_events(data, start, path)
    torn = Torn(end, len(data) - end, 1, "partial") if end < len(data) else None
    return Scan(header, records, LogEnd(len(records), end), torn, foreign=True)


def _scan_framed(
    data: bytes, start: int, header: SessionHeader, path: str, saved: SavedIndex | None
) -> Scan:
    indexed = 0
    if saved is not None and saved.fits(data, start):
        indexed = len(saved.where)
        found = walk(data, saved.end, saved.where)
    else:
        found = walk(data, LogEnd(offset=start))
    whole = _complete_last_line(found)
    torn = _judge(found, header, path) if whole is None else _lost_newline(found, whole)
    if whole is not None:
        found = walk(whole, LogEnd(offset=start))
    kept = _kept(header, found, torn)
    _check_seed(kept, path)
    return attrs.evolve(kept, indexed=indexed)


def _kept(header: SessionHeader, found: Walk, torn: Torn | None) -> Scan:
    return Scan(header, found.records(), found.whole, torn)


def _complete_last_line(found: Walk) -> bytes | None:
    """The log's bytes with the newline that its last, whole record lost; None if it lost none."""
    start, data = found.reached.offset, found.data
    body = data[start:].rstrip(b"\0")
    if found.problem or not is_whole(body, 0, len(body), found.reached.chain):
        return None
    whole = b"%b%b\n" % (data[:start], body)
    again = walk(whole, LogEnd(offset=found.index.start))
    return whole if again.whole.next_seq == found.reached.next_seq + 1 else None


def _lost_newline(found: Walk, whole: bytes) -> Torn:
    offset = len(whole) - 1
    return Torn(offset, len(found.data) - offset, 0, "missing-newline", missing_newline=True)


def _judge(found: Walk, header: SessionHeader, path: str) -> Torn | None:
    """The torn tail, if any; raises `LogCorrupt` where it had been durable."""
    data, seq = found.data, found.reached.next_seq
    bad, cut = found.reached.offset, found.whole.offset
    if found.broken:
        raise _corrupt(found, path, str(found.problem), header)
    witness = _witness(data, bad, seq, found.reached.chain) if found.problem else None
    if witness is not None:
        what = f"{found.problem}, and seq {witness} says it was durable"
        raise _corrupt(found, path, what, header)
    if cut == len(data):
        return None
    dropped = data[cut:]
    return Torn(cut, len(dropped), count_begun(dropped), _reason(found, data[bad:]))


def _reason(found: Walk, rest: bytes) -> TornReason:
    if not rest:
        return "incomplete-batch"
    if not rest.strip(b"\0"):
        return "nul-tail"
    return "bad-crc" if found.problem else "partial"


def count_begun(dropped: bytes) -> int:
    """How many records began in bytes that are no part of a log any more."""
    return sum(line.startswith(b"{") for line in dropped.split(b"\n"))


def _witness(data: bytes, bad: int, seq: int, chain: int) -> int | None:
    """The seq of a later record that fits the one before it and calls `seq` durable.

    Lines between the two that hold no checksum, such as blank ones, do not weaken its word. What
    is damaged may also be the checksum of the line at `bad`, or the newline between two lines.
    """
    seeds: set[int] = set()
    for start, end in _lines_and_rest(data, bad):
        before, seeds = seeds, set()
        for sealed in SEALED.finditer(data, start, end):
            match = FRAMED.match(data, sealed.start(), end)
            if match is not None and int(match[3]) >= seq:
                tried = {0} if match[6] == b"0" else before | seeds
                if any(is_whole(data, sealed.start(), end, seed) for seed in tried):
                    return int(match[6])
            seeds.add(int(sealed[1], 16))
        if start == bad:
            seeds.add(crc32(data[start + COVERED : end], chain))
        seeds = seeds or before
    return None


def _lines_and_rest(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    yield from lines(data, start)
    yield data.rfind(b"\n") + 1, len(data)


def _check_seed(kept: Scan, path: str) -> None:
    """What a fork was seeded with was durable before anyone saw it: never torn."""
    length = kept.header.seed_length
    if not length:
        return
    count = len(kept.records)
    if count < length:
        what = "the end of a fork's seed"
        raise LogCorrupt(path, kept.end.offset, count + 2, count, what, kept)
    check_seed_end(kept.header, kept.records[length - 1], path, kept)


def check_seed_end(
    header: SessionHeader, last: Record, path: str, readable: Scan | None = None
) -> None:
    """Raise `LogCorrupt` unless `last`, the last record of a fork's seed, is the one it was."""
    if last.crc != header.seed_crc:
        raise LogCorrupt(path, last.offset, last.seq + 2, last.seq, "another seed", readable)


def _corrupt(found: Walk, path: str, what: str, header: SessionHeader) -> LogCorrupt:
    seq = found.reached.next_seq
    kept = _kept(header, found, None)
    return LogCorrupt(path, found.reached.offset, seq + 2, seq, what, kept)
