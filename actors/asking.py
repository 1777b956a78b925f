"""What waits in an agent's inbox as its users see it, and a prompt that is asked within a scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Literal

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.turn.prompt_wait import PromptWait
from refold.runtime.events import InboxQueued
from refold.runtime.messages import Block, Source, text_of
from refold.runtime.prompt_ledger import Turn


@attrs.frozen
class Pending:
    """One entry that waits in an agent's inbox, as `Agent.pending` gives it.

    `seq` is where it was queued, `source` who said it, `key` its idempotency key. One with
    `own_turn` is joined by no other prompt. One that is `held` was left by an earlier life of the
    session: no turn takes it until `Agent.release`.
    """

    seq: int
    kind: Literal["prompt", "steer", "inject"]
    content: tuple[Block, ...]
    source: Source
    own_turn: bool
    key: str | None
    held: bool

    @property
    def text(self) -> str:
        """The text of its content."""
        return text_of(self.content)


def pending_of(seq: int, entry: InboxQueued, *, held: bool) -> Pending:
    return Pending(
        seq,
        entry.kind,
        entry.content,
        entry.source,
        bool(entry.own_turn),
        entry.idempotency_key,
        held,
    )


@attrs.frozen(eq=False)
class Asked:
    """A prompt inside `async with agent.asking(...)`; `seq` is where it was queued."""

    seq: int
    _wait: PromptWait

    async def answer(self) -> Turn:
        """Wait for the turn that answers the prompt; its end is durable by then.

        Cancelled, the wait ends and may be begun again: leaving the scope is what calls it off.
        Raises `PromptRemoved` where it left the inbox before a turn took it, `ActorStopped` and
        `ActorCrashed` where the session ended before its turn did.
        """
        return await self._wait.of(self.seq)


class Keeper:
    """Says what is asked within a scope, and calls it off when the scope has been left.

    It runs in a task of its own. The main task, in which the scope may stand, is torn out of every
    wait by a Ctrl-C, also out of the one that would have told it what it had said. `waiter` notes
    that somebody waits for a seq.
    """

    def __init__(
        self,
        say: Callable[[], Awaitable[int]],
        waiter: Callable[[int], AbstractContextManager[None]],
        call_off: Callable[[int], Awaitable[None]],
    ) -> None:
        self._say, self._waiter, self._call_off = say, waiter, call_off
        self._saying = trio.CancelScope()
        self._said, self._leaving, self._left = trio.Event(), trio.Event(), trio.Event()
        self._seq: int | None = None
        self._error: Exception | None = None

    @enable_ki_protection
    async def run(self) -> None:
        try:
            with self._saying:
                self._seq = await self._say()
            if self._seq is not None:
                await self._keep(self._seq)
        except Exception as error:  # noqa: BLE001 - it is for who asked
            self._error = error
        finally:
            self._said.set()
            self._left.set()

    async def _keep(self, seq: int) -> None:
        try:
            with self._waiter(seq):
                self._said.set()
                await self._leaving.wait()
        finally:
            with trio.CancelScope(shield=True):  # it has a deadline of its own
                await self._call_off(seq)

    async def said(self) -> int | None:
        """Where the prompt was queued, None where the runtime was left before; raises why not."""
        await self._said.wait()
        if self._error is not None:
            raise self._error
        return self._seq

    async def leave(self) -> None:
        """Have the prompt called off, or not said at all; returns when that is durable."""
        self._saying.cancel(reason="whoever asked has left")
        self._leaving.set()
        with trio.CancelScope(shield=True):
            await self._left.wait()
