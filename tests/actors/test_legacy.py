"""Header vocabulary of the past is refused everywhere, before anything is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import refold
from refold.runtime.envelope import decode_line, parse_draft
from refold.runtime.errors import LegacyEvent
from refold.runtime.history import History
from refold.runtime.storage.framing import frame_batch, frame_header
from refold.runtime.storage.session_header import SessionHeader

HEADER = {"config": {"provider": "p", "model": "m"}}
LEGACY: dict[str, dict[str, Any]] = {
    "a header delta": {"type": "request/header-delta", "data": {"system": {"keepStart": 1}}},
    "the reason fallback": {
        "type": "request/header",
        "data": {"header": HEADER, "reason": "fallback"},
    },
    "no reason": {"type": "request/header", "data": {"header": HEADER}},
    "a reason that is no text": {
        "type": "request/header",
        "data": {"header": HEADER, "reason": ["initial"]},
    },
}


def encoded(record: dict[str, Any], seq: int) -> bytes:
    return orjson.dumps({"type": record["type"], "seq": seq, "time": 1, "data": record["data"]})


TODO = {"type": "todo/write", "data": {"todos": []}}


@pytest.mark.parametrize("name", LEGACY)
def test_refused_at_append_and_as_a_seed(name: str) -> None:
    with pytest.raises(LegacyEvent):
        parse_draft(LEGACY[name])
    with pytest.raises(LegacyEvent):
        History(map(decode_line, [encoded(TODO, 0), encoded(LEGACY[name], 1)]))


@pytest.mark.parametrize("name", LEGACY)
async def test_refused_on_load_and_as_a_fork_before_anything_is_replayed(
    name: str, tmp_path: Path
) -> None:
    end = {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "completed"}}}
    batch = [encoded(TODO, 0), encoded(LEGACY[name], 1), encoded(end, 2)]
    whole = frame_header(SessionHeader("old", 1)) + frame_batch(batch, 0, -1)[0]
    file = tmp_path / "old.jsonl"
    file.write_bytes(whole)
    async with refold.open(tmp_path) as runtime:
        with pytest.raises(LegacyEvent) as refused:
            await runtime.resume("old")
        assert refused.value.seq == 1
        assert "only full `request/header` snapshots" in str(refused.value)
        with pytest.raises(LegacyEvent):
            await runtime.fork("old")
        assert await runtime.list() == ["old"]
    assert file.read_bytes() == whole
