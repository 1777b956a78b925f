"""Walking along a log's chain: which lines are verified, and where that ends (design 5.2)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload
from zlib import crc32

import attrs
import orjson

from runtime.envelope import refuse_legacy
from runtime.storage.framing import COVERED, FRAMED, Data, Record, record_at, text

_NOTED = frozenset(
    {b"request/header", b"request/header-delta", b"session/owner", b"session/released"}
)


@attrs.frozen
class Link:
    """What the next record of a log must fit: its seq, the checksum and the `dur` before it."""

    seq: int = 0
    chain: int = 0
    dur: int = -1


@attrs.define
class Walk:
    """What is known of `data` from `start`, the start of a batch, on.

    `ends[i]` is where verified line i ends, newline included. `reached` is what a line after them
    must fit, `whole` what a batch after the last complete one must fit; between the two `left`
    records are owed. `problem` says why the walk ended before the last whole line; `broken` marks
    a line that its checksum fits and the counting does not. `owner` is the seq of the last
    `session/owner` that no `session/released` follows.
    """

    data: Data = attrs.field(repr=False)
    start: int
    reached: Link
    whole: Link
    ends: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)
    left: int = 0
    problem: str | None = None
    broken: bool = False
    owner: int | None = None

    @property
    def first_seq(self) -> int:
        return self.reached.seq - len(self.ends)

    def offset(self, seq: int) -> int:
        """Where the line of `seq`, or the one after the last verified line, starts."""
        index = seq - self.first_seq
        return self.ends[index - 1] if index else self.start

    def records(self, base: int = 0) -> Records:
        """The records of the complete batches; `base` is where `data` begins in the log."""
        count = self.whole.seq - self.first_seq
        return Records(self.data, self.start, self.ends[:count], base)


@attrs.frozen
class Records(Sequence[Record]):
    """Verified records over the bytes of their lines; each is built when it is asked for."""

    _data: Data = attrs.field(repr=False)
    _start: int
    _ends: array[int] = attrs.field(repr=False)
    _base: int

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        places = range(len(self._ends))[index]
        if isinstance(places, range):
            return [self._at(place) for place in places]
        return self._at(places)

    def _at(self, index: int) -> Record:
        start = self._ends[index - 1] if index else self._start
        return record_at(self._data, start, self._ends[index] - 1, self._base)


def walk(data: Data, start: int = 0, link: Link | None = None) -> Walk:
    """Verify the lines of `data` from `start`, stopping at the first that does not fit.

    `link` is what the first must fit (by default: the first event of a log). Raises
    `LegacyEvent`.
    """
    at = link or Link()
    found = Walk(data, start, at, at)
    with memoryview(data) as view:
        _follow(found, view)
    return found


def _follow(found: Walk, view: memoryview) -> None:
    data, offset = found.data, found.start
    seq, chain, dur = attrs.astuple(found.reached)
    left, whole, ends = 0, (seq, chain, dur), found.ends
    alike = b"\n"  # lines often differ from the one before in nothing that counts but the seq
    while (end := data.find(b"\n", offset)) >= 0:
        start = offset + COVERED
        value = crc32(view[start:end], chain)
        if data[offset:start] != b'{"crc":"%08x"' % value:
            found.problem = "a line whose checksum does not fit"
            break
        ahead = b'%b%d,"time":' % (alike, seq)
        if left or data[start : start + len(ahead)] != ahead:
            line = _counted(found, offset, end, Link(seq, chain, dur), left)
            if line is None:
                break
            dur, left, alike = line
        seq, chain, offset = seq + 1, value, end + 1
        ends.append(offset)
        if not left:
            whole = (seq, chain, dur)
    found.reached, found.whole, found.left = Link(seq, chain, dur), Link(*whole), left


def _counted(
    found: Walk, start: int, end: int, link: Link, owed: int
) -> tuple[int, int, bytes] | None:
    """`dur`, `left` and what a like line starts with, of a line whose checksum fits."""
    match = FRAMED.match(found.data, start, end)
    if match is None:
        found.problem, found.broken = "a line that is no framed event", True
        return None
    dur, left, seq = int(match[3]), int(match[4] or 0), int(match[6])
    found.problem = _miscounted(link, owed, seq, dur, left)
    if found.problem is not None:
        found.broken = True
        return None
    if match[5] in _NOTED:
        _note(found, match[5], seq, found.data[start + COVERED + len(match[2]) : end])
        return dur, left, b"\n"
    return dur, left, b"\n" if left else found.data[start + COVERED : match.start(6)]


def _miscounted(link: Link, owed: int, seq: int, dur: int, left: int) -> str | None:
    if seq != link.seq:
        return f"seq {seq}"
    if not link.dur <= dur < seq:
        return f"dur {dur} after {link.dur}"
    if owed and left != owed - 1:
        return f"a batch that owed {owed} records and goes on with {left} left"
    return None


def _note(found: Walk, type_: bytes, seq: int, rest: bytes) -> None:
    if type_ == b"session/owner":
        found.owner = seq
    elif type_ == b"session/released":
        found.owner = None
    else:
        refuse_legacy(text(type_), orjson.loads(b"{" + rest)["data"], seq)
