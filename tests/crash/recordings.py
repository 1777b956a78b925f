"""Sessions that are recorded on a disk, for enumerating what a crash leaves of them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, TypeAlias

import attrs
import trio
import trio.testing

import refold
from refold import Call, Hang, Say, Script
from refold.actors.stores import Store
from refold.faults import RecordingDisk, crash_states, recorded_store
from refold.runtime.storage import Port

Scene: TypeAlias = Callable[[Store, random.Random], Awaitable[None]]

SESSION = "one"


@attrs.frozen
class Recording:
    """What happened on a disk, from `name`, a scene, and a seed."""

    name: str
    seed: int
    disk: RecordingDisk = attrs.field(repr=False)


def record(name: str, seed: int = 0) -> Recording:
    """Play a scene on a disk of its own."""
    chance, disk = random.Random(f"{name}/{seed}"), RecordingDisk()
    if name == "repair":
        disk = torn_disk(record("tools", seed).disk, chance)
    return play(name, seed, disk, chance)


def play(
    name: str, seed: int, disk: RecordingDisk, chance: random.Random, port: Port | None = None
) -> Recording:
    """Play a scene on this disk, through `port` if one stands before it."""
    trio.run(SCENES[name], recorded_store(disk, port), chance)
    return Recording(name, seed, disk)


def torn_disk(before: RecordingDisk, chance: random.Random) -> RecordingDisk:
    """A disk with one of the torn logs that a crash may leave, and what had been acknowledged."""
    states = crash_states(before, kinds=["byte cut"], seed=chance.randrange(1000))
    state = next(islice(states, chance.randrange(3000, 6000), None))
    disk = state.disk()
    for mark in state.marks:
        disk.mark(mark)
    return disk


def tool_of(chance: random.Random, size: int) -> refold.Tool:
    @refold.tool
    async def look(at: str) -> str:
        """Look at something."""
        return f"{at}: " + "".join(chance.choices("abcdefgh \n", k=chance.randrange(size)))

    return look


def model_of(chance: random.Random) -> Script:
    """A model that hangs when it is told to, and calls the tool at times."""

    def answer(body: Any) -> Any:
        last = body["messages"][-1]
        text = Say(f"I have seen {len(body['messages'])}.", pieces=chance.randrange(1, 4))
        if last["role"] == "user" and "for ever" in last["content"]:
            return [text, Hang()]
        if last["role"] == "user" and "look" in last["content"]:
            return [text, *(Call("look", {"at": f"{n}"}) for n in range(chance.randrange(1, 3)))]
        return text

    return Script(answer)


async def tools(store: Store, chance: random.Random) -> None:
    async with refold.open(store, providers=[model_of(chance)]) as runtime:
        agent = await start(runtime, chance, 300)
        await agent.ask("look around")
        await agent.ask("what was it?")


async def cancel(store: Store, chance: random.Random) -> None:
    async with refold.open(store, providers=[model_of(chance)]) as runtime:
        agent = await start(runtime, chance, 100)
        await agent.prompt("think for ever")
        await wait_for(agent, "request/sealed")
        if chance.random() < 0.5:
            await trio.testing.wait_all_tasks_blocked()  # the model has said what it will
        await agent.cancel(drop_pending=True)  # a full disk may have kept the turn from beginning
        await agent.ask("and now look")


async def fork(store: Store, chance: random.Random) -> None:
    async with refold.open(store, providers=[model_of(chance)]) as runtime:
        agent = await start(runtime, chance, 50)
        await agent.ask("hello")
        twin = await runtime.fork(SESSION, tools=[tool_of(chance, 50)])
        await twin.ask("look again")
        await agent.ask("bye")


async def large(store: Store, chance: random.Random) -> None:
    """Unsynced writes of many blocks."""
    async with refold.open(store, providers=[model_of(chance)]) as runtime:
        agent = await start(runtime, chance, 1)
        await agent.ask("hello")
        for _ in range(2):
            await agent.prompt("look " * chance.randrange(6_000, 12_000))
            await agent.wait_idle()


async def repair(store: Store, chance: random.Random) -> None:
    """An opening that finds a torn log, and a turn after it."""
    async with refold.open(store, providers=[model_of(chance)]) as runtime:
        agent = await runtime.resume(SESSION, tools=[tool_of(chance, 50)])
        await agent.ask("what happened?")


async def start(runtime: refold.Runtime, chance: random.Random, size: int) -> refold.Agent:
    tool = tool_of(chance, size)
    return await runtime.start_agent(session_id=SESSION, model="script/m", tools=[tool])


async def wait_for(agent: refold.Agent, type_: str) -> None:
    """Wait for an event of the turn in hand."""
    with trio.fail_after(10):
        async for event in agent.events():
            if event.type == type_:
                return


SCENES: dict[str, Scene] = {
    "tools": tools,
    "cancel": cancel,
    "fork": fork,
    "repair": repair,
    "large": large,
}
