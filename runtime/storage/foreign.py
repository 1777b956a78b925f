"""Logs that refold did not write: lines without checksums, for reading and import."""

from __future__ import annotations

from typing import Any

import orjson

from refold.runtime.envelope import refuse_legacy
from refold.runtime.storage.errors import LogCorrupt
from refold.runtime.storage.framing import Record, lines


def read_events(data: bytes, start: int, path: str) -> tuple[list[Record], int]:
    """The events from `start` on, and where an unfinished last line begins.

    Raises `LogCorrupt` for a line that is no event or not the next one, `LegacyEvent`.
    """
    records: list[Record] = []
    end = start
    for begin, stop in lines(data, start):
        end = stop + 1
        records.append(_read_event(data[begin:stop], begin, len(records), path))
    return records, end


def _read_event(line: bytes, offset: int, seq: int, path: str) -> Record:
    event = _parse(line)
    problem = _problem(event, seq)
    if problem is not None:
        raise LogCorrupt(path, offset, seq + 2, seq, problem)
    refuse_legacy(event["type"], event.get("data"), seq)
    return Record(offset, len(line) + 1, seq, event["type"], -1, 0, "", line)


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _problem(event: Any, seq: int) -> str | None:
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return "a line that is no event"
    if "crc" in event:
        return "a line with a checksum in a log whose header has none"
    if type(event.get("seq")) is not int or event["seq"] != seq:
        return f"seq {event.get('seq')!r}"
    return None
