"""The tour itself: a first life that is killed, a second one that goes on, and the proof."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import attrs
import trio

from refold.actors.agent import Agent
from refold.actors.runtime import open_runtime
from refold.demo.account import account
from refold.demo.agent import SECOND_LIFE, provider, scales
from refold.demo.outcome import Outcome
from refold.demo.process import Child, open_child
from refold.render import visible_line
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import Broken
from refold.runtime.events import EndReason, SessionOwner, ToolResult, TurnEnd
from refold.runtime.storage import Record, open_sessions
from refold.testing import open_engine

Say = Callable[[str], None]

PATIENCE = 60.0
"""How long, in seconds, each life may take; both together take about a second."""


@attrs.define(eq=False)
class DemoFailed(Broken):
    """The tour could not be given to its end; the text says where it stopped."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@attrs.frozen
class _FirstLife:
    session: str
    pid: int
    exit_status: int


async def tell(store: str, *, engine: bool, say: Say) -> Outcome:
    """Give the tour on the store at `store`, saying each thing as it happens.

    Raises `DemoFailed`, `EngineUnavailable`, and what the runtime raises. Whatever ends it,
    cancellation too, the child process and the engine are gone afterwards.
    """
    async with _engine_url(say, wanted=engine) as url:
        say(f"The sessions of this tour are kept in {store}.")
        first = await _first_life(store, url, say)
        before = _events(store, first.session)
        say(
            f"The log ends with {before[-1].type} at seq {before[-1].seq}: "
            "its turn is open and the call has no result."
        )
        closers, turns = await _second_life(store, first.session, len(before), url, say)
    say("Now every request of both lives is rebuilt from the file alone.")
    rows = account(_stored(store, first.session))
    return Outcome(
        store, first.session, first.pid, first.exit_status, closers, turns, tuple(rows), engine
    )


def _events(store: str, session: str) -> list[Event]:
    return [decode_line(record.encoded) for record in _stored(store, session)]


def _stored(store: str, session: str) -> list[Record]:
    with closing(open_sessions(store)) as sessions:
        return [*sessions.read(session).records]


@asynccontextmanager
async def _engine_url(say: Say, *, wanted: bool) -> AsyncIterator[str | None]:
    if not wanted:
        yield None
        return
    async with open_engine() as engine:
        say(f"A real inference engine runs in process {engine.pid}; it stays up all along.")
        yield engine.base_url


async def _first_life(store: str, url: str | None, say: Say) -> _FirstLife:
    async with open_child(store, url) as child:
        say(f"Process {child.pid} starts an agent that has one tool, `weigh`.")
        session = None
        with trio.move_on_after(PATIENCE):
            session = await _until_stuck(child, say)
        if session is None:
            raise DemoFailed(f"process {child.pid} was not inside its tool after {PATIENCE:g} s")
        say(f"Process {child.pid} is inside the tool. SIGKILL: no warning, no clean-up.")
        return _FirstLife(session, child.pid, await child.kill())


async def _until_stuck(child: Child, say: Say) -> str:
    session = ""
    while (heard := await child.heard()) is not None:
        if "session" in heard:
            session = heard["session"]
            say(f"  session  {session}")
        elif "stuck" in heard:
            return session
        else:
            _say_turn(heard["asked"], heard["answered"], say)
    raise DemoFailed(f"process {child.pid} ended before it was inside its tool")


async def _second_life(
    store: str, session: str, known: int, url: str | None, say: Say
) -> tuple[tuple[Event, ...], tuple[EndReason, ...]]:
    async def ready() -> None:
        """The scales work again."""

    async with open_runtime(store, providers=[provider(url)]) as runtime:
        say("This process opens the session again, which closes what the kill left open:")
        agent = await runtime.resume(session, tools=[scales(ready)], invariants="full")
        closers = tuple(_events(store, session)[known:])
        for event in closers:
            say(f"  seq {event.seq:<4} {event.type:<14} {_meaning(event)}".rstrip())
        say("The agent goes on:")
        return closers, await _go_on(agent, say)


async def _go_on(agent: Agent, say: Say) -> tuple[EndReason, ...]:
    ends: list[EndReason] = []
    with trio.move_on_after(PATIENCE):
        for prompt in SECOND_LIFE:
            turn = await agent.ask(prompt)
            _say_turn(prompt, turn.text, say)
            ends.append(turn.reason)
        return tuple(ends)
    raise DemoFailed(f"the agent that came back had not answered after {PATIENCE:g} s")


def _meaning(event: Event) -> str:
    match event.data:
        case SessionOwner(term=term):
            return f"opening number {term}"
        case ToolResult():
            return "the model is told that the outcome of its call is unknown"
        case TurnEnd(reason=reason):
            return reason.kind
    return ""


def _say_turn(asked: str, answered: str, say: Say) -> None:
    say(f"  asked    {asked}")
    say(f"  answered {_line(answered)}")


def _line(text: str) -> str:
    """A model's text on one short line."""
    visible = visible_line(text)
    return visible if len(visible) <= 70 else f"{visible[:67]}..."
