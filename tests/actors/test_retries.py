"""Failed requests are sent again with the same bytes, logged first; `audit` checks beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

import refold
from refold import ActorCrashed, Call, Delay, Fail, Hang, Say, Script, Think
from refold.actors.request.invariants import InvariantViolation
from refold.actors.request.model import Pass
from refold.actors.request.retries import Retries
from refold.actors.request.script import ScriptStream
from refold.runtime.events import AssistantMessage, LlmRetry
from refold.runtime.messages import text_of
from refold.runtime.stream.failures import RETRYABLE, Failure
from tests.actors.test_invariants import before_sealing, slip_in
from tests.agents import assert_within_rules, dispatch_of, read_file, stored_events


async def test_a_failure_before_any_content_is_retried_with_the_same_bytes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Fail("OVERLOADED", status=529), Fail("SERVER", status=500), Say("at last")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        assert (turn.reason.kind, turn.text) == ("completed", "at last")
        events = stored_events(runtime, agent.session_id)
    assert script.bodies[0] == script.bodies[1] == script.bodies[2]
    retries = [event.data for event in events if isinstance(event.data, LlmRetry)]
    assert [(retry.attempt, retry.failure.code) for retry in retries] == [
        (1, "OVERLOADED"),
        (2, "SERVER"),
    ]
    assert [event.type for event in events].count("request/sealed") == 1
    assert_within_rules(events)


async def test_an_attempt_that_broke_after_content_is_void_and_its_chunks_are_not_cited(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(
        [[Think("hm"), Say("half an"), Fail("STREAM_CLOSED")], [Say("a whole answer", pieces=3)]]
    )
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        events = stored_events(runtime, agent.session_id)
    assert turn.text == "a whole answer"
    void = next(event.seq for event in events if event.type == "llm/retry")
    (message,) = [event for event in events if event.type == "assistant/message"]
    assert message.source_event_seqs is not None
    assert min(message.source_event_seqs) > void
    assert any(event.type == "assistant/chunk" and event.seq < void for event in events)


async def test_when_retries_are_used_up_visible_text_is_kept_and_the_turn_ends_in_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda _: [Say("half an"), Fail("STREAM_CLOSED", "the stream broke")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", retries=2)
        turn = await agent.ask("hello")
        events = stored_events(runtime, agent.session_id)
    assert (turn.reason.kind, turn.reason.code) == ("error", "STREAM_CLOSED")
    assert len(script.bodies) == 3
    (message,) = [e.data for e in events if isinstance(e.data, AssistantMessage)]
    assert (message.interrupted, text_of(message.content)) == (True, "half an")
    assert_within_rules(events)


@pytest.mark.parametrize("code", ["AUTH", "QUOTA", "INVALID_REQUEST", "CONTEXT_WINDOW_EXCEEDED"])
async def test_what_asking_again_cannot_mend_is_not_retried(code: str) -> None:
    script = Script(lambda _: Fail(code))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
    assert turn.reason.code == code
    assert len(script.bodies) == 1


async def test_a_cancel_during_the_wait_ends_the_turn_and_the_next_prompt_works(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Fail("RATE_LIMIT", retry_after_ms=50_000), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(5)
            await agent.cancel("enough")
        assert (await agent.ask("and now?")).text == "fine"
        assert_within_rules(stored_events(runtime, agent.session_id))


def test_the_waits_double_are_spread_and_honour_the_provider_up_to_a_limit() -> None:
    overloaded = Failure("OVERLOADED", "busy")
    assert "OVERLOADED" in RETRYABLE
    still = Retries(jitter=lambda: 0.0)
    waits = [still.delay(attempt, overloaded) for attempt in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, None, None]
    assert Retries(limit=9, jitter=lambda: 0.0).delay(9, overloaded) == 10.0
    assert Retries(jitter=lambda: 1.0).delay(1, overloaded) == 0.25
    assert still.delay(1, Failure("RATE_LIMIT", "wait", retry_after_ms=7000)) == 7.0
    assert still.delay(1, Failure("RATE_LIMIT", "wait", retry_after_ms=61_000)) is None


async def test_audit_lets_a_good_request_stream_and_keeps_its_message() -> None:
    script = Script([[Call("read_file", {"path": "a"})], Say("read")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit", tools=[read_file])
        assert (await agent.ask("hello")).text == "read"
        events = stored_events(runtime, agent.session_id)
    seals = [event.data.invariants for event in events if event.type == "request/sealed"]
    assert seals == ["audit", "audit"]
    assert_within_rules(events)


@pytest.mark.parametrize(
    "answer", [[Say("streamed", pieces=2), Hang()], [Say("done at once")], [Fail("AUTH")]]
)
async def test_audit_cancels_a_step_whose_request_is_not_in_the_log(
    answer: list[Say | Hang | Fail], autojump_clock: trio.testing.MockClock
) -> None:
    closed: list[bool] = []

    class Watched(Script):
        @asynccontextmanager
        async def open(self, body: bytes, clearance: Pass) -> AsyncIterator[ScriptStream]:
            try:
                async with super().open(body, clearance) as stream:
                    yield stream
            finally:
                closed.append(True)

    script = Watched([[Delay(0), *answer]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit")
        before_sealing(agent, slip_in)
        turn = await agent.ask("hello")
        await agent.stopped.wait()
        events = stored_events(runtime, agent.session_id)
        with pytest.raises(ActorCrashed) as crashed:
            await agent.ask("still there?")
        assert isinstance(crashed.value.__cause__, InvariantViolation)
    assert turn.reason.code == "INVARIANT"
    assert closed == [True]
    assert [event.type for event in events].count("assistant/message") == 0
    assert_within_rules(events)


async def test_a_listener_hears_each_chunk_at_once_and_its_error_concerns_nobody() -> None:
    script = Script([[Say("one two", pieces=2)]])
    heard: list[str] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", chunks="none")

        def broken(_chunk: object) -> None:
            raise LookupError("on purpose")

        agent.listen(broken)
        stop = agent.listen(lambda chunk: heard.append(type(chunk).__name__))
        assert (await agent.ask("hello")).reason.kind == "completed"
        stop()
    assert heard == ["BlockStart", "TextDelta", "TextDelta", "BlockEnd", "UsageChunk", "Finish"]
    assert dispatch_of(agent).listeners == [broken]
