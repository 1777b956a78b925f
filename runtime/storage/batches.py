"""What every store asks of a batch before it writes it. Pure, over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from refold.runtime.envelope import refuse_legacy
from refold.runtime.errors import InvalidEvent
from refold.runtime.events import LEGACY_TYPE
from refold.runtime.storage.errors import SeqMismatch
from refold.runtime.storage.framing import frame_batch, read_envelope
from refold.runtime.storage.walk import LogEnd


@attrs.frozen
class Framed:
    """Lines to append, their types as JSON text, and where the log ends with them."""

    lines: bytes
    kinds: list[bytes]
    end: LogEnd


def frame_batches(
    batches: Sequence[Sequence[bytes]], written: LogEnd, durable_seq: int
) -> Framed | None:
    """The lines of batches of encoded events that go on after `written`; None for no event.

    Each must be the event that is next, on one line and one that is taken. Raises `SeqMismatch`,
    `InvalidEvent`, `LegacyEvent`.
    """
    seq, chain, parts = written.next_seq, written.chain, list[bytes]()
    kinds: list[bytes] = []
    for events in batches:
        for at, encoded in enumerate(events, seq):
            envelope = read_envelope(encoded)
            if envelope is None or b"\n" in encoded or not encoded.endswith(b"}"):
                problem = "is not one line of JSON that starts with type, seq and time"
                raise InvalidEvent("?", problem, at)
            type_, got = envelope
            if got != at:
                raise SeqMismatch(at, got)
            if type_ in (LEGACY_TYPE, "request/header"):
                refuse_legacy(type_, _parse(encoded, type_, at).get("data"), at)
            kinds.append(orjson.dumps(type_)[1:-1])
        seq += len(events)
        lines, chain = frame_batch(events, chain, durable_seq)
        parts.append(lines)
    if not kinds:
        return None
    data = b"".join(parts)
    return Framed(data, kinds, LogEnd(seq, written.offset + len(data), chain, durable_seq))


def _parse(encoded: bytes, type_: str, seq: int) -> dict[str, Any]:
    try:
        return dict(orjson.loads(encoded))
    except orjson.JSONDecodeError as error:
        raise InvalidEvent(type_, f"is not JSON ({error})", seq) from None
