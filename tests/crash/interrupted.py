"""A program that opens, asks, forks, parks and closes sessions until it is interrupted.

Run by `test_interrupts` as `main`, with a store's address and a seed, which says how slow its
disk is, which tools it has and what it does. It says on its output, a JSON object a line, when it
has begun, how its Trio run ended, and which sessions can be opened afterwards in this very
process: none of them may be locked still. What Python dropped, since it struck where nothing may
be raised, is said, too.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

import refold
from refold import Call, Delay, Say
from refold.actors.stores import open_store
from refold.runtime.errors import RefoldError

T = TypeVar("T")

LIFETIME = 6.0
"""Seconds after which a program ends by itself, should no signal come."""

FREE_SECONDS = 1.0
"""How long after the end of a run a session may stay locked: its thread closes it."""


@refold.tool
async def wait() -> str:
    """Wait, and clean up."""
    try:
        await trio.sleep(0.3)
    finally:
        with trio.move_on_after(0.1, shield=True):
            await trio.sleep(0.05)
    return "waited"


@refold.tool
async def shield() -> str:
    """Wait under a shield."""
    with trio.CancelScope(shield=True):
        await trio.sleep(60)
    return "waited"


@refold.tool
async def swallow() -> str:
    """Wait whatever comes."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await trio.sleep(0.5)
        except trio.Cancelled:
            await trio.lowlevel.cancel_shielded_checkpoint()
    return "waited"


@refold.tool
async def thread() -> str:
    """Wait for a thread."""
    await trio.to_thread.run_sync(time.sleep, 1.5)
    return "waited"


@refold.tool(isolation="thread")
def hang() -> str:
    """Hang in a thread."""
    time.sleep(60)
    return "hung"


@refold.tool
def spin() -> str:
    """Keep the Trio thread busy."""
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        pass
    return "spun"


TOOLS = [wait, shield, swallow, thread, hang, spin]


def slow_store(where: str, chance: random.Random) -> Any:
    """The store at `where` on a disk that takes its time for every sync and every opening."""
    store = open_store(where)
    seconds = chance.choice([0.0, 0.003, 0.05, 0.4])
    rounds, run = store._committer._rounds, store._run
    sync, write = rounds.sync, rounds.write

    def slowly(work: Callable[..., T], *given: Any, **named: Any) -> T:
        time.sleep(random.uniform(0, seconds))
        return work(*given, **named)

    async def run_slowly(work: Callable[[], T], *undo: Any) -> T:
        return await run(partial(slowly, work), *undo)

    rounds.sync, rounds.write = partial(slowly, sync), partial(slowly, write)  # type: ignore[method-assign]  # a slow disk is the case
    store._run = run_slowly
    return store


async def scene(runtime: refold.Runtime, chance: random.Random) -> None:
    """One client: opens sessions in every way, uses them, and gives them back."""
    options: refold.AgentOptions = {"model": "script/m", "tools": TOOLS}
    agent = await runtime.start_agent(**options)
    while True:
        with trio.move_on_after(chance.choice([0.1, 1.0, 10.0])):
            await agent.ask("go on")
        match chance.choice(["ask", "park", "resume", "fork", "cancel", "delete"]):
            case "park":
                await agent.park()
            case "resume":
                await agent.close()
                agent = await runtime.resume(agent.session_id, continue_=True, **options)
            case "fork":
                await agent.cancel()
                with trio.move_on_after(chance.choice([0.01, 10.0])):
                    twin = await runtime.fork(agent.session_id, **options)
                    await twin.prompt("go on")
            case "cancel":
                await agent.prompt("go on")
                await trio.sleep(chance.uniform(0, 0.1))
                await agent.cancel()
            case "delete":
                await agent.close()
                await runtime.delete(agent.session_id)
                agent = await runtime.start_agent(**options)


def reply(body: Any) -> Any:
    """Mostly a call of one of the tools, then an answer in pieces."""
    if body["messages"][-1]["role"] == "user" and random.random() < 0.7:
        return [Delay(random.uniform(0, 0.05)), Call(random.choice(TOOLS).name, {})]
    return [Say("that is done", pieces=3), Delay(random.uniform(0, 0.05))]


async def live(where: str, chance: random.Random) -> None:
    store, clients = slow_store(where, chance), chance.choice([0, 1, 4])
    async with refold.open(store, providers=[refold.Script(reply)]) as runtime:
        with trio.move_on_after(LIFETIME):
            if clients == 0:  # the main task itself does it
                await scene(runtime, chance)
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(scene, runtime, random.Random(chance.random()))


async def open_again(where: str) -> None:
    """Open every session that is stored, once; says which of them could not be opened."""
    async with refold.open(where, providers=[refold.Script(reply)]) as runtime:
        for session in await runtime.list():
            until = trio.current_time() + FREE_SECONDS
            while True:
                try:
                    await (await runtime.resume(session, model="script/m", tools=())).close()
                    break
                except RefoldError as error:
                    if trio.current_time() > until:
                        tell(locked=session, error=str(error))
                        break
                await trio.sleep(0.05)


def main(where: str, seed: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = lambda dropped: tell(dropped=str(dropped))
    ended = "itself"
    try:
        tell(begun=True)
        trio.run(live, where, random.Random(int(seed)))
    except BaseException as error:  # noqa: BLE001 - whatever it was is told
        ended = type(error).__name__
    finally:
        at = time.monotonic()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    tell(ended=ended, at=at)
    trio.run(open_again, where)
    tell(opened=True)


def tell(**what: object) -> None:
    """Say one thing to whoever started this program."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
