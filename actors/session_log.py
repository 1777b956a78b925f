"""The handle that loops and dispatch hold on a session's log (design 3.2).

It has the same behaviour wherever its holder runs. Reading the folds of a live session is free in
the same process; changing history goes through the log writer only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio

from actors.kernel import Ask, Promise, Ref
from actors.stores import Progress
from runtime.envelope import Draft, Event
from runtime.errors import ReentrantAppend
from runtime.events import SURFACE
from runtime.header import EpochHeader
from runtime.repair import Repair
from runtime.rules import Rules
from runtime.rules.inbox import InboxMark
from runtime.session import Session
from runtime.turns import Answers

Drafts: TypeAlias = tuple[Draft, ...] | Callable[[int], tuple[Draft, ...]]
"""Drafts, or how to make them once the seq of the first is known, so that they can cite it."""


@attrs.frozen
class Committed:
    """The events of a batch, and the promise of their durability where it was asked for."""

    events: tuple[Event, ...]
    durable: Promise[int] | None


class Writer:
    """Stands for the log writer in the types of what it is sent."""


@attrs.frozen
class Append(Ask[Writer, Committed]):
    drafts: Drafts
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
class OpenStep(Ask[Writer, StepBoundary]):
    turn: int
    claims: tuple[Claim, ...]


@attrs.frozen
class Flush(Ask[Writer, Promise[int]]):
    """Promise that everything before this request is durable."""


def _raise(interrupt: KeyboardInterrupt) -> None:
    raise interrupt


class Feed:
    """How far one session's log has come, for everybody who waits for more of it.

    It outlives the parking of the session, and so do its observers; `ended` says why there will
    never be more. `interrupt` is told of a KeyboardInterrupt that strikes in an observer.
    """

    def __init__(self, interrupt: Callable[[KeyboardInterrupt], None] = _raise) -> None:
        self.interrupt = interrupt
        self.progress = Progress(-1, -1)
        self.changed = trio.Event()
        self.ended: Exception | None = None
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
    """The log's last sealed request: its header, and what it was derived from.

    `boundary` is the seq of its `step/start`; `derived` counts its derived messages, `generation`
    is the surface's then.
    """

    header: EpochHeader
    boundary: int
    derived: int
    generation: int


FOLDED = frozenset(
    {
        *SURFACE,
        *("request/header", "turn/start", "turn/end", "inbox/queued", "inbox/removed"),
        *("compact/start", "compact/summary", "compact/end"),
    }
)
"""The types that matter to the folds of a live log once their step is over."""


class LiveLog:
    """The folds of one live session; only its log writer changes them."""

    def __init__(self, session_id: str, seed_length: int, feed: Feed | None = None) -> None:
        self.session_id = session_id
        self.feed = feed or Feed()
        self._seed_length = seed_length
        self._begin()
        self.sealed: Sealed | None = None
        self._boundary = (0, 0, 0)  # of the open step, as `Sealed` has it
        self.publishing = False
        self.closing = "closed"
        """Why the log will be given back, for its `session/released`."""

    def _begin(self) -> None:
        self.session = Session(retain=False)
        self.rules = Rules(self.session.surface, self._seed_length)
        self.answers = Answers(self._seed_length)
        self.repair = Repair(self._seed_length)

    def let_go(self) -> None:
        """Drop what the log folds to but for its length and its pending input; for parking."""
        next_seq, pending = self.session.next_seq, dict(self.rules.inbox.pending)
        self._begin()
        self.session.pass_over(next_seq)
        self.rules.inbox.restore(InboxMark(pending), next_seq)

    @property
    def durable_seq(self) -> int:
        return self.feed.progress.durable_seq

    @property
    def changed(self) -> trio.Event:
        """Happens when more is committed, written or durable; a new one each time."""
        return self.feed.changed

    def follow(self, event: Event) -> None:
        """Fold an event that is committed for good."""
        self.answers.apply(event)
        self.repair.feed(event)
        if event.type == "step/start":
            generation = self.session.surface.replace_generation
            self._boundary = (event.seq, self.session.message_count, generation)
        elif event.type == "request/sealed" and self.session.header is not None:
            self.sealed = Sealed(self.session.header, *self._boundary)


class SessionLog:
    """Append, open steps, flush and observe one session's log."""

    def __init__(self, live: LiveLog, writer: Ref[Append | OpenStep | Flush]) -> None:
        self.live = live
        self._writer = writer
        self.asks = 0
        """How many requests this handle sent to the writer; a text turn takes at most five."""

    @property
    def session_id(self) -> str:
        return self.live.session_id

    def append(self, *drafts: Draft, flush: bool = False) -> Awaitable[tuple[Event, ...]]:
        """Commit all drafts or none, and return the events; with `flush`, once they are durable.

        Raises `ReentrantAppend` at the call, not at the await, from inside an observer. The
        awaitable raises the refusal of the first draft that a rule forbids, `StoreFull`, or that
        the writer is gone. Cancelled before the request is queued, nothing was appended; after
        that only the wait for durability can be cancelled, and the events stand.
        """
        return self.append_from(drafts, flush=flush)

    def append_from(self, drafts: Drafts, *, flush: bool = False) -> Awaitable[tuple[Event, ...]]:
        """As `append`, with drafts that may depend on the seq of the first of them."""
        if self.live.publishing:
            raise ReentrantAppend(self.session_id)
        self.asks += 1
        return self._append(Append(drafts, flush))

    async def _append(self, request: Append) -> tuple[Event, ...]:
        committed = await self._writer.ask_whole(request)
        if committed.durable is not None:
            await committed.durable.wait()
        return committed.events

    async def open_step(self, turn: int, claims: tuple[Claim, ...] = ()) -> StepBoundary:
        """Append the claimed messages and `step/start` as one indivisible batch.

        Nothing can stand between the snapshot of the history and the boundary. Cancellation as
        for `append`.
        """
        self.asks += 1
        return await self._writer.ask_whole(OpenStep(turn, claims))

    async def flush(self) -> int:
        """Wait until everything appended before this call is durable; returns the durable seq.

        Cancelling it withdraws nothing. Raises `LogFailed` when the store cannot make it so.
        """
        self.asks += 1
        promise = await self._writer.ask(Flush())
        return await promise.wait()

    def observe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with each event after its commit, in order; returns how to stop it.

        An observer's error is logged and counted, and concerns nobody else. It must not append:
        what it wants to add it hands to a task of its own.
        """
        observers = self.live.feed.observers
        observers.append(callback)
        return lambda: observers.remove(callback)
