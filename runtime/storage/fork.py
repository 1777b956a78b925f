"""Forking: a new log that starts with the very bytes of another (design 5.2)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs

from runtime.storage.errors import AlreadyExists, LogCorrupt, NoForkPoint
from runtime.storage.files import copy_all, remove, write_all, write_file
from runtime.storage.framing import Record, frame_header
from runtime.storage.header import SessionHeader
from runtime.storage.layout import Layout
from runtime.storage.port import Port
from runtime.storage.tail import Scan
from runtime.storage.takeover import open_draft


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


def write_fork(
    port: Port, layout: Layout, lines: bytes | tuple[int, range], header: SessionHeader
) -> None:
    """Make the log of `header.id` from event lines, durable and whole.

    `lines` are bytes, or a descriptor and the place of theirs in it. Call it with the new
    session's lock held. Raises `AlreadyExists`, `OSError`; then nothing is left.
    """
    draft = layout.fork(header.id)
    remove(port, draft)
    _drop_head(port, layout, header.id)
    target = port.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        _fill(port, target, lines, header)
        port.link(draft, layout.log(header.id))
    except FileExistsError:
        raise AlreadyExists(header.id) from None
    finally:
        port.close(target)
        remove(port, draft)
    port.sync_directory(layout.folder)


def replace_log(
    port: Port, layout: Layout, before: bytes, lines: bytes, header: SessionHeader
) -> Path:
    """Put a log of event lines in the place of one whose bytes are `before`, which are kept.

    Call it with the session's lock held; returns where they are. A crash leaves the one log or
    the other, and the copy before the other.
    """
    kept = layout.damaged(port, header.id)
    write_file(port, kept, before, sync=True)
    _drop_head(port, layout, header.id)
    draft, target = open_draft(port, layout, header.id)
    try:
        _fill(port, target, lines, header)
        port.rename(draft, layout.log(header.id))
    finally:
        port.close(target)
        remove(port, draft)
    port.sync_directory(layout.folder)
    return kept


def _drop_head(port: Port, layout: Layout, session_id: str) -> None:
    """Remove a head file for good, before there is a log that it does not speak of."""
    if remove(port, layout.head(session_id)):
        port.sync_directory(layout.folder)


def _fill(port: Port, target: int, lines: bytes | tuple[int, range], header: SessionHeader) -> None:
    first = frame_header(header)
    write_all(port, target, first, 0)
    if isinstance(lines, bytes):
        write_all(port, target, lines, len(first))
    else:
        copy_all(port, lines[0], target, lines[1], len(first))
    port.fdatasync(target)
