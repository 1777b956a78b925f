"""Mailboxes and the references that fill them (design 3.1).

A mailbox is bounded and belongs to the supervisor, not to the actor's task: a memory channel
discards what is buffered when its receiver closes, and a lost ask would hang its sender for ever.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import attrs
import trio

from actors.kernel.errors import ActorCrashed, ActorStopped, MailboxFull

R = TypeVar("R")
M = TypeVar("M")


class Ask(Generic[R]):
    """The base of a message that is answered; `R` is the type of the reply."""


class Promise(Generic[R]):
    """One answer on its way back; a second one is dropped, since nobody waits for it.

    `owed` is where the mailbox keeps what its actor still owes: an actor that goes leaves no
    promise open.
    """

    def __init__(self, owed: set[Promise[Any]]) -> None:
        self._owed = owed
        self._arrived = trio.Event()
        self._value: Any = None
        self._error: Exception | None = None
        owed.add(self)

    def keep(self, value: R) -> None:
        self._set(value, None)

    def fail(self, error: Exception) -> None:
        self._set(None, error)

    def _set(self, value: Any, error: Exception | None) -> None:
        if self in self._owed:
            self._owed.remove(self)
            self._value, self._error = value, error
            self._arrived.set()

    async def wait(self) -> R:
        """The answer; raises what it failed with. Cancelling a wait withdraws nothing."""
        await self._arrived.wait()
        if self._error is not None:
            raise self._error
        return cast("R", self._value)


@attrs.frozen(eq=False)
class Mail(Generic[M]):
    """A message in hand; an ask is ended with `answer` or `fail`, a tell by doing nothing."""

    message: M
    _reply: Promise[Any] | None = attrs.field(alias="reply", repr=False)

    def answer(self, value: object) -> None:
        if self._reply is not None:
            self._reply.keep(value)

    def fail(self, error: Exception) -> None:
        if self._reply is not None:
            self._reply.fail(error)


class Mailbox(Generic[M]):
    """An actor's queue, as the actor sees it: `async for mail in mailbox`.

    Iteration ends once the mailbox is closed and empty.
    """

    def __init__(self, actor: str, size: int) -> None:
        self.actor = actor
        self.owed: set[Promise[Any]] = set()
        self._send, self._receive = trio.open_memory_channel[Mail[M]](size)
        self._ended: Exception | None = None

    def __aiter__(self) -> Mailbox[M]:
        return self

    async def __anext__(self) -> Mail[M]:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def receive_nowait(self) -> Mail[M] | None:
        """The next mail if one is there."""
        try:
            return self._receive.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return None

    def promise(self) -> Promise[Any]:
        """A further answer that this actor owes somebody, for work that a first one announced."""
        return Promise(self.owed)

    def close(self) -> None:
        """Take nothing new; what is queued can still be received."""
        self._ended = self._ended or ActorStopped(self.actor)
        self._send.close()

    def end(self, crash: Exception | None) -> None:
        """Fail every ask that has no reply: the actor is gone, by stop or by `crash`."""
        error: Exception = ActorStopped(self.actor)
        if crash is not None:
            error = ActorCrashed(self.actor)
            error.__cause__ = crash
        self._ended = error
        for reply in tuple(self.owed):
            reply.fail(error)
        self._send.close()
        self._receive.close()

    async def put(self, mail: Mail[M]) -> None:
        self._refuse_when_ended()
        try:
            await self._send.send(mail)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise self._ended or ActorStopped(self.actor) from None

    def put_nowait(self, mail: Mail[M]) -> None:
        self._refuse_when_ended()
        try:
            self._send.send_nowait(mail)
        except trio.WouldBlock:
            raise MailboxFull(self.actor) from None

    def _refuse_when_ended(self) -> None:
        if self._ended is not None:
            raise self._ended


class Ref(Generic[M]):
    """Where others send an actor its messages."""

    def __init__(self, mailbox: Mailbox[M]) -> None:
        self._mailbox = mailbox

    async def tell(self, message: M) -> None:
        """Queue a message, waiting for room; cancelled while waiting, nothing was sent."""
        await self._mailbox.put(Mail(message, None))

    def tell_nowait(self, message: M) -> None:
        """Queue a message or raise `MailboxFull`."""
        self._mailbox.put_nowait(Mail(message, None))

    async def ask(self, message: Ask[R]) -> R:
        """Send and wait for the reply; raises what the actor answered, or that it is gone.

        Cancelled after the message was taken, the reply is dropped; what it did stays done.
        """
        reply = await self._post(message)
        return await reply.wait()

    async def ask_whole(self, message: Ask[R]) -> R:
        """As `ask`, but not cancellable once the message is queued.

        A cancelled caller knows that nothing happened; one that gets the reply has it, and meets
        a pending cancellation at its next checkpoint.
        """
        reply = await self._post(message)
        with trio.CancelScope(shield=True):
            value = await reply.wait()
        return value  # noqa: RET504 - type checkers assume that a scope may swallow

    async def _post(self, message: Ask[R]) -> Promise[R]:
        reply: Promise[R] = Promise(self._mailbox.owed)
        try:
            await self._mailbox.put(Mail(cast("M", message), reply))
        except BaseException:
            self._mailbox.owed.discard(reply)
            raise
        return reply
