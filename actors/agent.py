"""An agent as its users hold it: a session with a loop that answers (design 3.5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import trio

from actors.agent_loop import AgentLoop, RunTurn, Wake, WhenIdle
from actors.kernel import ActorStopped, Ask, MailboxFull, Ref
from actors.session_log import SessionLog
from actors.subscription import Subscription
from actors.turn import Turn
from runtime.envelope import Draft, draft
from runtime.events import EndReason, InboxQueued
from runtime.json import check
from runtime.llm.chunks import Chunk
from runtime.messages import USER, Block, Message, Source, TextBlock
from runtime.storage.header import SessionHeader
from runtime.storage.reader import LogReader

R = TypeVar("R")


class Agent:
    """One live agent. Made by `Runtime.start_agent`, `resume` and `fork`.

    Every method raises `ActorStopped` once the agent is closed, and `ActorCrashed` (with the
    cause) once its session has failed.
    """

    def __init__(
        self,
        header: SessionHeader,
        log: SessionLog,
        loop: AgentLoop,
        ref: Ref[Any],
        open_reader: Callable[[], LogReader],
    ) -> None:
        self.header, self.log = header, log
        self._loop, self._ref, self._open_reader = loop, ref, open_reader
        self.stop = trio.Event()
        self.stopped = trio.Event()

    @property
    def session_id(self) -> str:
        return self.header.id

    async def ask(self, text: str) -> Turn:
        """Send a prompt and wait for the turn that answers it; its end is durable by then.

        Cancelled, the wait ends and the turn goes on: `cancel` ends the turn.
        """
        return await self._ask(RunTurn(_entry("prompt", text, USER)))

    async def prompt(self, text: str) -> int:
        """Leave a prompt and return its seq once it is durable; it starts a turn when it can."""
        (event,) = await self.log.append(_entry("prompt", text, USER), flush=True)
        with suppress(MailboxFull):  # whoever filled it wakes the loop, which looks into the log
            self._ref.tell_nowait(Wake())
        return event.seq

    async def inject(self, text: str, *, plugin: str = "user") -> int:
        """Leave context for the next step and return its seq once it is durable; wakes nothing."""
        entry = _entry("inject", text, Source("plugin", plugin=plugin))
        (event,) = await self.log.append(entry, flush=True)
        return event.seq

    async def cancel(self, reason: str = "user") -> None:
        """Cancel the turn in hand and wait until the log is balanced and durable again.

        Without one it does nothing; the first reason stands. Raises `NotLosslessJson`.
        """
        check(reason, "$.reason")
        await self._loop.cancel(EndReason("aborted", reason=reason))

    async def wait_idle(self) -> None:
        """Wait until every turn is over and every prompt had one."""
        await self._ask(WhenIdle())

    def listen(self, callback: Callable[[Chunk], None]) -> Callable[[], None]:
        """Call `callback` with each chunk of each answer as it streams; returns how to stop it.

        Undelayed and ephemeral: nothing here is durable yet, and an `llm/retry` event makes what
        an attempt streamed void. `events` is the account that lasts.
        """
        listeners = self._loop.listeners
        listeners.append(callback)
        return lambda: listeners.remove(callback)

    def messages(self) -> tuple[Message, ...]:
        """The derived messages right now: what the next request would hold before new input."""
        return self.log.live.session.derive_messages()

    def events(self, from_seq: int = 0) -> Subscription:
        """Every durable event from `from_seq` on, without gap or double, as long as you listen."""
        return Subscription(self.log.live, self._open_reader, from_seq)

    async def _ask(self, message: Ask[R]) -> R:
        try:
            return await self._ref.ask(message)
        except ActorStopped:
            with suppress(ActorStopped):
                await self.log.flush()  # a log writer that failed, and stopped the loop, says so
            raise

    async def close(self) -> None:
        """End the turn in hand as `disposed`, make everything durable, and give the log back."""
        self.stop.set()
        await self.stopped.wait()


def _entry(kind: str, text: str, source: Source) -> Draft:
    content: tuple[Block, ...] = (TextBlock(text),)
    if kind == "prompt":
        return draft(InboxQueued("turn", "prompt", content, source))
    return draft(InboxQueued("step", "inject", content, source))
