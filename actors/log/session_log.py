"""The handle that loops and dispatch hold on a session's log.

Reading the folds of a live session is free; changing history goes through the log writer only.
The code of users gets another handle, `refold.actors.log.seam_log`, which hands out no fold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs

from refold.actors.arguments import check_callback, check_switch
from refold.actors.kernel import Ask, Message, Promise, Ref
from refold.actors.log.live_log import LiveLog
from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.errors import InvalidArgument, ReentrantAppend


@attrs.frozen
class Committed:
    """The events of a batch, and the promise of their durability where it was asked for."""

    events: tuple[Event, ...]
    durable: Promise[int] | None


class Writer:
    """Stands for the log writer in the types of what it is sent."""


@attrs.frozen
class Append(Ask[Writer, Committed]):
    drafts: tuple[Draft, ...]
    flush: bool


@attrs.frozen
class Queued:
    """Where an inbox entry stands; `known` when its key's first entry is meant.

    With `durable`, where that was asked for, comes the promise that it is.
    """

    seq: int
    known: bool
    durable: Promise[int] | None


@attrs.frozen
class Queue(Ask[Writer, Queued]):
    """Append an `inbox/queued`, unless the same was said under its key before."""

    entry: Draft
    flush: bool


@attrs.frozen
class Claim:
    """An inbox entry, the message that it becomes and will be cited by, and what follows that."""

    queued_seq: int
    message: object
    context: tuple[object, ...] = ()


@attrs.frozen
class StepBoundary:
    """The step that is open: its messages are derived from the events strictly before `seq`."""

    session: str
    turn: int
    step: int
    seq: int


@attrs.frozen
class BeginStep(Ask[Writer, StepBoundary]):
    turn: int
    messages: tuple[Draft, ...]


@attrs.frozen
class Flush(Ask[Writer, Promise[int]]):
    """Promise that everything before this request is durable."""


@attrs.frozen
class GiveBack(Message[Writer]):
    """When the mailbox closes, say this of why the log is given back."""

    reason: str


WriterMail: TypeAlias = Append | Queue | BeginStep | Flush | GiveBack
"""What the log writer is sent."""


class SessionLog:
    """Append, queue, open steps, flush and observe one session's log."""

    def __init__(self, live: LiveLog, writer: Ref[WriterMail]) -> None:
        self.live = live
        self._writer = writer

    @property
    def session_id(self) -> str:
        return self.live.session_id

    def append(self, *drafts: Draft, flush: bool = False) -> Awaitable[tuple[Event, ...]]:
        """Commit all drafts or none, and return the events; with `flush`, once they are durable.

        Raises `InvalidArgument` for what is no draft and, from inside an observer,
        `ReentrantAppend`, both at the call and not at the await. The
        awaitable raises the refusal of the first draft that a rule forbids, `StoreFull`, or that
        the writer is gone. Cancelled before the request is queued, nothing was appended; after
        that only the wait for durability can be cancelled, and the events stand.
        """
        for made in drafts:
            if type(made) is not Draft:
                raise InvalidArgument(
                    "what is appended", f"is a refold.draft(...), not {type(made).__name__}"
                )
        check_switch("flush", flush)
        if self.live.publishing:
            raise ReentrantAppend(self.session_id)
        return self._append(Append(drafts, flush))

    async def commit(self, *drafts: Draft, flush: bool) -> Committed:
        """As `append`, but with `flush` it is the caller who waits for the promise.

        So the caller knows what stands in the log before it is durable.
        """
        if self.live.publishing:
            raise ReentrantAppend(self.session_id)
        return await self._writer.ask_whole(Append(drafts, flush))

    async def _append(self, request: Append) -> tuple[Event, ...]:
        committed = await self._writer.ask_whole(request)
        if committed.durable is not None:
            await committed.durable.wait()
        return committed.events

    async def queue(self, entry: Draft, *, flush: bool) -> Queued:
        """Append an inbox entry, or learn where the same was said under its key before.

        Raises `KeyConflict` where something else was. Cancellation as for `append`, but nothing
        waits here for what is durable: that is a promise in the answer.
        """
        return await self._writer.ask_whole(Queue(entry, flush))

    async def open_step(self, turn: int, claims: tuple[Claim, ...] = ()) -> StepBoundary:
        """Append the claimed messages and `step/start` as one indivisible batch.

        Nothing can stand between the snapshot of the history and the boundary. Cancellation as
        for `append`; raises what `draft` says of a message, before anything is sent.
        """
        messages: list[Draft] = []
        for claim in claims:
            messages.append(draft(claim.message, cites=(claim.queued_seq,)))
            messages += map(draft, claim.context)
        return await self._writer.ask_whole(BeginStep(turn, tuple(messages)))

    async def flush(self) -> int:
        """Wait until everything appended before this call is durable; returns the durable seq.

        Cancelling it withdraws nothing. Raises `LogFailed` when the store cannot make it so.
        """
        promise = await self._writer.ask(Flush())
        return await promise.wait()

    def give_back(self, reason: str) -> None:
        """Say why the log will be given back, for its `session/released`; raises `MailboxFull`."""
        self._writer.tell_nowait(GiveBack(reason))

    def observe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with each event after its commit, in order; returns how to stop it.

        An observer's error is logged and counted, and concerns nobody else. It must not append:
        what it wants to add it hands to a task of its own.
        """
        check_callback("callback", callback)
        observers = self.live.feed.observers
        observers.append(callback)
        return lambda: observers.remove(callback)
