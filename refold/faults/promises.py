"""What a program was told is safe, and whether a store still holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol
from zlib import crc32

import attrs
import orjson

from refold.faults.recording import Acknowledged
from refold.runtime.errors import RefoldError
from refold.runtime.storage import Scan, open_sessions


class Readable(Protocol):
    """A store whose sessions can be read, such as `JsonlFolder` or `SqliteFile`."""

    def read(self, session_id: str) -> Scan:
        """What a session holds now; raises a `RefoldError` where it is refused."""
        ...


@attrs.define
class Journal:
    """The acknowledged events: for each session, a seq and the CRC-32 of the event's bytes.

    Keep it where the faults cannot reach it: in another process, or on another disk.
    """

    said: dict[str, dict[int, int]] = attrs.field(factory=dict)

    def acknowledge(self, session: str, seq: int, encoded: bytes) -> None:
        """Note that the event at `seq` is safe; `encoded` is its bytes without framing."""
        self.said.setdefault(session, {})[seq] = crc32(encoded)

    @classmethod
    def of(cls, marks: Iterable[object]) -> Journal:
        """The journal of what `RecordingDisk.acknowledge` marked; other marks are passed over."""
        journal = cls()
        for mark in marks:
            if isinstance(mark, Acknowledged):
                journal.acknowledge(mark.session, mark.seq, mark.encoded)
        return journal

    @staticmethod
    def line(session: str, seq: int, encoded: bytes) -> bytes:
        """One acknowledgement as a line, its newline included, for a process to write."""
        return orjson.dumps([session, seq, crc32(encoded)]) + b"\n"

    @classmethod
    def read(cls, data: bytes) -> Journal:
        """The journal of such lines; what stands behind the last newline was not said."""
        journal = cls()
        *lines, _torn = data.split(b"\n")
        for line in lines:
            session, seq, crc = orjson.loads(line)
            journal.said.setdefault(session, {})[seq] = crc
        return journal


@attrs.frozen
class BrokenPromise:
    """What a store does not hold as it was acknowledged; `seq` is None for a log as a whole."""

    session: str
    seq: int | None
    problem: str

    def __str__(self) -> str:
        at = "" if self.seq is None else f", seq {self.seq}"
        return f"session {self.session!r}{at}: {self.problem}"


def check_promises(store: Readable | str | Path, journal: Journal) -> list[BrokenPromise]:
    """Compare what was acknowledged with what is there; an empty list says that all was kept.

    `store` has a `read`, or is what `refold.open` takes for a folder or a SQLite file. Named are
    events that are missing or have other bytes, seqs that are doubled or out of order, and logs
    that are refused.
    """
    readable = open_sessions(store) if isinstance(store, str | Path) else store
    return [
        broken
        for session, told in journal.said.items()
        for broken in _check_session(readable, session, told)
    ]


def _check_session(
    store: Readable, session: str, told: Mapping[int, int]
) -> Iterator[BrokenPromise]:
    try:
        found = store.read(session)
    except RefoldError as error:
        yield BrokenPromise(session, None, f"the log is refused: {error}")
        return
    there: dict[int, int] = {}
    for place, record in enumerate(found.records):
        if record.seq != place:
            yield BrokenPromise(session, record.seq, f"it stands where seq {place} belongs")
        there[record.seq] = crc32(record.encoded)
    for seq, crc in told.items():
        if seq not in there:
            yield BrokenPromise(session, seq, "the acknowledged event is missing")
        elif there[seq] != crc:
            yield BrokenPromise(session, seq, "the acknowledged event has other bytes")
