"""Forking: which events of a log another may start with, and how its header says so."""

from __future__ import annotations

import attrs

from runtime.storage.errors import NoForkPoint
from runtime.storage.framing import Record
from runtime.storage.scan import Scan
from runtime.storage.session_header import SessionHeader


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
