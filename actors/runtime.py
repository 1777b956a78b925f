"""The runtime: sessions side by side, each a small tree of actors.

Opening and leaving survive a Ctrl-C at every instant. Trio raises KeyboardInterrupt in two ways:
between any two instructions of code that is not protected from it, and at a wait of its main
task, through every shield. So all of this code is protected, and the main task, in which users
call it, never does what must be whole: a session is opened by a task of its own, and so is the
runtime closed. The main task only waits, may be torn out of that wait, and says then what it no
longer wants.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias, Unpack, get_args

import attrs
import httpx2
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.agent import Agent, AgentSnapshot
from refold.actors.arguments import check_optional_text, check_seq, check_switch, is_number, wrong
from refold.actors.get_or_create import Forking, check_same_options, get_or_create
from refold.actors.ids import new_id, now_ms
from refold.actors.kernel import open_flat_nursery, sole_error
from refold.actors.kernel.same_run import check_same_run
from refold.actors.leaving import Closing, Draining, NotClosed, drain_at_sigterm, drained
from refold.actors.log.live_log import LogProgress
from refold.actors.request.http_model import HttpModel, close_client, make_client
from refold.actors.request.model import Model
from refold.actors.request.script import Script
from refold.actors.session_tree import Host, Recipe, SessionLife, run_session
from refold.actors.stores import Grant, Store, open_store
from refold.actors.turn.ask_cycles import Waits
from refold.actors.turn.options import AgentOptions, Given, InvalidOption, parse_options
from refold.actors.whole import Whole
from refold.runtime.errors import InvalidArgument, Refused
from refold.runtime.storage.errors import NotFound, SessionBusy
from refold.runtime.storage.owners import current_folder, this_process
from refold.runtime.storage.session_header import Durability, SessionHeader, check_session_id
from refold.runtime.wire.providers import Provider, find_provider, read_key

NAMING_SECONDS, NAMING_TRIES = 0.02, 50
"""How often, and how long apart, a session is asked for whose holder has not named itself yet."""

UNDO_SECONDS = 5.0
"""How long a cancelled opening waits for what it has begun to be undone."""

_log = logging.getLogger("refold")


Take: TypeAlias = Callable[[], Awaitable[Grant]]
"""How an opening comes by its log."""


@attrs.define(eq=False)
class AgentOpen(Refused):
    """A session that cannot be deleted while this runtime has an agent on it."""

    session: str

    def __str__(self) -> str:
        return (
            f"session {self.session!r} has an agent in this runtime; close the agent, and then "
            "delete the session"
        )


@attrs.define(eq=False)
class RuntimeLeft(Refused):
    """A call that opens a session on a runtime whose block is left or about to be."""

    def __str__(self) -> str:
        return "this runtime is closed; use it inside its `async with refold.open(...)` block"


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
        self._openings: list[SessionLife] = []  # those that have not ended
        self._opening_agents: dict[str, trio.Event] = {}  # by `open_agent`; set when it is over
        self._waits = Waits()
        self._run = trio.lowlevel.current_trio_token()
        self._left = self._interrupted = False
        if park_after is not None:
            nursery.start_soon(self._park_idle, park_after)

    @enable_ki_protection
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
        header = self._new_header(
            new_id() if session_id is None else check_session_id(session_id), name
        )
        self._check_takes_input()
        given.over(None, self._find)
        take = partial(self.store.create, header)
        return await self._open(header.id, take, None, given, continues=False)

    @enable_ki_protection
    async def open_agent(
        self,
        session_id: str,
        *,
        name: str | None = None,
        continue_: bool = False,
        **options: Unpack[AgentOptions],
    ) -> Agent:
        """The agent on the session of that id: the one that is open here, else resumed, else new.

        Several tasks that ask at once get the same agent. One that is open keeps what it was
        opened with; an option that says something else raises `OptionsDiffer`, but for `seams` and
        `state`, which are passed over then. `name` is for a new session alone, `continue_` for one
        that is resumed; for a new one `model` is required. Raises as `resume` and `start_agent`;
        `SessionBusy` where another process has the session.
        """
        self._check_takes_input()
        given = parse_options(options)
        check_optional_text("name", name)
        check_switch("continue_", continue_)
        check_session_id(session_id)
        while session_id in self._opening_agents:
            await self._opening_agents[session_id].wait()
        live = self.agents.get(session_id)
        if live is not None:
            check_same_options(session_id, live.given, options, given)
            return live
        self._check_takes_input()
        header = self._new_header(session_id, name)
        take = partial(get_or_create, self.store, header, self._acquire)
        over = self._opening_agents[session_id] = trio.Event()
        try:
            for leaving in [a for a in self._agents if a.session_id == session_id]:
                await leaving.stopped.wait()
            return await self._open(session_id, take, None, given, continues=continue_)
        finally:
            del self._opening_agents[session_id]
            over.set()

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that are open in this runtime, parked ones too, by session id; a snapshot."""
        return {a.session_id: a for a in self._agents if a.usable}

    def _new_header(self, session_id: str, name: str | None) -> SessionHeader:
        return SessionHeader(
            session_id,
            created_at=now_ms(),
            cwd=current_folder(),
            name=name,
            durability=self._durability,
        )

    async def _acquire(self, session_id: str) -> Grant:
        """Take a session; what is acknowledged in it from now on survives that at least."""
        grant = await _take(self.store, session_id)
        grant.strengthen(self._durability)
        return grant

    @enable_ki_protection
    async def resume(
        self, session_id: str, *, continue_: bool = False, **options: Unpack[AgentOptions]
    ) -> Agent:
        """Open a stored session again; a crash's open turn is closed as interrupted first.

        With `continue_` a turn that was cut, by a crash or by the end of its agent, before it
        answered its input gets one recovery turn, and pending prompts have their turns; without it
        they are held until `Agent.release`.

        Raises `NotFound`, `SessionBusy`, `LogCorrupt`, what is wrong with the options, and what a
        session cannot go on with: `HistoryUnbalanced` and `HistoryUnreadable`, which name the
        `turn/end` to fork at instead, and `InvalidEvent` for what no reader here takes.
        """
        self._check_takes_input()
        given = parse_options(options)
        check_switch("continue_", continue_)
        take = partial(self._acquire, check_session_id(session_id))
        return await self._open(session_id, take, None, given, continues=continue_)

    @enable_ki_protection
    async def fork(
        self,
        parent: str,
        /,
        *,
        at: int | None = None,
        name: str | None = None,
        session_id: str | None = None,
        continue_: bool = False,
        **options: Unpack[AgentOptions],
    ) -> Agent:
        """Start an agent on a copy of the log of `parent` up to the `turn/end` at seq `at`.

        By default the last one. The parent is not changed and may be running. With a `session_id`
        of your choice the call can be repeated after a crash: where that session is such a fork
        already, of that parent and where `at` is given at that place, it is resumed, with
        `continue_` as by `resume`; any other raises `NotThatFork`. Raises `NoForkPoint` with the
        nearest `turn/end` before any other seq, else as `resume`; of a refusal no session is left.
        """
        given = parse_options(options)
        check_optional_text("name", name)
        check_switch("continue_", continue_)
        if at is not None:
            check_seq("at", at)
        repeatable = session_id is not None
        fork_id = new_id() if session_id is None else check_session_id(session_id)
        if given.model is not None:
            self._find(given.model[0])
        self._check_takes_input()
        check_session_id(parent)
        header = self._new_header(fork_id, name)
        forking = Forking(self.store, parent, at, header, self._acquire, repeatable)
        return await self._open(fork_id, forking.take, forking.undo, given, continues=continue_)

    @enable_ki_protection
    async def delete(self, session_id: str) -> None:
        """Remove a stored session with all that is kept of it, for good.

        Raises `AgentOpen` while this runtime has an agent on it, parked or not, `SessionBusy`
        while somebody else has it open, and `NotFound`.
        """
        self._check()
        check_session_id(session_id)
        if any(a.session_id == session_id and not a.closed for a in self._agents):
            raise AgentOpen(session_id)
        await self.store.delete(session_id)

    def _check(self) -> None:
        check_same_run(self._run)
        if self._left:
            raise RuntimeLeft

    def _check_takes_input(self) -> None:
        self._check()
        if self._host.draining.is_set():
            raise Draining

    def _check_not_open(self, session_id: str) -> None:
        if any(one.session == session_id and not one.ended for one in self._openings):
            owner = self._host.owner
            raise SessionBusy(session_id, owner.pid, owner.host, here=True)

    async def _open(
        self,
        session_id: str,
        take: Take,
        undo: Callable[[], Awaitable[object]] | None,
        given: Given,
        *,
        continues: bool,
    ) -> Agent:
        self._check_not_open(session_id)
        feed = LogProgress(self._interrupt)
        recipe = Recipe(self._host, session_id, given, feed)

        def begin(
            take: Take, undo: Callable[[], Awaitable[object]] | None = None, *, continues: bool
        ) -> SessionLife:
            self._check()
            opening = SessionLife(session_id)
            self._openings = [*(kept for kept in self._openings if not kept.ended), opening]
            run = partial(run_session, continues=continues)
            self._nursery.start_soon(run, recipe, opening, take, undo)
            return opening

        opening = begin(take, undo, continues=continues)
        try:
            await opening.ready.wait()
        except BaseException as error:
            opening.give_up()
            if isinstance(error, trio.Cancelled):  # what comes next may open the session again
                with trio.move_on_after(UNDO_SECONDS, shield=True):
                    await opening.stopped.wait()
            raise
        if opening.opened is None:
            assert opening.refused is not None, "it is ready"
            raise opening.refused

        header = opening.opened.header
        recipe.held.update(() if continues else opening.opened.log.live.rules.inbox.pending)

        async def take_again() -> Grant:
            try:
                return await self._acquire(session_id)
            except NotFound:
                if feed.progress.written_seq >= 0:
                    raise
                return await self.store.create(header)  # its first batch was refused

        def reopen() -> SessionLife:
            return begin(take_again, None, continues=False)

        open_reader = partial(self.store.reader, session_id)
        agent = Agent(
            opening, recipe, reopen, open_reader, self._waits, self._run, self._nursery.start_soon
        )
        self._agents = [*(kept for kept in self._agents if not kept.closed), agent]
        return agent

    def _interrupt(self, interrupt: KeyboardInterrupt) -> None:
        """Raise it in the block of this runtime, from a task of its own."""
        self._interrupted = True

        async def end_the_program() -> None:
            raise interrupt

        self._nursery.start_soon(end_the_program)

    @enable_ki_protection
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

    @enable_ki_protection
    async def drain(self, seconds: float) -> tuple[str, ...]:
        """Let turns in hand finish and start none; returns the sessions that took longer.

        From the call on, and for good, new input and other sessions are refused with `Draining`,
        pending input stays pending, and no recovery turn begins. What is still running after
        `seconds` goes on until the runtime is closed, ends as `disposed` then, and is owed a
        recovery turn: `resume(..., continue_=True)`. Cancelled, the wait ends and the rest stands.
        """
        check_same_run(self._run)
        if not (is_number(seconds) and seconds >= 0):
            raise InvalidArgument("seconds", "must be a number of at least 0")
        self._host.draining.set()
        return await drained(self._openings, seconds)

    @enable_ki_protection
    async def close(self) -> None:
        """Close every agent, side by side, and the store; returns when that is done.

        A Ctrl-C while it lasts leaves it `HURRY_SECONDS`. Raises `NotClosed`, and the
        KeyboardInterrupt once everything is closed.
        """
        check_same_run(self._run)
        for agent in self._agents:
            agent.end_soon()
        closing = Closing(self._openings, interrupted=self._interrupted)
        self._nursery.start_soon(closing.run, self._close_store)
        await closing.wait()
        if closing.late:
            raise NotClosed(closing.late)

    async def leave(self, error: BaseException | None) -> None:
        """Close for good, because of `error` or in peace; raises `NotClosed` only in peace."""
        self._left = True
        if error is not None and isinstance(sole_error(error), KeyboardInterrupt):
            self._interrupted = True
        try:
            await self.close()
        except NotClosed:
            # What ended the block says more; the program's log names who was late.
            if error is None and not self._interrupted:
                raise

    async def _close_store(self) -> None:
        if self._client is not None:
            await close_client(self._client)
            self._client = None
        await self.store.close()

    @enable_ki_protection
    async def list(self) -> list[str]:
        """The ids of the stored sessions; raises `RuntimeLeft` once the block is left."""
        self._check()
        return await self.store.list()


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
    store: object, providers: object, durability: object, park_after: object, drain: object
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
    if drain is not None and not (is_number(drain) and drain >= 0):
        raise InvalidArgument("drain", "must be a number of seconds, at least 0, or None")


