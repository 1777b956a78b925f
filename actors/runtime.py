"""The runtime: sessions side by side, each a small tree of actors (design 3.1, 3.5)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Unpack, get_args

import attrs
import httpx2
import trio

from actors.agent import Agent, AgentSnapshot
from actors.arguments import check_optional_text, check_seq, check_switch, is_number, wrong
from actors.http_model import HttpModel, close_client, make_client
from actors.ids import new_id, now_ms
from actors.kernel import sole_error
from actors.model import Model
from actors.options import (
    AgentOptions,
    Given,
    InvalidOption,
    parse_options,
)
from actors.script import Script
from actors.session import Host, Opened, open_session
from actors.session_log import Feed
from actors.stores import Grant, Store, open_store
from actors.waits import Waits
from runtime.errors import InvalidArgument, Refused
from runtime.storage.errors import NotFound, SessionBusy
from runtime.storage.owners import this_process
from runtime.storage.session_header import Durability, SessionHeader, check_session_id
from runtime.stream.chunks import Chunk
from runtime.wire.providers import Provider, find_provider, read_key

NAMING_SECONDS, NAMING_TRIES = 0.02, 50
"""How often, and how long apart, a session is asked for whose holder has not named itself yet."""


@attrs.define(eq=False)
class AgentOpen(Refused):
    """A session that cannot be deleted while this runtime has an agent on it."""

    session: str

    def __str__(self) -> str:
        return (
            f"session {self.session!r} has an agent in this runtime; close the agent, and then "
            "delete the session"
        )


class Runtime:
    """A store and the agents that live on it. Made by `refold.open`."""

    def __init__(
        self,
        store: Store,
        nursery: trio.Nursery,
        providers: Sequence[Provider | Script],
        durability: Durability,
        park_after: float | None,
    ) -> None:
        self.store = store
        self._durability: Durability = durability
        self._nursery = nursery
        self._client: httpx2.AsyncClient | None = None  # made when it is first needed
        self._host = Host(store, this_process(), now_ms, self._find, self._find_model)
        self._records = [given for given in providers if isinstance(given, Provider)]
        self._scripts = {given.name: given for given in providers if isinstance(given, Script)}
        self._agents: list[Agent] = []
        self._waits = Waits()
        if park_after is not None:
            nursery.start_soon(self._park_idle, park_after)

    async def start_agent(
        self,
        *,
        name: str | None = None,
        session_id: str | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent:
        """Start an agent on a new, empty session; `model` is required.

        `name` is a label; ids are made unless one is given. Raises what is wrong with the
        options (unknown provider, missing key, duplicate tools) before anything is written.
        """
        given = parse_options(options)
        check_optional_text("name", name)
        header = SessionHeader(
            new_id() if session_id is None else check_session_id(session_id),
            created_at=now_ms(),
            cwd=str(Path.cwd()),
            name=name,
            durability=self._durability,
        )
        given.over(None, self._find)
        return await self._open(await self.store.create(header), given, continues=False)

    async def resume(
        self, session_id: str, *, continue_: bool = False, **options: Unpack[AgentOptions]
    ) -> Agent:
        """Open a stored session again; a crash's open turn is closed as interrupted first.

        With `continue_` an interrupted turn that did not answer its input gets one recovery turn,
        and pending prompts start a turn at once; without it they join the next turn.

        Raises `NotFound`, `SessionBusy`, `LogCorrupt`, what is wrong with the options, and what a
        session cannot go on with: `HistoryUnbalanced` and `HistoryUnreadable`, which name the
        `turn/end` to fork at instead, and `InvalidEvent` for what no reader here takes.
        """
        given = parse_options(options)
        check_switch("continue_", continue_)
        grant = await _acquire(self.store, check_session_id(session_id), self._durability)
        return await self._open(grant, given, continues=continue_)

    async def fork(
        self,
        session_id: str,
        *,
        at: int | None = None,
        name: str | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent:
        """Start an agent on a copy of a session's log up to the `turn/end` at seq `at`.

        By default the last one. The parent is not changed and may be running. Raises
        `NoForkPoint` with the nearest `turn/end` before any other seq, else as `resume`; of a
        refusal no session is left.
        """
        given = parse_options(options)
        check_optional_text("name", name)
        if at is not None:
            check_seq("at", at)
        header = SessionHeader(
            new_id(),
            created_at=now_ms(),
            cwd=str(Path.cwd()),
            name=name,
            durability=self._durability,
        )
        if given.model is not None:
            self._find(given.model[0])
        await self.store.fork(check_session_id(session_id), at, header)
        try:
            grant = await _acquire(self.store, header.id, self._durability)
            return await self._open(grant, given, continues=False)
        except Refused:
            with trio.CancelScope(shield=True):
                await self.store.delete(header.id)  # nobody has learned of it
            raise

    async def delete(self, session_id: str) -> None:
        """Remove a stored session with all that is kept of it, for good.

        Raises `AgentOpen` while this runtime has an agent on it, parked or not, `SessionBusy`
        while somebody else has it open, and `NotFound`.
        """
        check_session_id(session_id)
        if any(a.session_id == session_id and not a.closed for a in self._agents):
            raise AgentOpen(session_id)
        await self.store.delete(session_id)

    async def list(self) -> list[str]:
        """The ids of the stored sessions."""
        return await self.store.list()

    async def _open(self, grant: Grant, given: Given, *, continues: bool) -> Agent:
        feed, listeners = Feed(), list[Callable[[Chunk], None]]()

        async def run(grant: Grant, *, continues: bool) -> Opened:
            start = partial(open_session, continues=continues)
            opened: list[Opened] = []
            with trio.CancelScope(shield=True):  # half an opening cannot be taken back
                opened.append(
                    await self._nursery.start(start, self._host, grant, feed, listeners, given)
                )
            return opened[0]

        async def reopen(agent: Agent) -> Opened:
            try:
                grant = await _acquire(self.store, agent.session_id, self._durability)
            except NotFound:
                if feed.progress.written_seq >= 0:
                    raise
                grant = await self.store.create(agent.header)  # its first batch was refused
            return await run(grant, continues=False)

        opened = await run(grant, continues=continues)
        header = grant.header
        agent = Agent(
            header,
            opened,
            feed,
            listeners,
            reopen,
            partial(self.store.reader, header.id),
            self._waits,
        )
        self._agents = [*(kept for kept in self._agents if not kept.closed), agent]
        return agent

    async def _park_idle(self, park_after: float) -> None:
        while True:
            await trio.sleep(park_after / 4)
            late = trio.current_time() - park_after
            for agent in [a for a in self._agents if a.idle and a.last_used <= late]:
                await agent.park()

    def _find(self, name: str) -> Provider | None:
        if name in self._scripts:
            return None
        provider = find_provider(name, self._records)
        read_key(provider, os.environ)
        return provider

    def _find_model(self, name: str) -> Model:
        if name in self._scripts:
            return self._scripts[name]
        provider = find_provider(name, self._records)
        self._client = self._client or make_client()
        return HttpModel(provider, self._client, read_key(provider, os.environ))

    def snapshot(self) -> tuple[AgentSnapshot, ...]:
        """Every agent of this runtime, in start order, parked ones too."""
        return tuple(agent.snapshot() for agent in self._agents)

    async def close(self) -> None:
        """Close every agent, last started first."""
        for agent in reversed(self._agents):
            await agent.close()
        if self._client is not None:
            await close_client(self._client)
        await self.store.close()


async def _acquire(store: Store, session_id: str, durability: Durability) -> Grant:
    """Take a session; what is acknowledged in it from now on survives that at least."""
    grant = await _take(store, session_id)
    grant.strengthen(durability)
    return grant


async def _take(store: Store, session_id: str) -> Grant:
    """Take a session; whoever holds it without a name in its log gets a moment to write it."""
    for _ in range(NAMING_TRIES):
        try:
            return await store.acquire(session_id)
        except SessionBusy as busy:
            if busy.pid is not None:
                raise
        await trio.sleep(NAMING_SECONDS)
    return await store.acquire(session_id)


def _check_arguments(
    store: object, providers: object, durability: object, park_after: object
) -> None:
    if not isinstance(store, str | Path) and not hasattr(type(store), "acquire"):
        raise wrong("store", "a folder's path, an address or a store", store)
    if not isinstance(providers, list | tuple):
        raise wrong("providers", "a list of providers", providers)
    for given in providers:
        if not isinstance(given, Provider | Script):
            raise wrong("each of the providers", "a Provider or a Script", given)
    if type(durability) is not str or durability not in get_args(Durability):
        raise InvalidOption("durability", f"must be one of {', '.join(get_args(Durability))}")
    if park_after is not None and not (is_number(park_after) and park_after > 0):
        raise InvalidArgument("park_after", "must be a number of seconds above 0, or None")


@asynccontextmanager
async def open_runtime(
    store: str | Path | Store,
    *,
    providers: Sequence[Provider | Script] = (),
    durability: Durability = "power",
    park_after: float | None = 600.0,
) -> AsyncIterator[Runtime]:
    """The runtime over the store at `store`, or over a ready one.

    A store is found under a folder's path, `sqlite:///FILE`, or `memory:`.

    `providers` are records that replace built-in ones of the same name, and scripted models.
    `durability` is what an acknowledged event survives: the loss of `power`, the death of the
    `process`, or `none`; in a session that was made at a stronger level that level counts. An agent
    that nobody has used for `park_after` seconds is parked (None: never).
    Leaving the block, however it is left, ends turns in hand as `disposed`, makes everything
    durable and releases the logs. One error in the block is raised as itself.
    """
    _check_arguments(store, providers, durability, park_after)
    try:
        async with trio.open_nursery() as nursery:
            ready = open_store(store) if isinstance(store, str | Path) else store
            runtime = Runtime(ready, nursery, providers, durability, park_after)
            try:
                yield runtime
            finally:
                with trio.CancelScope(shield=True):
                    await runtime.close()
                nursery.cancel_scope.cancel(reason="the runtime is closed")
    except BaseExceptionGroup as group:
        error = sole_error(group)
        if error is group:
            raise
        raise error from error.__cause__
