"""Lines that an opening has to read though their type matters to none of its folds.

An opening builds only the events that matter to what a log folds to, and passes over the others.
It may not pass over a message of a type that it does not know, a field that no envelope of ours
has, or an event that does not say where the log stands: whoever reads the log whole refuses those,
and the two must be of one opinion. Here they are found among the lines, and their places are kept
with the index, so that a line is looked at once and not at every opening. Nearly all are settled by
how they begin and end; only what is not is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from refold.runtime.envelope import decode_line
from refold.runtime.errors import RefoldError
from refold.runtime.events import FOLDED, UnknownEvent
from refold.runtime.odd_events import STRUCTURAL
from refold.runtime.storage.framing import COVERED, FRAMED, text
from refold.runtime.storage.walk import Index

_Look: TypeAlias = Callable[[bytes, int, int], bool]
"""Whether the line from one offset to another surely need not be read; False is no verdict."""


def odd_lines(data: bytes, where: Index, since: int, base: int = 0) -> list[int]:
    """The places, from `since` on, of lines that have to be read whatever their type.

    `data` holds their bytes and begins `base` bytes into the log.
    """
    odd: list[int] = []
    looks = [_LOOKS.get(text(name)) for name in where.names]
    start, behind_data = where.begin(since) - base, -1
    lines = zip(where.ends[since:], where.kinds[since:], strict=True)
    for place, (stop, kind) in enumerate(lines, since):
        end, look = stop - base, looks[kind]
        if look is not None:
            settled = look(data, start, end)
        else:  # most lines, so they cost no call: type, seq, time, and an object as data
            if behind_data < start:  # another field behind such data would begin so
                behind_data = data.find(b"},", start)
                behind_data = len(data) if behind_data < 0 else behind_data
            at = data.find(b'"time":', start + COVERED) + 7
            settled = (
                behind_data >= end
                and data.startswith(b"}}", end - 3)
                and data.startswith(b',"data":{', at + 13)  # from 2001 on a time is so long
                and data[at : at + 13].isdigit()
            )
        if not settled and _is_odd(data, start, end):
            odd.append(place)
        start = end
    return odd


def _is_read_anyway(data: bytes, start: int, end: int) -> bool:
    del data, start, end
    return True


def _is(*fields: bytes) -> _Look:
    """A line of a step with these fields and no other, as this version writes them."""
    what = b",".join((rb'"turn":[0-9]+', rb'"step":[0-9]+', *fields))
    pattern = re.compile(rb'[0-9]+,"data":\{%b\}\}\n' % what)

    def is_ours(data: bytes, start: int, end: int) -> bool:
        at = data.find(b'"time":', start + COVERED) + 7
        return pattern.fullmatch(data, at, end) is not None

    return is_ours


def _texts(*names: bytes) -> Iterator[bytes]:
    return (rb'"%b":"[^"\\]*(?:\\.[^"\\]*)*"' % name for name in names)


_LOOKS: Mapping[str, _Look] = {
    **dict.fromkeys(STRUCTURAL, lambda *_: False),
    "step/start": _is(),
    "step/end": _is(),
    "tool/call": _is(*_texts(b"callId", b"name", b"arguments")),
    "request/sealed": _is(
        *_texts(b"codec", b"requestDigest", b"wireDigest"),
        *(rb'"wireBytes":[0-9]+', rb'"sharedPrefixBytes":[0-9]+'),
        *_texts(b"invariants"),
    ),
    **dict.fromkeys(FOLDED, _is_read_anyway),
}
"""By type; lines of any other may be passed over where they hold nothing but data."""


def _is_odd(data: bytes, start: int, end: int) -> bool:
    match = FRAMED.match(data, start, end)
    assert match is not None, "only verified lines are looked at"
    try:
        event = decode_line(b"{" + data[start + COVERED + len(match[2]) : end - 1])
    except RefoldError:
        return True
    return event.type in STRUCTURAL and isinstance(event.data, UnknownEvent)
