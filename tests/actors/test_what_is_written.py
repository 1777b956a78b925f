"""What dispatch writes of a request and its answer: the seal, the chunks, the message."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

import refold
from refold import Delay, Fail, Say, Script, Think
from refold.actors.log.session_log import StepBoundary
from refold.actors.request.answer_writer import AnswerWriter, Recording
from refold.actors.request.retries import Retries
from refold.runtime.envelope import Event
from refold.runtime.messages import text_of
from refold.runtime.prefix import common_prefix
from refold.runtime.request import rebuild_request
from refold.runtime.request_header import EpochHeader, LlmCallConfig
from refold.runtime.stream.chunks import (
    BlockStart,
    Chunk,
    ReasoningDelta,
    TextDelta,
    Usage,
    UsageChunk,
)
from refold.runtime.stream.failures import Failure
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
        assert seal.codec == "chat/2"
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


async def written_by(act: Callable[[AnswerWriter], Awaitable[None]], *chunks: Chunk) -> list[Event]:
    """The events of a session in whose open step a writer of its own took chunks and `act`ed."""
    async with refold.open("memory:", providers=[Script([refold.Hang()])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.testing.wait_all_tasks_blocked()
            header = agent.log.live.session.header
            assert header is not None
            boundary = StepBoundary(agent.session_id, 1, 1, 0)
            writer = AnswerWriter(Recording(agent.log, boundary, header, "coalesced", []))
            await writer.follow(Chunks(*chunks))
            await act(writer)
            await agent.cancel()
        return stored_events(runtime, agent.session_id)


HALF = (BlockStart(0, "text"), TextDelta(0, "half"))
"""A block that is open when the stream breaks."""


async def test_interrupted_text_keeps_the_usage_that_was_reported() -> None:
    usage = Usage(input_tokens=7, output_tokens=3)
    events = await written_by(AnswerWriter.keep_interrupted, UsageChunk(usage), *HALF)
    (message,) = of_type(events, "assistant/message")
    assert message.interrupted
    assert message.usage == usage
    assert traced(events) == "half"


async def test_an_open_block_is_logged_whether_it_is_kept_or_void() -> None:
    thought = (BlockStart(0, "reasoning"), ReasoningDelta(0, "hm"))
    events = await written_by(AnswerWriter.keep_interrupted, *thought)
    assert of_type(events, "assistant/message") == []
    assert traced(events) == "hm"

    async def void(writer: AnswerWriter) -> None:
        await writer.void(1, Failure("SERVER", "broke"), 0.5)

    events = await written_by(void, *HALF)
    assert traced(events) == "half"
    (retry,) = of_type(events, "llm/retry")
    assert retry.delay_ms == 500


async def test_a_listeners_error_is_logged_and_keeps_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Chunk] = []

    def broken(_chunk: Chunk) -> None:
        raise LookupError("on purpose")

    async with refold.open("memory:", providers=[Script([Say("fine")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        agent.listen(broken)
        agent.listen(heard.append)
        assert (await agent.ask("hello")).text == "fine"
    assert heard
    assert "a listener of session s failed" in caplog.text


def test_a_provider_may_wish_for_no_longer_than_our_patience() -> None:
    still = Retries(jitter=lambda: 0.0)
    assert still.delay(1, Failure("RATE_LIMIT", "wait", retry_after_ms=60_000)) == 60.0


def traced(events: list[Event]) -> str:
    """The text and reasoning of logged chunks, put together."""
    chunks = [event.data.chunk for event in events if event.type == "assistant/chunk"]
    return "".join(one.text for one in chunks if isinstance(one, TextDelta | ReasoningDelta))


async def test_a_stream_is_logged_about_once_a_second_and_every_chunk_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first = (Say("a"), Delay(0.4), Say("b"), Delay(2))
    script = Script([[*first, Say("c"), Delay(0.4), Say("d"), Delay(9)]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", chunks="verbatim")
        seen: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            for seconds in (0.5, 2, 0.5):
                await trio.sleep(seconds)
                seen.append(traced(stored_events(runtime, agent.session_id)))
        events = assert_sound(runtime, agent)
    assert seen == ["", "ab", "ab"]
    assert traced(events) == "abcd"


async def test_what_a_void_attempt_streamed_stands_before_its_retry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Say("half an", pieces=2), Fail("STREAM_CLOSED")], Say("a whole answer")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        events = assert_sound(runtime, agent)
    void = next(event.seq for event in events if event.type == "llm/retry")
    assert traced(events[:void]) == "half an"
    assert traced(events[void:]) == "a whole answer"


@pytest.mark.parametrize(
    ("part", "kept"), [(Think("hm"), False), (Say("half an"), True)], ids=["thought", "said"]
)
async def test_what_was_streamed_before_a_failure_is_logged_and_what_was_said_is_kept(
    part: Say | Think, kept: bool
) -> None:
    script = Script([[part, Fail("AUTH")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        events = assert_sound(runtime, agent)
    assert traced(events) == part.text
    assert [message.interrupted for message in of_type(events, "assistant/message")] == [
        True
    ] * kept


@pytest.mark.parametrize("good", [True, False])
async def test_in_audit_what_a_broken_stream_said_is_kept_once_it_was_cleared(
    good: bool, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("one"), [Say("half an"), Delay(5), Fail("STREAM_CLOSED")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit", retries=0)
        await agent.ask("hello")
        if not good:
            slow_down(agent)  # the stream has broken long before the check has ended
            before_sealing(agent, slip_in)
        turn = await agent.ask("and now?")
        events = stored_events(runtime, agent.session_id)
    assert turn.reason.code == ("STREAM_CLOSED" if good else "INVARIANT")
    said = [text_of(message.content) for message in of_type(events, "assistant/message")]
    assert said == (["one", "half an"] if good else ["one"])


async def test_a_stream_out_of_order_is_not_written() -> None:
    async with refold.open("memory:", providers=[Script([refold.Hang()])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        header = EpochHeader(LlmCallConfig("script", model="m"))
        boundary = StepBoundary(agent.session_id, 1, 1, 0)
        writer = AnswerWriter(Recording(agent.log, boundary, header, "coalesced", []))
        with pytest.raises(Exception, match="block 0 is not open"):
            await writer.follow(Chunks(TextDelta(0, "of no block")))
