"""What every store asks of a batch before it writes it (design 5.2). Pure, over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from runtime.envelope import LEGACY_TYPE, refuse_legacy
from runtime.errors import InvalidEvent
from runtime.storage.errors import SeqMismatch
from runtime.storage.framing import frame_batch, read_envelope
from runtime.storage.head import Head


def frame_batches(
    batches: Sequence[Sequence[bytes]], written: Head, durable_seq: int
) -> tuple[bytes, Head]:
    """The lines of batches of encoded events that go on after `written`, and where they end.

    Raises `SeqMismatch`, `InvalidEvent`, `LegacyEvent`.
    """
    seq, chain, data = written.seq, written.chain, b""
    for events in batches:
        for encoded in events:
            seq += 1
            check_event(encoded, seq)
        lines, chain = frame_batch(events, chain, durable_seq)
        data += lines
    return data, Head(seq, written.end + len(data), chain)


def check_event(encoded: bytes, seq: int) -> None:
    """Refuse encoded bytes that are not the event `seq` on one line, or that no store takes."""
    envelope = read_envelope(encoded)
    if envelope is None or b"\n" in encoded or not encoded.endswith(b"}"):
        raise InvalidEvent("?", "is not one line of JSON that starts with type, seq and time", seq)
    type_, got = envelope
    if got != seq:
        raise SeqMismatch(seq, got)
    if type_ in (LEGACY_TYPE, "request/header"):
        refuse_legacy(type_, _parse(encoded, type_, seq).get("data"), seq)


def _parse(encoded: bytes, type_: str, seq: int) -> dict[str, Any]:
    try:
        return dict(orjson.loads(encoded))
    except orjson.JSONDecodeError as error:
        raise InvalidEvent(type_, f"is not JSON ({error})", seq) from None
