"""What dispatch writes of a request and its answer: the seal, the chunks, the message."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio
import trio.testing

import refold
from actors.answer_writer import AnswerWriter
from actors.session_log import StepBoundary
from refold import Delay, Fail, Say, Script, Think
from runtime.difference import common_prefix
from runtime.llm.chunks import BlockStart, Chunk, TextDelta, Usage, UsageChunk
from runtime.request import rebuild_request
from tests.actors.test_clearance import slow_down
from tests.actors.test_invariants import before_sealing, slip_in
from tests.agents import assert_sound, of_type, stored_events


async def test_a_seal_says_what_left_and_what_it_shares_with_the_request_before() -> None:
    script = Script(lambda _: Say("fine"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", system="S")
        for _ in range(3):
            await agent.ask("hello")
        events = assert_sound(runtime, agent)
    seals = of_type(events, "request/sealed")
    starts = [event.seq for event in events if event.type == "step/start"]
    before = b""
    for seal, body, start in zip(seals, script.bodies, starts, strict=True):
        assert seal.codec == "chat/1"
        assert seal.wire_bytes == len(body)
        assert seal.shared_prefix_bytes == common_prefix(before, body)
        assert seal.wire_digest == hashlib.sha256(body).hexdigest()
        assert seal.request_digest == rebuild_request(events, start).digest()
        before = body
    assert seals[2].shared_prefix_bytes > seals[1].shared_prefix_bytes > 0


async def test_a_resumed_session_goes_on_from_the_bytes_of_its_last_request(
    tmp_path: Path,
) -> None:
    script = Script(lambda _: Say("fine"))
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", system="S", session_id="s")
        await agent.ask("hello")
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.resume("s")
        await agent.ask("again")
        seals = of_type(assert_sound(runtime, agent), "request/sealed")
    before, after = script.bodies
    assert seals[1].shared_prefix_bytes == common_prefix(before, after) > len(before) // 2


async def test_a_message_cites_every_chunk_of_its_attempt_however_they_were_appended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Think("hm"), Delay(2), Say("one", pieces=2), Delay(2), Say("two")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        events = assert_sound(runtime, agent)
    chunks = [event.seq for event in events if event.type == "assistant/chunk"]
    (message,) = [event for event in events if event.type == "assistant/message"]
    assert chunks[-1] - chunks[0] >= len(chunks) - 1 > 2
    assert message.source_event_seqs == tuple(chunks)


async def test_an_audited_request_that_fails_is_checked_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Though the failure is there long before the check has ended."""
    script = Script([Say("one"), Fail("AUTH")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit")
        await agent.ask("hello")
        slow_down(agent)
        before_sealing(agent, slip_in)
        turn = await agent.ask("and now?")
        assert turn.reason.code == "INVARIANT"
        await agent.stopped.wait()


async def test_an_audited_request_that_fails_and_is_good_fails_as_itself() -> None:
    script = Script([Fail("AUTH"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit")
        assert (await agent.ask("hello")).reason.code == "AUTH"
        assert (await agent.ask("again")).text == "fine"


class Chunks:
    """A stream that brings these chunks and then says nothing more."""

    def __init__(self, *chunks: Chunk) -> None:
        self._rest = [[*chunks]]

    async def receive(self) -> list[Chunk]:
        return self._rest.pop() if self._rest else []


async def test_interrupted_text_keeps_the_usage_that_was_reported() -> None:
    usage = Usage(input_tokens=7, output_tokens=3)
    async with refold.open("memory:", providers=[Script([refold.Hang()])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.testing.wait_all_tasks_blocked()
            header = agent.log.live.session.header
            assert header is not None
            boundary = StepBoundary(agent.session_id, 1, 1, 0)
            writer = AnswerWriter(agent.log, boundary, header, "coalesced", [])
            stream = Chunks(UsageChunk(usage), BlockStart(0, "text"), TextDelta(0, "half"))
            await writer.follow(stream)
            await writer.keep_interrupted()
            await agent.cancel()
        (message,) = of_type(stored_events(runtime, agent.session_id), "assistant/message")
        assert message.interrupted
        assert message.usage == usage
