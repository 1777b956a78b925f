"""A log that a crash cut anywhere goes on: resumed, repaired, asked again, verified.

The bytes themselves, at every offset, are the storage tests' business; here the whole agent
stands on what they left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold import Call, Say, Script, Think
from refold.runtime.envelope import Event, decode_line, parse_draft
from refold.runtime.errors import HistoryUnbalanced
from refold.runtime.events import SessionRecovered
from refold.runtime.storage.framing import frame_batch, frame_header
from refold.runtime.storage.jsonl.folder import JsonlFolder
from refold.runtime.storage.session_header import SessionHeader
from refold.runtime.verify import verify_requests
from tests.agents import assert_within_rules, count, read_file


async def record_a_life(folder: Path) -> bytes:
    """A session with tools, injected context and a second opening; returns its bytes."""
    script = Script(
        [
            [Call("read_file", {"path": "a"}), Call("count", {"upto": 3})],
            [Think("so"), Say("read and counted", pieces=3)],
            Say("noted"),
        ]
    )
    async with refold.open(folder, providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", session_id="life", system="S", tools=[read_file, count]
        )
        await agent.ask("read a and count to three")
        await agent.inject("the weather changed")
        await agent.ask("did you know?")
    async with refold.open(folder, providers=[Script([Say("still here")])]) as runtime:
        agent = await runtime.resume("life", tools=[read_file, count])
        await agent.ask("and now?")
    return (folder / "life.jsonl").read_bytes()


def batch_ends(whole: bytes, events: Sequence[Event]) -> list[int]:
    """The offsets at which the header and each whole batch end."""
    ends, offset = [], 0
    for line in whole.splitlines(keepends=True):
        offset += len(line)
        if b'"left":' not in line[:60]:
            ends.append(offset)
    return ends


def cuts(whole: bytes) -> list[int]:
    """Every line's end, the bytes around it, and seeded others."""
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 0x0A]
    near = {end + step for end in ends for step in (-1, 0, 1)}
    seeded = random.Random(7).sample(range(ends[0], len(whole)), 40)
    return sorted(cut for cut in near.union(seeded) if ends[0] < cut <= len(whole))


async def test_a_log_cut_anywhere_resumes_and_its_next_request_is_valid(tmp_path: Path) -> None:
    whole = await record_a_life(tmp_path / "whole")
    original = [
        decode_line(record.encoded)
        for record in JsonlFolder(tmp_path / "whole").read("life").records
    ]
    ends = batch_ends(whole, original)
    checked = 0
    for cut in cuts(whole):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "life.jsonl").write_bytes(whole[:cut])
        kept = max([end for end in ends if end <= cut + 1])  # a lost newline alone loses nothing
        if kept == ends[0]:
            continue  # no batch is whole: there is nothing to resume from but an empty log
        await resume_and_check(folder, original, cut, kept)
        checked += 1
    assert checked > 100


async def resume_and_check(folder: Path, original: list[Event], cut: int, kept: int) -> None:
    async with refold.open(folder, providers=[Script(lambda _: Say("back"))]) as runtime:
        agent = await runtime.resume("life", model="script/m", tools=[read_file, count])
        turn = await agent.ask("where were we?")
    assert (turn.reason.kind, turn.text) == ("completed", "back")
    records = JsonlFolder(folder).read("life").records
    events = [decode_line(record.encoded) for record in records]
    assert_within_rules(events)
    opening = max(event.seq for event in events if event.type == "session/owner")
    assert events[:opening] == original[:opening]
    assert records[opening - 1].offset + records[opening - 1].length == kept
    dropped = [event.data for event in events if isinstance(event.data, SessionRecovered)]
    assert [report.dropped_bytes for report in dropped] == [max(cut - kept, 0)] * len(dropped)
    assert (len(dropped) == 1) == (cut != kept)
    verdicts = list(verify_requests(records))
    assert verdicts
    assert all(verdict.verified for verdict in verdicts)


@pytest.mark.parametrize("ended_before", [False, True])
async def test_a_history_with_an_unanswered_call_is_refused_with_where_to_fork(
    tmp_path: Path, ended_before: bool
) -> None:
    content = {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"}
    message = {"turn": 1, "step": 1, "content": [content]}
    source = {"kind": "user"}
    records: list[dict[str, Any]] = [
        {
            "type": "turn/start",
            "data": {"turn": 1, "trigger": {"kind": "message", "source": source}},
        },
        {"type": "step/start", "data": {"turn": 1, "step": 1}},
        {"type": "assistant/message", "data": message, "surfaceOp": "append"},
        {"type": "step/end", "data": {"turn": 1, "step": 1}},
        {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "completed"}}},
    ]
    if ended_before:
        records = [
            *(part for part in records if part["type"] in ("turn/start", "turn/end")),
            *({**part, "data": {**part["data"], "turn": 2}} for part in records),
        ]
    lines = [parse_draft(record).at(seq, 1).encoded for seq, record in enumerate(records)]
    framed, chain = frame_header(SessionHeader("odd", 1)), 0
    for line in lines:
        batch, chain = frame_batch([line], chain, -1)
        framed += batch
    (tmp_path / "odd.jsonl").write_bytes(framed)
    async with refold.open(tmp_path, providers=[Script([Say("fine")])]) as runtime:
        with pytest.raises(HistoryUnbalanced) as refused:
            await runtime.resume("odd", model="script/m")
        assert refused.value.seqs == (4 if ended_before else 2,)
        assert refused.value.fork_at == (1 if ended_before else None)
        with pytest.raises(HistoryUnbalanced) as refused:
            await runtime.fork("odd", model="script/m")
        assert refused.value.fork_at == (1 if ended_before else None)
        assert await runtime.list() == ["odd"]
        if ended_before:
            assert "fork the session at seq 1, the last turn/end" in str(refused.value)
            agent = await runtime.fork("odd", at=1, model="script/m")
            assert (await agent.ask("hello")).text == "fine"
        else:
            assert "start a new session" in str(refused.value)
    assert (tmp_path / "odd.jsonl").read_bytes() == framed
