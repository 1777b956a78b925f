"""Mailboxes and the references that fill them.

A mailbox is bounded and belongs to the supervisor, not to the actor's task: a memory channel
discards what is buffered when its receiver closes, and a lost ask would hang its sender for ever.
It outlives a crash: the message in hand fails, the rest waits for the restarted actor.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.kernel.errors import ActorCrashed, ActorStopped, AskCycle, MailboxFull

To = TypeVar("To")
R = TypeVar("R")


@attrs.define(eq=False)
class Hop:
    """An actor with mail in hand; `over` once it asks for the next, whoever it started then."""

    actor: str
    over: bool = False


waiting_chain: ContextVar[tuple[Hop, ...]] = ContextVar("waiting_chain", default=())
"""The actors that wait for what this task does, the first asker first."""


def waiting() -> tuple[Hop, ...]:
    """Those of the chain that still wait.

    A task may go on when the actor that started it has long answered the mail that it had in hand
    then. It still carries the chain of that mail, but nobody in it waits for the task any more.
    """
    return tuple(hop for hop in waiting_chain.get() if not hop.over)


class Message(Generic[To]):
    """The base of what an actor is sent. `To` says which: a class that stands for its kind.

    A type check refuses the message of one actor in the mailbox of another.
    """


class Ask(Message[To], Generic[To, R]):
    """The base of a message that is answered; `R` is the type of the reply."""


M = TypeVar("M", bound=Message[Any])
M_co = TypeVar("M_co", bound=Message[Any], covariant=True)


class Promise(Generic[R]):
    """One answer on its way back; a second one is dropped, since nobody waits for it."""

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
        if not self._arrived.is_set():
            self._owed.discard(self)
            self._value, self._error = value, error
            self._arrived.set()

    def take_over(self, owed: set[Promise[Any]]) -> None:
        """From now on this answer is owed by whoever has the message in hand."""
        self._owed.discard(self)
        self._owed = owed
        owed.add(self)

    async def wait(self) -> R:
        """The answer; raises what it failed with. Cancelling a wait withdraws nothing."""
        await self.settled()
        return self.result()

    async def settled(self) -> None:
        """Wait until the answer is there, whatever it is."""
        await self._arrived.wait()

    def result(self) -> R:
        """The answer that has arrived; raises what it failed with."""
        if self._error is not None:
            raise self._error
        return cast("R", self._value)


@attrs.frozen(eq=False)
class Mail(Generic[M]):
    """A message in hand; an ask is ended with `answer` or `fail`, a tell by doing nothing."""

    message: M
    reply: Promise[Any] | None = attrs.field(default=None, repr=False)
    chain: tuple[Hop, ...] = ()

    def answer(self, value: object) -> None:
        if self.reply is not None:
            self.reply.keep(value)

    def fail(self, error: Exception) -> None:
        if self.reply is not None:
            self.reply.fail(error)


class Mailbox(Generic[M]):
    """An actor's queue, as the actor sees it: `async for mail in mailbox`.

    `size` is how many may wait. Iteration ends once the mailbox is closed and empty. `lost` counts
    tells that nobody took.
    """

    def __init__(self, actor: str, size: int) -> None:
        self.actor = actor
        self.lost = 0
        self.taken_at: float | None = None
        self.queued: set[Promise[Any]] = set()
        self.in_hand: set[Promise[Any]] = set()
        self._send, self._receive = trio.open_memory_channel[Mail[M]](size)
        self._ended: Exception | None = None
        self._hops: list[Hop] = []

    def __aiter__(self) -> Mailbox[M]:
        return self

    async def __anext__(self) -> Mail[M]:
        self._at_rest()
        try:
            return self._take(await self._receive.receive())
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def receive_nowait(self) -> Mail[M] | None:
        """The next mail if one is there."""
        try:
            return self._take(self._receive.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return None

    def _take(self, mail: Mail[M]) -> Mail[M]:
        if mail.reply is not None:
            mail.reply.take_over(self.in_hand)
        self.taken_at = trio.current_time()
        self.at_work(mail.chain)
        return mail

    def at_work(self, chain: tuple[Hop, ...] = ()) -> None:
        """From now on this task works for `chain` and this actor; an actor may begin so itself."""
        self._hops.append(Hop(self.actor))
        waiting_chain.set((*chain, self._hops[-1]))

    def _at_rest(self) -> None:
        self.taken_at = None
        for hop in self._hops:
            hop.over = True
        self._hops.clear()

    def promise(self) -> Promise[Any]:
        """A further answer that this actor owes somebody, for work that a first one announced."""
        return Promise(self.in_hand)

    def statistics(self) -> trio.MemoryChannelStatistics:
        """How full the queue is and was, and how many senders wait for room."""
        return self._send.statistics()

    def crashed(self, crash: Exception) -> None:
        """Fail what the actor had in hand; what is queued waits for the restarted one."""
        self._at_rest()
        _fail_all(self.in_hand, _crash_of(self.actor, crash))

    def close(self) -> None:
        """Take nothing new; what is queued can still be received."""
        self._ended = self._ended or ActorStopped(self.actor)
        self._send.close()

    def end(self, crash: Exception | None) -> None:
        """The actor is gone, by stop or by `crash`: fail every ask and count every lost tell."""
        error = ActorStopped(self.actor) if crash is None else _crash_of(self.actor, crash)
        self._ended = error
        self._at_rest()
        while (mail := self._drained()) is not None:
            self.lost += mail.reply is None
        _fail_all(self.queued | self.in_hand, error)
        self._send.close()
        self._receive.close()

    def _drained(self) -> Mail[M] | None:
        try:
            return self._receive.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return None

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


def _fail_all(promises: set[Promise[Any]], error: Exception) -> None:
    for promise in tuple(promises):
        promise.fail(error)


def _crash_of(actor: str, crash: Exception) -> ActorCrashed:
    error = ActorCrashed(actor)
    error.__cause__ = crash
    return error


class Ref(Generic[M_co]):
    """Where others send an actor its messages; `M_co` are the messages that it takes.

    Covariant, since that is how a union of messages for one actor becomes `Message[To]`.
    """

    def __init__(self, mailbox: Mailbox[Any]) -> None:
        self._mailbox = mailbox

    @property
    def actor(self) -> str:
        return self._mailbox.actor

    async def tell(self: Ref[Message[To]], message: Message[To]) -> None:
        """Queue a message, waiting for room; cancelled while waiting, nothing was sent."""
        await self._mailbox.put(Mail(message))

    def tell_nowait(self: Ref[Message[To]], message: Message[To]) -> None:
        """Queue a message or raise `MailboxFull`."""
        self._mailbox.put_nowait(Mail(message))

    @enable_ki_protection
    async def ask(self: Ref[Message[To]], message: Ask[To, R]) -> R:
        """Send and wait for the reply; raises what the actor answered, or that it is gone.

        Raises `AskCycle` at once where the actor waits, however indirectly, for this very task.
        Cancelled after the message was taken, the reply is dropped; what it did stays done.
        """
        return await (await self._post(message)).wait()

    @enable_ki_protection
    async def ask_whole(self: Ref[Message[To]], message: Ask[To, R]) -> R:
        """As `ask`, but not cancellable once the message is queued.

        A cancelled caller knows that nothing happened; one that gets the reply has it, and meets
        a pending cancellation at its next checkpoint. It is for replies that wait for nothing but
        memory: the shield ends with the reply, and with the actor at the latest.
        """
        reply = await self._post(message)
        with trio.CancelScope(shield=True):
            await reply.settled()
        return reply.result()

    async def _post(self: Ref[Message[To]], message: Ask[To, R]) -> Promise[R]:
        chain = waiting()
        names = [hop.actor for hop in chain]
        if self.actor in names:
            raise AskCycle((*names[names.index(self.actor) :], self.actor))
        reply: Promise[R] = Promise(self._mailbox.queued)
        try:
            await self._mailbox.put(Mail(message, reply, chain))
        except BaseException:
            self._mailbox.queued.discard(reply)
            raise
        return reply
