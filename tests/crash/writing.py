"""Programs that write sessions until they are killed, for a fork server.

They say on standard output each event that was acknowledged as durable, as lines of a `Journal`,
and between those what they do, as JSON objects.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any

import trio

import refold
from refold import Call, Delay, Say, Think
from refold.faults import Journal
from refold.runtime.envelope import Event
from refold.runtime.storage.errors import NotFound

LIFETIME = 60.0
"""Seconds after which a life ends by itself, should nobody kill it."""

LARGE = 1 << 21
"""Characters of the largest text: a write of many pages, which a kill can tear."""


@refold.tool
async def look(at: str) -> str:
    """Look around."""
    await trio.sleep(random.uniform(0, 0.002))
    return f"nothing at {at}" + "." * random.choice([0, 0, 0, 5000])


def reply(body: Any) -> Any:
    """Two calls for every other prompt, then an answer in pieces; hardly slow."""
    pause = Delay(random.uniform(0, 0.002))
    if body["messages"][-1]["role"] == "user" and random.random() < 0.5:
        return [Think("hm", pieces=2), pause, Call("look", {"at": "a"}), Call("look", {"at": "b"})]
    return [pause, Say("word " * random.choice([1, 10, 2000]), pieces=3)]


OPTIONS: refold.AgentOptions = {"model": "script/m", "tools": [look]}


def open_runtime(store: str) -> AbstractAsyncContextManager[refold.Runtime]:
    return refold.open(store, providers=[refold.Script(reply)], park_after=None)


async def open_agent(runtime: refold.Runtime, session: str, *, continues: bool) -> refold.Agent:
    try:
        return await runtime.resume(session, continue_=continues, **OPTIONS)
    except NotFound:
        return await runtime.start_agent(session_id=session, **OPTIONS)


class Witness:
    """Notes what an agent makes, and says of it what was acknowledged: lines of a `Journal`."""

    def __init__(self, agent: refold.Agent, say: Callable[[bytes], object] | None = None) -> None:
        self._session, self._say = agent.session_id, say or tell
        self._made: dict[int, bytes] = {}
        agent.log.observe(self.note)

    def note(self, event: Event) -> None:
        self._made[event.seq] = event.encoded

    def acknowledged(self, seq: int) -> None:
        """Say that everything up to `seq` is durable."""
        for earlier in [made for made in self._made if made <= seq]:
            self._say(Journal.line(self._session, earlier, self._made.pop(earlier)))


class Writer:
    """An agent that is told all kinds of things, and says what was acknowledged of it."""

    def __init__(self, runtime: refold.Runtime, nursery: trio.Nursery, agent: refold.Agent) -> None:
        self.runtime, self.nursery = runtime, nursery
        self.use(agent)

    def use(self, agent: refold.Agent) -> None:
        """Go on with this agent, and say what its durable subscription brings."""
        self.agent, self.witness = agent, Witness(agent)
        self.nursery.start_soon(follow, agent)

    async def live(self, wanted: str) -> None:
        """Do this and that until the end; what is wanted comes soon."""
        for turn in count():
            names = [wanted] if turn == 2 and wanted else random.choices([*ACTS], [*ACTS.values()])
            await getattr(self, names[0])()
            await trio.sleep(random.choice([0, 0, 0.002]))

    async def ask(self) -> None:
        turn = await self.agent.ask(text(10))
        self.witness.acknowledged(turn.end_seq)

    async def prompt(self) -> None:
        for size in random.choices([10, 10, 1000, 20000], k=random.randint(1, 5)):
            self.witness.acknowledged(await self.agent.prompt(text(size)))

    async def prompt_at_length(self) -> None:
        say(writing="at length")
        self.witness.acknowledged(await self.agent.prompt(text(random.choice([LARGE, LARGE // 8]))))

    async def inject(self) -> None:
        self.witness.acknowledged(await self.agent.inject(text(100)))

    async def park(self) -> None:
        say(writing="park")
        await self.agent.park()

    async def close(self) -> None:
        await self.agent.wait_idle()
        say(writing="close")
        await self.agent.close()
        session = self.agent.session_id
        self.use(await open_agent(self.runtime, session, continues=False))

    async def fork(self) -> None:
        await self.ask()
        say(writing="fork")
        forked = await self.runtime.fork(self.agent.session_id, **OPTIONS)
        await Writer(self.runtime, self.nursery, forked).ask()
        await forked.close()


async def follow(agent: refold.Agent) -> None:
    async for event in agent.events():
        tell(Journal.line(agent.session_id, event.seq, event.encoded))


ACTS = {
    "ask": 4,
    "prompt": 4,
    "inject": 2,
    "park": 1,
    "close": 1,
    "fork": 0.5,
    "prompt_at_length": 0.3,
}
"""What a writer does, and how often."""


def text(size: int) -> str:
    """A text of about so many characters, not all of them ASCII."""
    return "".join(random.choices(["a", "b ", "é", "\u2028", "\n", "🙂"], k=1000)) * (
        size // 1000
    ) + "x" * (size % 1000)


def say(**what: str | int) -> None:
    tell(json.dumps(what).encode() + b"\n")


def tell(line: bytes) -> None:
    """One write, however many tasks speak: a line is never mixed with another."""
    os.write(1, line)


def write(store: str, session: str, life: str, wanted: str) -> None:
    """Open the session and write to it until the end; `wanted` is one of `ACTS`, or empty."""
    random.seed(f"{session}/{life}")
    announce_large_writes()
    trio.run(_write, store, session, wanted)


def announce_large_writes() -> None:
    """Say so before each write that takes long enough to be torn."""
    pwrite = os.pwrite

    def announced(fd: int, data: bytes | memoryview, offset: int) -> int:
        if len(data) > LARGE // 16:
            say(writing="many pages")
        return pwrite(fd, data, offset)

    os.pwrite = announced  # type: ignore[assignment]  # it is asked for no other kind of bytes


async def _write(store: str, session: str, wanted: str) -> None:
    with trio.move_on_after(LIFETIME):
        async with open_runtime(store) as runtime, trio.open_nursery() as nursery:
            agent = await open_agent(runtime, session, continues=random.random() < 0.5)
            say(opened=session)
            await Writer(runtime, nursery, agent).live(wanted)


def boast(store: str, session: str, life: str) -> None:
    """Write as `write` does, and say of each event that it is safe once it is made: a lie."""

    def note(self: Witness, event: Event) -> None:
        tell(Journal.line(self._session, event.seq, event.encoded))

    Witness.note = note  # type: ignore[method-assign]  # the planted bug
    write(store, session, life, "prompt_at_length")


def finish(store: str, session: str) -> None:
    """Ask once more in every session, and end."""
    random.seed(session)
    trio.run(_finish, store, session)


async def _finish(store: str, session: str) -> None:
    async with open_runtime(store) as runtime:
        for found in {session, *await runtime.list()}:
            agent = await open_agent(runtime, found, continues=True)
            turn = await agent.ask("And now?")
            await agent.wait_idle()
            say(finished=found, reason=turn.reason.kind)
