"""A program that accepts prompts for one session until it is killed, or told to end.

Run as `python -m tests.crash.prompting STORE SESSION LIFE [last]`, with the keys that earlier
lives accepted on its input, one a line; it repeats them first. It says on its output what it
accepts, a JSON object a line. Its `last` life accepts one more, asks for every answer and ends
once the agent is idle.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import count
from pathlib import Path
from typing import Any

import trio

import refold
from refold import Call, Delay, Say
from refold.errors import Draining
from refold.runtime.storage.errors import NotFound

LIFETIME = 60.0
"""Seconds after which a life ends by itself, should nobody kill it."""


@refold.tool
async def look(at: str) -> str:
    """Look around."""
    await trio.sleep(random.uniform(0, 0.004))
    return f"nothing at {at}"


def reply(body: Any) -> Any:
    """A call for every other prompt, then an answer in pieces; a little slow."""
    last = body["messages"][-1]
    pause = Delay(random.uniform(0, 0.004))
    if last["role"] == "user" and random.random() < 0.5:
        return [pause, Call("look", {"at": last["content"]})]
    return [pause, Say(f"answered {len(body['messages'])}", pieces=3), pause]


async def open_agent(runtime: refold.Runtime, session: str) -> refold.Agent:
    options: refold.AgentOptions = {"model": "script/m", "tools": [look]}
    try:
        return await runtime.resume(session, continue_=True, **options)
    except NotFound:
        return await runtime.start_agent(session_id=session, **options)


async def live(store: Path, session: str, life: str, *, last: bool) -> None:
    keys = sys.stdin.read().split()
    drain = random.choice([0, 0.1])
    async with refold.open(store, providers=[refold.Script(reply)], drain=drain) as runtime:
        try:
            agent = await open_agent(runtime, session)
            tell(opened=life)
            for key in keys:
                await accept(agent, key)
            if last:
                await accept(agent, "last")
                await ask_for_all(agent, [*keys, "last"])
                return
            for n in count(1):
                await accept(agent, f"{life}.{n}")
                await trio.sleep(random.uniform(0, 0.02))
        except Draining:
            await trio.sleep(LIFETIME)  # until the drain is over


async def accept(agent: refold.Agent, key: str) -> None:
    tell(key=key, seq=await agent.prompt(f"prompt {key};", idempotency_key=key))


async def ask_for_all(agent: refold.Agent, keys: list[str]) -> None:
    for key in keys:
        turn = await agent.ask(f"prompt {key};", idempotency_key=key)
        tell(answered=key, turn=turn.turn, reason=turn.reason.kind)
    await agent.wait_idle()


def tell(**what: str | int) -> None:
    """Say one thing to whoever started this program."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(*arguments: str) -> None:
    store, session, life, *last = arguments
    random.seed(f"{session}/{life}")
    with trio.move_on_after(LIFETIME):
        await live(Path(store), session, life, last=bool(last))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
