"""An answer that says nothing and calls nothing is none: asked for once more, then an error."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

import refold
from refold import Call, End, Say, Script, Think
from refold.actors.request.retries import Retries
from refold.runtime.events import LlmRetry
from refold.runtime.stream.failures import Failure
from tests.agents import assert_sound, count

EMPTY: dict[str, Any] = {
    "nothing": [],
    "no text": Say(""),
    "blanks": [Say(" \n\t ")],
    "thoughts alone": [Think("hm"), Think("so")],
    "thoughts and blanks": [Think("hm"), Say(" ")],
    "calls without a call": End("tool-calls"),
}


@pytest.mark.parametrize("answer", EMPTY.values(), ids=EMPTY)
async def test_an_empty_answer_is_asked_for_once_more_and_is_the_turn_s_error_then(
    answer: Any, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([answer, answer, Say("never asked"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        assert (turn.reason.kind, turn.reason.code) == ("error", "EMPTY_RESPONSE")
        assert "the model answered nothing" in str(turn.reason.message)
        events = assert_sound(runtime, agent)
        retries = [event.data for event in events if isinstance(event.data, LlmRetry)]
        assert [retry.failure.code for retry in retries] == ["EMPTY_RESPONSE"]
        assert len(script.bodies) == 2
        assert script.bodies[0] == script.bodies[1]
        assert not any(event.type == "assistant/message" for event in events)
        # What was said is still there, and the next request is one that a server takes.
        assert (await agent.ask("again")).text == "never asked"
        assert b'"content":""' not in script.bodies[2]


@pytest.mark.parametrize("answer", EMPTY.values(), ids=EMPTY)
async def test_the_second_answer_counts(
    answer: Any, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([answer, Say("now")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        assert (turn.reason.kind, turn.text) == ("completed", "now")


async def test_after_a_tool_call_too(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([Call("count", {"upto": 1}), Think("done"), Think("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count])
        assert (await agent.ask("hello")).reason.code == "EMPTY_RESPONSE"


@pytest.mark.parametrize("answer", [[Say("0")], [Think("hm"), Call("count", {"upto": 1})]])
async def test_a_word_or_a_call_is_an_answer(
    answer: Any, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([answer, Say("end")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count])
        assert (await agent.ask("hello")).reason.kind == "completed"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([Think("hm"), End("max-tokens")], "max-tokens"),
        ([End("max-tokens")], "max-tokens"),
        ([End("content-filter")], "error"),
    ],
)
async def test_what_a_limit_or_a_filter_cut_is_not_asked_for_again(
    answer: Any, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([answer, Say("never asked")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        assert turn.reason.kind == reason
        assert turn.reason.code != "EMPTY_RESPONSE"
        assert len(script.bodies) == 1


@pytest.mark.parametrize(("limit", "again"), [(0, [False]), (1, [True, False]), (5, [True, False])])
def test_an_empty_answer_is_paid_for_twice_at_most(limit: int, again: list[bool]) -> None:
    retries, empty = Retries(limit), Failure("EMPTY_RESPONSE", "nothing")
    assert [retries.delay(n, empty) is not None for n in range(1, len(again) + 1)] == again
