"""Walking along a log's chain: which lines are verified, and where that ends."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from typing import NamedTuple, overload
from zlib import crc32

import attrs
import orjson

from refold.runtime.envelope import refuse_legacy
from refold.runtime.events import LEGACY_TYPE
from refold.runtime.storage.framing import COVERED, FRAMED, Record, record_at, text

_HEADERS = frozenset({b"request/header", LEGACY_TYPE.encode()})


@attrs.frozen
class LogEnd:
    """Where a log ends, and what its next record must fit.

    `next_seq` is that record's seq and `offset` the byte that its line starts at. `chain` is the
    checksum of the record before it, which seeds its own, and `dur` what that one calls durable.
    """

    next_seq: int = 0
    offset: int = 0
    chain: int = 0
    dur: int = -1


@attrs.define
class Index:
    """Where the lines of consecutive records are, and of which type: twelve bytes a record.

    `ends[i]` is where line i ends, newline included; the first starts at `start`. `kinds[i]` is
    the place of its type in `names`, as JSON text. `odd` are the places of lines that have to be
    read whatever their type, as far as the lines were looked at; see `odd_lines`.
    """

    start: int
    ends: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)
    kinds: array[int] = attrs.field(factory=lambda: array("I"), repr=False)
    names: list[bytes] = attrs.field(factory=list)
    odd: list[int] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self.ends)

    def begin(self, place: int) -> int:
        """Where line `place`, or whatever stands after the last, starts."""
        return self.ends[place - 1] if place else self.start

    def kind(self, name: bytes) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def first(self, count: int) -> Index:
        """The index of the first `count` lines."""
        odd = [place for place in self.odd if place < count]
        return Index(self.start, self.ends[:count], self.kinds[:count], self.names, odd)

    def places(self, types: Collection[str]) -> Iterator[int]:
        """The lines of these types."""
        wanted = self._kinds_of(types)
        return (place for place, kind in enumerate(self.kinds) if kind in wanted)

    def since_step(self, earlier: Collection[str]) -> Iterator[int]:
        """All lines from the last sealed step on, before it the odd ones and the `earlier` types.

        Without a sealed step that is the last step, without any step the first line.
        """
        begin = self._last_of("step/start", self._last_of("request/sealed", len(self)) or len(self))
        if begin:
            wanted = self._kinds_of(earlier)
            chosen = (p for p, kind in enumerate(self.kinds[:begin]) if kind in wanted)
            odd = (p for p in self.odd if p < begin and self.kinds[p] not in wanted)
            yield from merge(chosen, odd) if self.odd else chosen
        yield from range(begin, len(self))

    def _kinds_of(self, types: Collection[str]) -> set[int]:
        return {kind for kind, name in enumerate(self.names) if text(name) in types}

    def _last_of(self, type_: str, end: int) -> int:
        """The last line of a type before the line `end`, 0 where there is none."""
        kinds = self._kinds_of({type_})
        found = (place for place in range(end - 1, -1, -1) if self.kinds[place] in kinds)
        return next(found, 0)


@attrs.frozen
class Records(Sequence[Record]):
    """Verified records over the bytes of their lines; each is built when it is asked for."""

    data: bytes = attrs.field(repr=False)
    where: Index
    _base: int = 0

    def __len__(self) -> int:
        return len(self.where)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        places = range(len(self.where))[place]
        if isinstance(places, range):
            return [self._at(one) for one in places]
        return self._at(places)

    def select(self, types: Collection[str]) -> Iterator[Record]:
        """The records of these types, in order; the others are passed over unbuilt."""
        return map(self._at, self.where.places(types))

    def since_step(self, earlier: Collection[str]) -> Iterator[Record]:
        """All records from the last sealed step on, and before it those of the `earlier` types."""
        return map(self._at, self.where.since_step(earlier))

    def crc(self) -> int:
        """The CRC-32 of the log's bytes up to the last record; of records that begin a log."""
        assert not self._base
        return crc32(memoryview(self.data)[: self.where.begin(len(self.where))])

    def _at(self, place: int) -> Record:
        start, end = self.where.begin(place), self.where.ends[place] - 1
        return record_at(self.data, start, end, self._base)


@attrs.define
class Walk:
    """What is known of `data` from the start of a batch on.

    `reached` is what a line after the verified ones must fit, `whole` what a batch after the last
    complete one must fit; between the two, `left` records are owed. Both count bytes of `data`.
    `problem` says why the walk ended before the last whole line; `broken` marks a line that its
    checksum fits and the counting does not.
    """

    data: bytes = attrs.field(repr=False)
    index: Index
    reached: LogEnd
    whole: LogEnd
    left: int = 0
    problem: str | None = None
    broken: bool = False

    def records(self, base: int = 0) -> Records:
        """The records of the complete batches; `base` is where `data` begins in the log."""
        count = len(self.index) - (self.reached.next_seq - self.whole.next_seq)
        return Records(self.data, self.index.first(count), base)


