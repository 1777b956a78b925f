"""What a turn tells of its tool calls and messages, and what the program's log does."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest
import trio

import refold
from refold import Call, Deny, FinishedCall, Say, Script, Seams
from refold.runtime.events import ToolError
from refold.runtime.messages import text_of
from refold.runtime.prompt_ledger import PromptLedger
from tests.agents import assert_sound, count

Clock = trio.testing.MockClock


class Missing(Exception):
    """What the shop's tool raises."""


@refold.tool
async def buy(item: str) -> Any:
    """Buy."""
    match item:
        case "lamp":
            return "a lamp"
        case "now":
            return dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        case "exit":
            raise SystemExit(3)
        case "hang":
            await trio.sleep_forever()
    stock: Any = {}
    try:
        return stock[item].price
    except KeyError as error:
        raise Missing(f"no {item} in stock") from error


def shopping(*calls: Call) -> Script:
    """A model that makes these calls after each prompt, and is done after their results."""
    return Script(
        lambda body: Say("done") if body["messages"][-1]["role"] == "tool" else list(calls)
    )


def told(calls: tuple[FinishedCall, ...]) -> list[tuple[str, str, str, bool]]:
    return [(call.id, call.name, call.text, call.is_error) for call in calls]


LAMP = Call("buy", {"item": "lamp"}, id="c1")
CHAIR = Call("buy", {"item": "chair"}, id="c2")


async def test_a_turn_tells_its_calls_its_failures_and_its_messages(autojump_clock: Clock) -> None:
    script = Script(
        [[Say("Let me see."), LAMP, CHAIR], Call("nothing", "{", id="c1"), Say("Done.")]
    )
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[buy])
        await agent.inject("It is Monday.")
        turn = await agent.ask("Buy a lamp and a chair.")
        lamp, chair, nothing = turn.calls
        assert lamp == FinishedCall(
            1, "c1", "buy", '{"item":"lamp"}', lamp.content, is_error=False, error=None
        )
        assert told(turn.calls) == [
            ("c1", "buy", "a lamp", False),
            ("c2", "buy", "Error: Missing: no chair in stock", True),
            ("c1", "nothing", nothing.text, True),
        ]
        assert turn.failures == (chair, nothing)
        assert (chair.error, nothing.step) == (ToolError("Missing", "TOOL_FAILED"), 2)
        assert turn.messages == agent.messages()
        roles = "".join(message.role[0] for message in turn.messages)
        assert roles == "uuauuaua"
        assert_sound(runtime, agent)


async def test_a_later_turn_tells_of_itself_alone(autojump_clock: Clock) -> None:
    async with refold.open("memory:", providers=[shopping(LAMP)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[buy])
        first, second = await agent.ask("one"), await agent.ask("two")
        assert told(first.calls) == told(second.calls) == [("c1", "buy", "a lamp", False)]
        assert first.messages + second.messages == agent.messages()
        assert text_of(second.messages[0].content) == "two"
        assert second.failures == ()


async def test_a_turn_that_is_read_from_the_log_again_tells_the_same(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromptLedger, "KEPT", 1)
    async with refold.open("memory:", providers=[shopping(LAMP, CHAIR)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[buy])
        first = await agent.ask("one", idempotency_key="one")
        await agent.ask("two")
        read = await agent.ask("one", idempotency_key="one")
        assert (read, read.calls, read.messages) == (first, first.calls, first.messages)
        await agent.close()
        agent = await runtime.resume(agent.session_id, tools=[buy])
        resumed = await agent.ask("one", idempotency_key="one")
        assert (resumed.calls, resumed.messages) == (first.calls, first.messages)
    assert len(first.failures) == 1, "the runtime is closed"


async def test_denied_unknown_and_cancelled_calls_are_failures(autojump_clock: Clock) -> None:
    async def guard(call: refold.CallView) -> Deny | None:
        return Deny("not for sale") if "lamp" in call.arguments else None

    hang = Call("buy", {"item": "hang"}, id="c3")
    script = shopping(LAMP, Call("sell", id="c2"), hang)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[buy], seams=Seams(pre_tool=(guard,))
        )
        seq = await agent.prompt("hello")
        await trio.sleep(1)
        await agent.cancel()
        turn = await agent.answer(seq)
        assert [call.error and call.error.code for call in turn.failures] == [
            "DENIED",
            "UNKNOWN_TOOL",
            "ABORTED",
        ]
        assert turn.calls == turn.failures


async def test_what_a_tool_raises_is_logged_with_its_traceback(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with refold.open("memory:", providers=[shopping(CHAIR)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[buy])
        turn = await agent.ask("Buy a chair.")
        assert turn.reason.kind == "completed"
        (record,) = [one for one in caplog.records if one.name == "refold"]
        assert (record.levelno, record.getMessage()) == (
            logging.WARNING,
            f"tool 'buy' failed in call c2 of session {agent.session_id}",
        )
        assert "raise Missing(f" in caplog.text, "the line in the tool"
        assert "KeyError: 'chair'" in caplog.text, "and its cause"


@pytest.mark.parametrize("isolation", ["task", "thread"])
async def test_what_a_plain_function_raises_is_logged_too(
    isolation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @refold.tool(isolation=isolation)
    def trip() -> None:
        """Trip."""
        raise Missing("a step")

    async with refold.open("memory:", providers=[shopping(Call("trip"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[trip])
        await agent.ask("hello")
        assert 'raise Missing("a step")' in caplog.text


LOGGED = {
    "exit": "SystemExit: 3",
    "now": "tool 'buy' returned what no model can be shown: Error: the tool ran, but what it",
}


@pytest.mark.parametrize("item", LOGGED)
async def test_what_else_a_tool_did_wrong_is_logged(
    item: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    script = shopping(Call("buy", {"item": item}))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[buy])
        assert len((await agent.ask("hello")).failures) == 1
        assert LOGGED[item] in caplog.text


async def test_what_a_model_did_wrong_is_not_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    calls = (Call("buy", {"items": 3}), Call("count", "{"), Call("nothing"))
    async with refold.open("memory:", providers=[shopping(*calls)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[buy, count])
        assert len((await agent.ask("hello")).failures) == 3
        assert caplog.records == []
