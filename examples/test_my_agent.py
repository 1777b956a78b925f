"""How to test an agent of your own: python -m pytest examples/test_my_agent.py

`refold.Script` is a model that says what you tell it to, so a test needs no key and no network,
and costs nothing. Together with a store in memory and Trio's virtual clock it is fast, too: a
day of waiting takes no time at all.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import trio
import trio.testing

import refold

# --- the agent under test: in your program this lives in a module of its own -----------------


@refold.tool(effects=False, timeout=24 * 3600)
async def forecast(city: str) -> str:
    """The weather of tomorrow."""
    await trio.sleep(3600)  # a slow service
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"rain in {city}"


async def start_weather_agent(runtime: refold.Runtime, model: str) -> refold.Agent:
    return await runtime.start_agent(
        model=model, system="You forecast the weather.", tools=[forecast]
    )


# --- its tests -------------------------------------------------------------------------------


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an async test on a clock that jumps over every wait. (pytest-trio does this as well.)"""
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def test_it_looks_up_the_city_and_answers() -> None:
    # What the model will say: first a tool call, then, having seen the result, its answer.
    model = refold.Script([refold.Call("forecast", {"city": "Oslo"}), refold.Say("Take a coat.")])

    async def test() -> None:
        async with refold.open("memory:", providers=[model]) as runtime:
            agent = await start_weather_agent(runtime, "script/any")
            turn = await agent.ask("What do I wear in Oslo tomorrow?")
            assert turn.text == "Take a coat."
            assert turn.reason.kind == "completed"

    run(test)
    # `bodies` keeps every request as it would have been sent, byte for byte.
    last = json.loads(model.bodies[-1])["messages"][-1]
    assert (last["role"], last["content"]) == ("tool", "rain in Oslo")


def test_the_model_is_told_when_there_is_no_such_city() -> None:
    def model(body: dict[str, list[dict[str, str]]]) -> refold.Call | refold.Say:
        """A function instead of a list: it answers what it is shown."""
        last = body["messages"][-1]
        if last["role"] == "tool":
            return refold.Say(f"I was told: {last['content']}")
        return refold.Call("forecast", {"city": "Atlantis"})

    async def test() -> None:
        async with refold.open("memory:", providers=[refold.Script(model)]) as runtime:
            agent = await start_weather_agent(runtime, "script/any")
            turn = await agent.ask("And in Atlantis?")
            assert "no such city" in turn.text

    run(test)


def test_a_question_can_be_taken_back_while_the_service_is_slow() -> None:
    model = refold.Script([refold.Call("forecast", {"city": "Oslo"}), refold.Say("Hello!")])

    async def test() -> None:
        async with refold.open("memory:", providers=[model]) as runtime:
            agent = await start_weather_agent(runtime, "script/any")
            await agent.prompt("What do I wear in Oslo tomorrow?")
            await trio.sleep(60)
            await agent.cancel("changed my mind")
            # The log is in order again, so the agent can be asked something else at once.
            assert (await agent.ask("Hello?")).text == "Hello!"

    run(test)
