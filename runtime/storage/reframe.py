"""Giving a foreign log the framing of ours, for import. Pure, over bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import attrs
import orjson

from refold.runtime.envelope import Draft, Event
from refold.runtime.errors import InvalidEvent, InvalidHeader, NotLosslessJson
from refold.runtime.json import check
from refold.runtime.storage.framing import frame_batch, read_envelope
from refold.runtime.storage.session_header import SessionHeader

_ORDER = ("type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp")

_SPACE = re.compile(r"[ \t\n\r]*")
_SPANS = json.JSONDecoder(parse_int=str, parse_float=str)  # asked for places, never for values


def reframe(header: SessionHeader, events: Iterable[Event]) -> tuple[SessionHeader, bytes]:
    """The header and the event lines of a log of our own that holds these events.

    Each is a batch of its own, so that every prefix is a log, and each line calls the one before
    it durable: write them so that nobody sees any of them before all are. A seed gets the checksum
    that it has now. Raises `InvalidEvent`, `InvalidHeader`.
    """
    lines: list[bytes] = []
    chain, seed = 0, header.seed_length or 0
    for event in events:
        line, chain = frame_batch([event_bytes(event)], chain, event.seq - 1)
        lines.append(line)
        if len(lines) == seed:
            header = attrs.evolve(header, seed_crc=f"{chain:08x}")
    if seed > len(lines):
        raise InvalidHeader(f"its seedLength is {seed}, but it has {len(lines)} events")
    return header, b"".join(lines)


def event_bytes(event: Event) -> bytes:
    """A stored event's bytes with its envelope in our order; those of its data stay as they are.

    Raises `InvalidEvent` for data that JSON cannot carry without loss.
    """
    record = orjson.loads(event.encoded)
    try:
        check(record["data"], "data")
    except NotLosslessJson as lossy:
        problem = f"cannot be kept without loss: {lossy.path} is {lossy.found}"
        raise InvalidEvent(event.type, problem, event.seq) from None
    if _is_ours(event, list(record)):
        return event.encoded
    data = _last_member(event.encoded.decode(), "data").encode()
    kept = Draft(event.type, None, data, event.source_event_seqs, event.surface_op)
    return kept.at(event.seq, event.time).encoded


def _is_ours(event: Event, keys: list[str]) -> bool:
    return (
        read_envelope(event.encoded) == (event.type, event.seq)
        and event.encoded.endswith(b"}")
        and keys == [key for key in _ORDER if key in keys]
    )


def _last_member(text: str, wanted: str) -> str:
    """The text of a member of a JSON object that has it; of doubles the last, as parsers do."""
    found, at = "", text.index("{")
    while text[at] != "}":
        key, at = _value(text, at + 1)
        start = _skip(text, _skip(text, at) + 1)  # behind the colon
        _, end = _SPANS.raw_decode(text, start)
        if key == wanted:
            found = text[start:end]
        at = _skip(text, end)
    return found


def _value(text: str, at: int) -> tuple[object, int]:
    return _SPANS.raw_decode(text, _skip(text, at))


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "the pattern matches nothing, too"
    return match.end()
