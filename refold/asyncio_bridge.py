"""refold for programs of asyncio: the runtime on a Trio thread, its agents awaited from outside.

Each call crosses to the Trio thread and back. Cancelled on asyncio's side it is cancelled over
there, and the caller goes on once that is over: what an `ask` had asked for is called off by then.
The portal of anyio carries the calls; what is here keeps the types and the order of ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from refold.actors.agent import LEAVE_SECONDS, Agent
from refold.actors.asking import Pending
from refold.actors.runtime import Runtime, RuntimeLeft, open_runtime
from refold.actors.stores import Store
from refold.actors.turn.options import AgentOptions
from refold.runtime.envelope import Event
from refold.runtime.prompt_ledger import Turn

P = ParamSpec("P")
R = TypeVar("R")


class _Crossing:
    """The way to the Trio thread and back."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Await `work` over there; raises what it raises, and `RuntimeLeft` where nobody is."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        async def over_there() -> R:
            try:
                return await work()
            finally:
                loop.call_soon_threadsafe(over.set)

        try:
            future = self._portal.start_task_soon(over_there)
        except RuntimeError:
            raise RuntimeLeft from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # nobody here wanted it: the thread has ended
                raise RuntimeLeft from None
            waiting = asyncio.ensure_future(over.wait())
            await asyncio.wait([waiting], timeout=LEAVE_SECONDS)
            waiting.cancel()
            raise


def _crossing(
    method: Callable[Concatenate[Agent, P], Awaitable[R]],
) -> Callable[Concatenate[AsyncioAgent, P], Coroutine[Any, Any, R]]:
    async def call(self: AsyncioAgent, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._crossing.run(partial(method, self._agent, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class AsyncioAgent:
    """An agent as a program of asyncio holds it: the methods of `refold.Agent`, awaited there.

    Its tools and seams run on the Trio thread and are written for Trio.
    """

    def __init__(self, agent: Agent, crossing: _Crossing) -> None:
        self._agent, self._crossing = agent, crossing

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self._agent.session_id

    async def ask(self, text: str, *, idempotency_key: str | None = None) -> Turn:
        """Send a prompt and wait for its turn, as `Agent.ask` does.

        Cancelled, it calls the prompt off: it is taken back while it is pending, else its turn is
        cancelled and no other.
        """
        ask = partial(
            self._agent.ask, text, idempotency_key=idempotency_key, join=False, cancel_turn=True
        )
        return await self._crossing.run(ask)

    async def pending(self) -> tuple[Pending, ...]:
        """What waits in the inbox, as `Agent.pending` says."""

        async def pending() -> tuple[Pending, ...]:
            return self._agent.pending()

        return await self._crossing.run(pending)

    async def events(
        self, from_seq: int = 0, *, durable: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Every event from `from_seq` on, as `Agent.events` gives them, until the agent is closed.

        For `async for`; leave it early within `contextlib.aclosing`.
        """

        async def begin() -> Any:
            return self._agent.events(from_seq, durable=durable)

        subscription = await self._crossing.run(begin)

        async def following() -> Event | None:
            return await anext(subscription, None)

        try:
            while (event := await self._crossing.run(following)) is not None:
                yield event
        finally:
            subscription.close()

    prompt = _crossing(Agent.prompt)
    answer = _crossing(Agent.answer)
    steer = _crossing(Agent.steer)
    inject = _crossing(Agent.inject)
    edit = _crossing(Agent.edit)
    remove = _crossing(Agent.remove)
    cancel = _crossing(Agent.cancel)
    release = _crossing(Agent.release)
    retry = _crossing(Agent.retry)
    wait_idle = _crossing(Agent.wait_idle)
    close = _crossing(Agent.close)


class AsyncioRuntime:
    """A runtime as a program of asyncio holds it. Made by `refold.from_asyncio`."""

    def __init__(self, runtime: Runtime, crossing: _Crossing) -> None:
        self._runtime, self._crossing = runtime, crossing

    async def start_agent(
        self,
        *,
        name: str | None = None,
        session_id: str | None = None,
        **options: Unpack[AgentOptions],
    ) -> AsyncioAgent:
        """An agent on a new session, as `Runtime.start_agent` says."""
        start = partial(self._runtime.start_agent, name=name, session_id=session_id, **options)
        return AsyncioAgent(await self._crossing.run(start), self._crossing)

    async def open_agent(
        self,
        session_id: str,
        *,
        name: str | None = None,
        continue_: bool = False,
        **options: Unpack[AgentOptions],
    ) -> AsyncioAgent:
        """The agent of a session, made where there is none, as `Runtime.open_agent` says."""
        named = partial(self._runtime.open_agent, session_id, name=name, continue_=continue_)
        return AsyncioAgent(await self._crossing.run(partial(named, **options)), self._crossing)

    async def resume(
        self, session_id: str, *, continue_: bool = False, **options: Unpack[AgentOptions]
    ) -> AsyncioAgent:
        """An agent on a stored session, as `Runtime.resume` says."""
        resume = partial(self._runtime.resume, session_id, continue_=continue_, **options)
        return AsyncioAgent(await self._crossing.run(resume), self._crossing)

    async def fork(
        self,
        parent: str,
        *,
        at: int | None = None,
        name: str | None = None,
        session_id: str | None = None,
        continue_: bool = False,
        **options: Unpack[AgentOptions],
    ) -> AsyncioAgent:
        """An agent on a copy of a session, as `Runtime.fork` says."""
        named = partial(self._runtime.fork, parent, at=at, name=name, session_id=session_id)
        fork = partial(named, continue_=continue_, **options)
        return AsyncioAgent(await self._crossing.run(fork), self._crossing)

    async def drain(self, seconds: float) -> tuple[str, ...]:
        """Let turns in hand finish and take nothing new, as `Runtime.drain` says."""
        return await self._crossing.run(partial(self._runtime.drain, seconds))

    async def list(self) -> list[str]:
        """The ids of the stored sessions."""
        return await self._crossing.run(self._runtime.list)


@asynccontextmanager
async def from_asyncio(store: str | Path | Store, **options: Any) -> AsyncIterator[AsyncioRuntime]:
    """The runtime of `refold.open`, whose arguments it takes, for a program of asyncio.

    It lives on a thread of its own, in which Trio runs. Leaving the block closes it as leaving
    that of `refold.open` does: in peace it may drain first; SIGTERM is left to the program. Errors
    cross as themselves; once the block is left, calls raise `RuntimeLeft`.
    """
    stack = ExitStack()

    def enter() -> tuple[BlockingPortal, Runtime]:
        portal = stack.enter_context(start_blocking_portal("trio"))
        opened = portal.wrap_async_context_manager(open_runtime(store, **options))
        return portal, stack.enter_context(opened)

    try:
        portal, runtime = await _whole(enter)
    except BaseException:
        await _whole(stack.close)
        raise
    try:
        yield AsyncioRuntime(runtime, _Crossing(portal))
    finally:
        await _whole(partial(stack.__exit__, *sys.exc_info()))


async def _whole(work: Callable[[], R]) -> R:
    """Do it in a thread, and wait for its end, cancelled or not."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return doing.result()
