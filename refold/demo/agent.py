"""The agent of the tour: a weigher of parcels, on a scripted model or on a real engine."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import attrs

from refold.actors.request.script import Call, Say, Script
from refold.actors.tools import Tool, tool
from refold.actors.turn.options import AgentOptions
from refold.runtime.wire.providers import BUILT_IN, Provider

GRAMS = {"amber": 1200, "birch": 850, "cedar": 2300, "dune": 400}

FIRST_LIFE = ("Please weigh amber.", "Please weigh birch.", "Please weigh cedar.")
"""What the agent is asked before it is killed; each makes one tool call."""

STUCK_AT = 3
"""The tool call that never ends in the first life."""

SECOND_LIFE = ("The power was out. Please weigh cedar again, then dune.", "Which was the heaviest?")

_SYSTEM = "You work in a parcel office. Weigh what you are asked to weigh, one parcel at a time."


def scales(before: Callable[[], Awaitable[None]]) -> Tool:
    """The tool `weigh`; `before` is awaited inside each call, before it answers."""

    @tool(timeout=math.inf)
    async def weigh(parcel: Literal["amber", "birch", "cedar", "dune"]) -> str:
        """Put a parcel on the scales and read its weight."""
        await before()
        return f"{parcel} weighs {GRAMS[parcel]} g"

    return weigh


def new_agent(weigh: Tool, engine_url: str | None) -> AgentOptions:
    """What the agent starts from."""
    made: AgentOptions = {"system": _SYSTEM, "tools": [weigh], "invariants": "full"}
    if engine_url is None:
        return {**made, "model": "script/weigher"}
    return {
        **made,
        "model": "local/tiny",
        "temperature": 0.7,
        "max_tokens": 200,
        "extra": {"seed": 11, "id_slot": 0, "parallel_tool_calls": False},
    }


def provider(engine_url: str | None) -> Provider | Script:
    """Where the model is: the script, or the engine that listens at `engine_url`."""
    if engine_url is None:
        return Script(answer)
    return attrs.evolve(BUILT_IN["local"], base_url=engine_url)


def answer(body: Any) -> Call | Say:
    """The scripted model: it sees the whole request and nothing else, like any model."""
    messages = body["messages"]
    prompt = max(at for at, message in enumerate(messages) if message["role"] == "user")
    asked = [parcel for parcel in GRAMS if parcel in messages[prompt]["content"]]
    results = _results(messages[prompt:])
    if len(results) < len(asked):
        return Call("weigh", {"parcel": asked[len(results)]})
    if asked:
        return Say("; ".join(results) + ".", pieces=4)
    weights = (result for result in _results(messages) if result.endswith(" g"))
    heaviest = max(weights, key=lambda result: int(result.split()[-2]))
    return Say(f"The heaviest: {heaviest}.", pieces=4)


def _results(messages: Sequence[Any]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]
