"""The framing of a line: checksum, durable mark, batch count. Pure, over bytes.

`crc` stands at bytes 8 to 15 and covers everything from the comma at byte 17 to the closing
brace, so a line is checked with two slices before any JSON is parsed. Events are chained: each
checksum is seeded with the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

import attrs
import orjson

from refold.runtime.json import encode
from refold.runtime.storage.errors import TooLarge
from refold.runtime.storage.session_header import HEADER_BYTES, SessionHeader, unparse_header

COVERED = 17
"""Where the bytes under a line's checksum begin."""

_NUMBER = rb"0|[1-9][0-9]{0,18}"
_PLAIN = rb'[^"\\\x00-\x1f]*'
_TEXT = _PLAIN + rb'(?:\\(?:["\\/bfnrt]|u00[0-9a-f]{2})' + _PLAIN + rb")*"

_EVENT = re.compile(rb'\{"type":"(' + _TEXT + rb')","seq":(' + _NUMBER + rb'),"time":')
FRAMED = re.compile(
    rb'\{"crc":"([0-9a-f]{8})"(,"dur":(-1|' + _NUMBER + rb'),(?:"left":([1-9][0-9]{0,18}),)?)'
    rb'"type":"(' + _TEXT + rb')","seq":(' + _NUMBER + rb'),"time":'
)
"""Up to its time, a framed event: groups are crc, framing, dur, left, type, seq."""

SEALED = re.compile(rb'\{"crc":"([0-9a-f]{8})"')
"""What every line with a checksum starts with."""


@attrs.frozen
class Record:
    """One verified line: `offset` and `length` (its newline included) count bytes of the log.

    `encoded` is the event without its framing. Records of foreign logs have no `crc`.
    """

    offset: int
    length: int
    seq: int
    type: str
    dur: int
    left: int
    crc: str
    encoded: bytes = attrs.field(repr=False)

    @property
    def chain(self) -> int:
        """The value that seeds the next record's checksum."""
        return int(self.crc, 16) if self.crc else 0


def seal(covered: bytes, seed: int = 0) -> tuple[bytes, int]:
    """A line around the bytes that its checksum covers, and the checksum."""
    crc = crc32(covered, seed)
    return b'{"crc":"%08x"%b\n' % (crc, covered), crc


def frame_header(header: SessionHeader) -> bytes:
    """The header's line, newline included; raises `NotLosslessJson`, `TooLarge`."""
    line = seal(b"," + encode(unparse_header(header))[1:])[0]
    if len(line) > HEADER_BYTES:
        raise TooLarge(header.id, len(line), HEADER_BYTES)
    return line


def frame_batch(events: Sequence[bytes], chain: int, dur: int) -> tuple[bytes, int]:
    """The lines of one batch of encoded events, and the chain's new value.

    `chain` is the checksum of the record before (0 before the first), `dur` the highest seq that
    is known to be durable (-1 for none).
    """
    lines = []
    for left, encoded in zip(range(len(events) - 1, -1, -1), events, strict=True):
        count = b'"left":%d,' % left if left else b""
        line, chain = seal(b',"dur":%d,%b%b' % (dur, count, encoded[1:]), chain)
        lines.append(line)
    return b"".join(lines), chain


def read_envelope(encoded: bytes) -> tuple[str, int] | None:
    """Type and seq of an encoded event, or None if it does not start as one does."""
    match = _EVENT.match(encoded)
    return None if match is None else (text(match[1]), int(match[2]))


@lru_cache(maxsize=1024)  # a log has few types
def text(raw: bytes) -> str:
    """The text of a JSON string's inside."""
    if b"\\" in raw:
        return str(orjson.loads(b'"%b"' % raw))
    return raw.decode("utf-8", "replace")


def is_whole(data: bytes, start: int, end: int, seed: int) -> bool:
    """Whether the line at `start`, without its newline, has a checksum that fits `seed`."""
    match = SEALED.match(data, start, end)
    return match is not None and crc32(data[start + COVERED : end], seed) == int(match[1], 16)


def record_at(data: bytes, start: int, end: int, base: int = 0) -> Record:
    """The verified record whose line, without its newline, is `data[start:end]`.

    `base` is where `data` begins in the log.
    """
    match = FRAMED.match(data, start, end)
    assert match is not None, "only verified lines become records"
    crc, framing, dur, left, type_, seq = match.groups()
    return Record(
        base + start,
        end + 1 - start,
        int(seq),
        text(type_),
        int(dur),
        int(left or 0),
        crc.decode(),
        b"{" + data[start + COVERED + len(framing) : end],
    )


def lines(data: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """Start and end, without the newline, of each whole line; a line ends at 0x0A only."""
    while (end := data.find(b"\n", start)) >= 0:
        yield start, end
        start = end + 1