# Most of what it costs to open a log is this loop, so it makes no object and calls no function of
# ours for a line. A line's bytes up to its time are a function of its checksum, its `dur`, its
# `left`, its type and its seq. The checksum is computed anyway, the seq is the next, and the other
# three are mostly those of the line before (`left` one less). So the loop writes down how the line
# would begin if they were, and compares: where that fits, the line is verified and counted, and
# nothing of it was parsed. Where it does not, `_parse` looks at the line as if there were no short
# way and its `dur`, `left` and type become the next guess. A guess can only be too strict: it is
# the whole beginning of the line, so a line that fits it would have been parsed to the same.
#
# 100,000 events take 0.15 s of CPU so, and 0.32 s where each line is parsed. That slow way stands
# in the tests (`walk_by_parsing`), and this one is held to what it finds over damaged logs.
def walk(data: bytes, start: LogEnd | None = None, known: Index | None = None) -> Walk:
    """Verify the lines of `data` from `start`, stopping at the first that does not fit.

    `start` counts bytes of `data` and is by default where the first event of a log stands that has
    no header. Lines that are `known` already stand before it. Raises `LegacyEvent`.
    """
    at = start or LogEnd()
    found = Walk(data, Index(at.offset) if known is None else known, at, at)
    view, ends, kinds = memoryview(data), found.index.ends, found.index.kinds
    seq, offset, chain, dur, left = at.next_seq, at.offset, at.chain, at.dur, 0
    whole, kind, plain, framing, typed = (seq, offset, chain, dur), 0, b"", b"", b""
    while (end := data.find(b"\n", offset)) >= 0:
        value = crc32(view[offset + COVERED : end], chain)
        foretold = b'{"crc":"%08x"%b%b%d,"time":' % (value, framing, typed, seq)
        if data.startswith(foretold, offset):
            left = left and left - 1
        else:
            line = _parse(found, offset, end, value)
            if line is None or _is_miscounted(found, line, seq, dur, left):
                break
            dur, left, kind, typed = line.dur, line.left, line.kind, line.typed
            plain = b',"dur":%d,' % dur
        framing = b'%b"left":%d,' % (plain, left - 1) if left > 1 else plain
        seq, chain, offset = seq + 1, value, end + 1
        ends.append(offset)
        kinds.append(kind)
        if not left:
            whole = (seq, offset, chain, dur)
    found.reached, found.whole, found.left = LogEnd(seq, offset, chain, dur), LogEnd(*whole), left
    return found


class _Line(NamedTuple):
    """What counts of one line; `typed` is what stands between the framing and the seq."""

    seq: int
    dur: int
    left: int
    kind: int
    typed: bytes


def _parse(found: Walk, start: int, end: int, crc: int) -> _Line | None:
    if found.data[start : start + COVERED] != b'{"crc":"%08x"' % crc:
        found.problem = "a line whose checksum does not fit"
        return None
    match = FRAMED.match(found.data, start, end)
    if match is None:
        found.problem, found.broken = "a line that is no framed event", True
        return None
    type_, seq = match[5], int(match[6])
    typed = found.data[match.end(2) : match.start(6)]
    if type_ in _HEADERS:
        typed = b"\n"  # no line starts so: the next of its type is looked at, too
        if not _is_readable_header(found, type_, seq, found.data[match.end(2) : end]):
            return None
    return _Line(seq, int(match[3]), int(match[4] or 0), found.index.kind(type_), typed)


def _is_miscounted(found: Walk, line: _Line, seq: int, dur: int, owed: int) -> bool:
    if line.seq != seq:
        found.problem = f"seq {line.seq}"
    elif not dur <= line.dur < seq:
        found.problem = f"dur {line.dur} after {dur}"
    elif owed and line.left != owed - 1:
        found.problem = f"a batch that owed {owed} records and goes on with {line.left} left"
    found.broken = found.problem is not None
    return found.broken


def _is_readable_header(found: Walk, type_: bytes, seq: int, rest: bytes) -> bool:
    try:
        event = orjson.loads(b"{" + rest)
    except orjson.JSONDecodeError:
        found.problem, found.broken = "a request/header that is no JSON", True
        return False
    refuse_legacy(text(type_), event.get("data"), seq)
    return True
