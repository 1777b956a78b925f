"""A template that prints no ids shows each call's result in its place, however they came in."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import trio

import refold
from refold import Call, Say, Script
from refold.testing import open_engine

pytestmark = pytest.mark.engine

CITIES = {"Rome": 0.2, "Oslo": 0.1, "Lima": 0.0}
"""The cities asked for, and how long each one's weather takes: the last call is the fastest."""


@refold.tool(parallel=True)
async def weather(city: str) -> str:
    """What the weather is like."""
    await trio.sleep(CITIES[city])
    return f"it rains in {city}"


async def test_the_prompt_that_the_engine_makes_has_the_results_in_call_order() -> None:
    def reply(body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return Say("done")
        return [Call("weather", {"city": city}) for city in CITIES]

    script = Script(reply)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[weather])
        await agent.ask("How is it?")
    async with open_engine() as engine:
        prompt = await engine.apply_template(orjson.loads(script.bodies[-1]))
    places = [prompt.index(f"it rains in {city}") for city in CITIES]
    assert places == sorted(places)
