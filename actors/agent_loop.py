"""The agent loop: the actor that drives one session, a turn at a time (design 3.4)."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from actors.kernel import Ask, Mail, Mailbox
from actors.step import LoopInstance
from actors.turn import Cancel, Turn, open_turn, run_turn
from runtime.envelope import Draft
from runtime.events import EndReason, Trigger
from runtime.llm.chunks import Chunk
from runtime.messages import USER, Source


@attrs.frozen
class RunTurn(Ask[Turn]):
    """Queue this input and answer with the turn that takes it."""

    queued: Draft


@attrs.frozen
class Wake:
    """Pending input may have come: look into the log."""


@attrs.frozen
class WhenIdle(Ask[None]):
    """Answered once everything before it has been dealt with."""


Request = RunTurn | Wake | WhenIdle


class AgentLoop:
    """Runs turns for one loop instance; `cancel` ends the one in hand.

    A prompt starts a turn once. One that its turn did not get to claim, or that an earlier life of
    the session left, stays pending and joins the next turn.
    """

    def __init__(self, instance: LoopInstance) -> None:
        self._instance = instance
        self._cancel: Cancel | None = None
        self._turn_over = trio.Event()
        self._had_a_turn = self._pending_prompts()
        self._disposed = False

    @property
    def running(self) -> bool:
        return self._cancel is not None

    @property
    def listeners(self) -> list[Callable[[Chunk], None]]:
        """Who is given each chunk of each answer."""
        return self._instance.dispatch.listeners

    async def cancel(self, reason: EndReason) -> None:
        """Cancel the turn in hand and wait until its end is durable; without one, do nothing.

        The reason `disposed` is the loop's end as well: what still waits starts no turn.
        """
        self._disposed = self._disposed or reason.kind == "disposed"
        if self._cancel is not None:
            self._cancel(reason)
            await self._turn_over.wait()

    async def run(self, mailbox: Mailbox[Request], *, task_status: trio.TaskStatus[None]) -> None:
        """Serve the mailbox until it is closed or the loop disposed of.

        Raises `InvariantViolation` to end the session.
        """
        task_status.started()
        async for mail in mailbox:
            waiting = await self._work(mail, mailbox)
            if self._disposed:
                return
            for one in waiting:
                one.answer(None)

    async def _work(self, mail: Mail[Request], mailbox: Mailbox[Request]) -> list[Mail[Request]]:
        """Turns until every prompt has had one; returns who waits for that."""
        waiting = [mail]
        while not self._disposed:
            waiting += iter(mailbox.receive_nowait, None)
            asked = [one for one in waiting if isinstance(one.message, RunTurn)]
            if not asked and not self._pending_prompts() - self._had_a_turn:
                break
            waiting = [one for one in waiting if one not in asked]
            await self._turn(asked)
        return waiting

    def _pending_prompts(self) -> set[int]:
        pending = self._instance.log.live.rules.inbox.pending
        return {seq for seq, entry in pending.items() if entry.target == "turn"}

    async def _turn(self, asked: list[Mail[Request]]) -> None:
        queued = [one.message.queued for one in asked if isinstance(one.message, RunTurn)]
        cancel, self._turn_over = Cancel(), trio.Event()
        self._cancel = cancel
        try:
            trigger = Trigger("message", self._source(queued))
            number = await open_turn(self._instance.log, queued, trigger)
            self._had_a_turn = self._pending_prompts()
            turn, violation = await run_turn(self._instance, number, cancel)
        finally:
            self._cancel = None
            self._turn_over.set()
        for one in asked:
            one.answer(turn)
        if violation is not None:
            raise violation

    def _source(self, queued: list[Draft]) -> Source:
        entries = [*self._instance.log.live.rules.inbox.pending.values()]
        entries += [one.data for one in queued]
        return entries[0].source if entries else USER