def open_runtime(
    store: str | Path | Store,
    *,
    providers: Sequence[Provider | Script] = (),
    durability: Durability = "power",
    park_after: float | None = 600.0,
    drain: float | None = None,
) -> AbstractAsyncContextManager[Runtime]:
    """The runtime over the store at `store`, or over a ready one.

    A store is found under a folder's path, `sqlite:///FILE`, or `memory:`.

    `providers` are records that replace built-in ones of the same name, and scripted models.
    `durability` is what an acknowledged event survives: the loss of `power`, the death of the
    `process`, or `none`; in a session that was made at a stronger level that level counts. An agent
    that nobody has used for `park_after` seconds is parked (None: never).

    With `drain`, leaving the block in peace lets turns in hand finish for that many seconds, and
    takes nothing new meanwhile (see `Runtime.drain`). So does SIGTERM, in a program that runs in
    the main thread and has no handler of its own: the block is cancelled afterwards, which ends
    it as if it had returned, and a second SIGTERM cuts the waiting short. Neither is drained
    after a Ctrl-C, a cancellation or an error.

    Leaving the block, however it is left, ends turns in hand as `disposed`, makes everything
    durable and releases the logs, all sessions side by side. It takes no longer than
    `CLOSE_SECONDS`, after a Ctrl-C `INTERRUPTED_SECONDS` and after a further one `HURRY_SECONDS`;
    sessions that have not ended by then are cancelled and named, in the log of the program and by
    `NotClosed`: theirs end as after a kill. A tool that does not stop holds nothing up: it is left
    behind in a task outside the block, with a warning that names it, and is broken off when Trio's
    run ends. One error in the block is raised as itself, and a
    KeyboardInterrupt or SystemExit always.
    """
    _check_arguments(store, providers, durability, park_after, drain)
    return Whole(_open(store, providers, durability, park_after, drain))


@asynccontextmanager
async def _open(
    store: str | Path | Store,
    providers: Sequence[Provider | Script],
    durability: Durability,
    park_after: float | None,
    drain: float | None,
) -> AsyncIterator[Runtime]:
    async with open_flat_nursery() as nursery:
        ready = open_store(store) if isinstance(store, str | Path) else store
        runtime = Runtime(ready, nursery, providers, durability, park_after)
        if drain is not None:
            end = partial(nursery.cancel_scope.cancel, reason="SIGTERM")
            nursery.start_soon(drain_at_sigterm, partial(runtime.drain, drain), end)
        why: BaseException | None = None
        try:
            yield runtime
            if drain is not None:
                await runtime.drain(drain)
        except BaseException as error:
            why = error
            raise
        finally:
            try:
                await runtime.leave(why)
            finally:
                nursery.cancel_scope.cancel(reason="the runtime is closed")
