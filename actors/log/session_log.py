"""The handle that loops and dispatch hold on a session's log.

Reading the folds of a live session is free; changing history goes through the log writer only.
The code of users gets another handle, `refold.actors.log.seam_log`, which hands out no fold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio

from refold.actors.arguments import check_callback, check_switch
from refold.actors.kernel import Ask, Message, Promise, Ref
from refold.actors.stores import Progress
from refold.runtime.closing import is_real
from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.errors import InvalidArgument, ReentrantAppend
from refold.runtime.events import RequestSealed
from refold.runtime.history import History, PastMessages
from refold.runtime.prompt_ledger import PromptLedger
from refold.runtime.request_header import EpochHeader
from refold.runtime.rules import Rules


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


def _raise(interrupt: KeyboardInterrupt) -> None:
    raise interrupt


class LogProgress:
    """How far one session's log has come, for everybody who waits for more of it.

    It outlives the parking of the session, and so do its observers; `ended` says why there will
    never be more, `interruption` what the store refused for now. `interrupt` is told of a
    KeyboardInterrupt that strikes in an observer.
    """

    def __init__(self, interrupt: Callable[[KeyboardInterrupt], None] = _raise) -> None:
        self.interrupt = interrupt
        self.progress = Progress(-1, -1)
        self.changed = trio.Event()
        self.ended: Exception | None = None
        self.interruption: Exception | None = None
        self.observers: list[Callable[[Event], None]] = []
        self.observer_errors = 0

    def reached(self, progress: Progress) -> None:
        self.progress = progress
        self.wake()

    def end(self, why: Exception) -> None:
        self.ended = self.ended or why
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self.changed.set()
        self.changed = trio.Event()


@attrs.frozen
class Sealed:
    """The log's last sealed request: in which codec, its header, and what it was derived from.

    `derived` has them also after a replacement took some from the surface, whose generation was
    `generation` then.
    """

    codec: str
    header: EpochHeader
    derived: PastMessages
    generation: int


class LiveLog:
    """The folds of one live session; only its log writer changes them, at its end too."""

    def __init__(self, session_id: str, seed_length: int, feed: LogProgress | None = None) -> None:
        self.session_id = session_id
        self.feed = feed or LogProgress()
        self._seed_length = seed_length
        self._begin()
        self.publishing = False

    def _begin(self) -> None:
        self.session = History(retain=False)
        self.rules = Rules(self.session.surface, self._seed_length)
        self.answers = PromptLedger(self._seed_length)
        self.time = 0
        """That of the last event but for `session/*`, which closers repeat."""
        self.sealed: Sealed | None = None
        self._derived = PastMessages()  # at the last step's boundary
        self._generation = 0

    def let_go(self) -> None:
        """Forget the folds, for parking; the log's length and its pending input are kept."""
        next_seq, pending = self.session.next_seq, self.rules.inbox.mark()
        self._begin()
        self.session.pass_over(next_seq)
        self.rules.inbox.restore(pending, next_seq)

    @property
    def durable_seq(self) -> int:
        return self.feed.progress.durable_seq

    def follow(self, event: Event) -> None:
        """Fold an event that is committed for good."""
        self.answers.apply(event)
        if is_real(event):
            self.time = event.time
        if event.type == "step/start":
            self._derived = self.session.derived_so_far()
            self._generation = self.session.surface.replace_generation
        elif isinstance(event.data, RequestSealed) and self.session.header is not None:
            codec, header = event.data.codec, self.session.header
            self.sealed = Sealed(codec, header, self._derived, self._generation)


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
