"""What can be kept of a damaged log: a plan from its bytes. Pure."""

from __future__ import annotations

import re

import attrs
import orjson

from refold.runtime.storage.errors import LogCorrupt
from refold.runtime.storage.framing import SEALED, frame_header
from refold.runtime.storage.scan import Scan, count_begun, scan
from refold.runtime.storage.session_header import SessionHeader
from refold.runtime.storage.walk import LogEnd, walk


@attrs.frozen
class Salvage:
    """The log that can take a damaged one's place: the verified events up to the last whole batch.

    `lines` are their framed lines, `dropped` is what stood behind them. `lost_seed` counts the
    events that a fork had been seeded with and that are gone; `header` then speaks of those that
    are left. `new_header` says that `header` was made anew.
    """

    header: SessionHeader
    lines: bytes = attrs.field(repr=False)
    events: int
    dropped: bytes = attrs.field(repr=False)
    lost_seed: int = 0
    new_header: bool = False

    @property
    def data(self) -> bytes:
        """The whole log."""
        return frame_header(self.header) + self.lines


def salvage(data: bytes, readable: Scan) -> Salvage:
    """What to keep of a log whose bytes are `data`; `readable` is from the `LogCorrupt` of it."""
    header, lost = _reseeded(readable)
    end = _end(readable)
    lines = lines_of(data, readable)
    return Salvage(header, lines, len(readable.records), data[end:], lost)


def lines_of(data: bytes, found: Scan) -> bytes:
    """The event lines of a log, without what is no part of it, and each with its newline."""
    start = found.records[0].offset if found.records else _end(found)
    newline = b"\n" if found.torn is not None and found.torn.missing_newline else b""
    return data[start : _end(found)] + newline


_SEQ = re.compile(rb'"seq":([0-9]{1,18}),"time":')


def count_lost(kept: Salvage, known: int) -> int:
    """Of how many events no byte is left, of a log that was known to hold `known`."""
    gone = max(known - kept.events, kept.lost_seed)
    # What is damaged may be where a line begins, or a seq.
    seen = max((int(found[1]) + 1 for found in _SEQ.finditer(kept.dropped)), default=0)
    return max(gone - max(count_begun(kept.dropped), seen - kept.events), 0)


def salvage_headless(data: bytes, session_id: str) -> Salvage | None:
    """What to keep of the log of `session_id` if its first line cannot be read.

    The new header says no more than that id and the time of the first event. None where no event
    behind the first line fits its checksum as the first of a log.
    """
    start = _first_event(data)
    if start is None:
        return None
    time = orjson.loads(walk(data, LogEnd(offset=start)).records()[0].encoded)["time"]
    header = SessionHeader(session_id, created_at=time, durability="power")
    whole = frame_header(header) + data[start:]
    return attrs.evolve(salvage(whole, _readable(whole, session_id)), new_header=True)


def _first_event(data: bytes) -> int | None:
    """Where the first event begins; a newline in or behind the first line may be what is damaged.

    The header too is sealed, but it is no event.
    """
    end = sum(map(len, data.split(b"\n", 3)[:3]))
    begins = (sealed.start() for sealed in SEALED.finditer(data, 1, end))
    return next((start for start in begins if walk(data, LogEnd(offset=start)).records()), None)


def _readable(data: bytes, session_id: str) -> Scan:
    try:
        return scan(data, session_id, path=session_id)
    except LogCorrupt as damage:
        if damage.readable is None:
            raise
        return damage.readable


def _end(found: Scan) -> int:
    """Where that of a log's bytes ends which is kept; a newline that was lost is not in them."""
    if found.torn is not None and found.torn.missing_newline:
        return found.torn.offset
    return found.end.offset


def _reseeded(readable: Scan) -> tuple[SessionHeader, int]:
    header, count = readable.header, len(readable.records)
    length = header.seed_length or 0
    if not length:
        return header, 0
    if not count:
        return attrs.evolve(header, seed_length=0, seed_crc=None), length
    left = min(length, count)
    crc = readable.records[left - 1].crc
    return attrs.evolve(header, seed_length=left, seed_crc=crc), length - left
