"""Forking: which events of a log another may start with, and how its header says so."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from refold.runtime.storage.errors import LogCorrupt, NoForkPoint
from refold.runtime.storage.framing import Record
from refold.runtime.storage.scan import Scan
from refold.runtime.storage.session_header import SessionHeader


def forkable(read: Callable[[], Scan], seq: int | None) -> Scan:
    """What stands of a log that is to be forked at `seq`: damage behind that does not matter.

    Raises what `read` raises: the damage, where nobody says where to fork or it comes before.
    """
    try:
        return read()
    except LogCorrupt as damage:
        before = damage.readable
        if before is None or seq is None or seq >= len(before.records):
            raise
        if damage.expected_seq is None or damage.expected_seq < len(before.records):
            raise  # the chain is whole, and not the one that somebody vouches for: all is in doubt
        return before


def fork_point(found: Scan, seq: int | None) -> Record:
    """The `turn/end` at `seq`, by default the last one; raises `NoForkPoint`."""
    if seq is not None and 0 <= seq < len(found.records) and _ends_turn(found.records[seq]):
        return found.records[seq]
    stop = len(found.records) if seq is None else min(seq, len(found.records))
    for place in range(stop - 1, -1, -1):
        record = found.records[place]
        if _ends_turn(record):
            if seq is None:
                return record
            raise NoForkPoint(found.header.id, seq, record.seq)
    raise NoForkPoint(found.header.id, seq, None)


def _ends_turn(record: Record) -> bool:
    return record.type == "turn/end" and record.left == 0


def seeded(header: SessionHeader, found: Scan, point: Record) -> SessionHeader:
    """`header` completed with what it is a fork of."""
    return attrs.evolve(
        header,
        parent_session=found.header.id,
        seed_length=point.seq + 1,
        seed_crc=point.crc,
    )
