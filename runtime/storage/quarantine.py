"""Where the bytes are kept that a repair took from a log, and which of them nobody reported yet.

A report (`session/recovered`) is written after the cut, so a crash may come between the two. The
kept bytes outlive that, and the next opening reports them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from refold.runtime.events import SessionRecovered
from refold.runtime.storage.scan import Scan, count_begun
from refold.runtime.storage.session_header import file_name


class Quarantine(Protocol):
    """The dropped bytes of one session, by the offset that they stood at."""

    def at(self, offset: int) -> Iterator[tuple[str, bytes]]:
        """The name and the bytes of each piece that was cut at `offset`, the oldest first."""
        ...

    def names(self) -> Sequence[str]:
        """What all of the session's pieces are called."""
        ...


TORN = ".torn-"
"""What stands behind a session's id in the name of each of its pieces."""


def piece_name(session_id: str, offset: int, number: int) -> str:
    """What the piece is called that was cut at `offset` as the `number`th there."""
    return f"{file_name(session_id)}{TORN}{offset}-{number}"


def lost_note(events: int) -> bytes:
    """A piece for events of which no byte is left, though the log was known to hold them."""
    return b"%d events are lost: the log ended behind them when it was last closed\n" % events


_LOST = re.compile(rb"([0-9]{1,18}) events are lost: [^\n]*\n")


def unreported(
    quarantine: Quarantine, offsets: Iterable[int], reason: str
) -> SessionRecovered | None:
    """A report of what was cut at `offsets`, near which the log ends now.

    A `session/recovered` that named any of it would stand behind that place, so none does.
    Several names are joined by commas. Events that a note says are lost count as records of no
    bytes.
    """
    found = [piece for offset in offsets for piece in quarantine.at(offset)]
    if not found:
        return None
    lost = [_LOST.fullmatch(data) for _, data in found]
    cut = [data for (_, data), note in zip(found, lost, strict=True) if note is None]
    return SessionRecovered(
        sum(map(len, cut)),
        sum(map(count_begun, cut)) + sum(int(note[1]) for note in lost if note is not None),
        reason if cut else "lost-events",
        ",".join(name for name, _ in found),
    )


def report_of(quarantine: Quarantine, found: Scan) -> SessionRecovered | None:
    """What an opening that found this log, and those before it that crashed, took from it."""
    reason = "unreported" if found.torn is None else found.torn.reason
    # A piece is named for the offset that it was cut at, which is where the log ends now, with two
    # exceptions. Where a lost newline was put back, the end is one byte further on. Where the file
    # had not even its header, the whole of it was cut, from 0 on, and the end is the new header's.
    end = found.end.offset
    offsets = (end, end - 1) if found.records else (end, 0)
    report = unreported(quarantine, offsets, reason)
    if report is None and found.torn is not None:
        return SessionRecovered(0, 0, reason)
    return report
