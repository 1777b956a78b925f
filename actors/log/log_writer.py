"""The log writer: the only actor that appends to a session's log.

It validates, commits all of a batch or none of it, hands the bytes to the store and publishes. It
is never restarted: after a failed write or sync nobody knows what the disk holds.

What it is sent was made and encoded by its sender. It compares numbers and looks into its own
folds, so nothing of a caller's runs or fails here but observers, whose errors are contained.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.bodies import patiently
from refold.actors.kernel import Mail, Mailbox, Promise
from refold.actors.log.live_log import LiveLog
from refold.actors.log.session_log import (
    Append,
    BeginStep,
    Committed,
    Flush,
    GiveBack,
    Queue,
    Queued,
    StepBoundary,
    WriterMail,
)
from refold.actors.stores import Grant
from refold.runtime.closing import INTERRUPTED, closers
from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.errors import Broken, Refused
from refold.runtime.events import (
    FOLDED,
    EndReason,
    Owner,
    SessionOwner,
    SessionReleased,
    StepStart,
    TurnEnd,
)
from refold.runtime.json import clean_text
from refold.runtime.rules.inbox import KeyUsed


async def log_writer(
    mailbox: Mailbox[WriterMail],
    live: LiveLog,
    grant: Grant,
    owner: Owner,
    clock: Callable[[], int],
    check: Callable[[], object] = lambda: None,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Own `live` and `grant` until the mailbox closes; then drain, sync and release.

    `clock` gives epoch milliseconds, the label of new events; `check` may refuse the replayed log
    by raising, before anything is written. Raises `LogFailed` when the store
    does: the session is over, and what was acknowledged is on disk.
    """
    writer = _Writer(live, grant, clock, mailbox.promise)
    try:
        await writer.open(owner, check)
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.sync_on_demand)
            nursery.start_soon(writer.fail_with_the_log)
            async for mail in mailbox:
                writer.handle(mail)
            await writer.finish()
            nursery.cancel_scope.cancel(reason="the log writer has drained")
    finally:
        with patiently():
            await grant.release()


PARKED = "parked"
"""Why a log is given back whose session goes on when somebody asks for it."""

SLICE = 512
"""After about how many replayed events other tasks have their turn."""


class _Writer:
    def __init__(
        self,
        live: LiveLog,
        grant: Grant,
        clock: Callable[[], int],
        promise: Callable[[], Promise[int]],
    ) -> None:
        self._live, self._grant, self._clock, self._promise = live, grant, clock, promise
        self._opening: list[Draft] = []  # joins the first batch of a new log
        self._waiting: list[tuple[int, Promise[int]]] = []
        self._wanted = trio.Event()
        self._giving_back = "closed"

    async def open(self, owner: Owner, check: Callable[[], object]) -> None:
        """Replay the stored log; take it over and repair it in one batch, or wait for the first."""
        live = self._live
        self._grant.watch(live.feed.reached)
        for count, event in enumerate(self._grant.events(FOLDED), 1):
            live.session.pass_over(event.seq)
            live.session.replay(event)
            live.rules.apply(event)
            live.follow(event)
            if count % SLICE == 0:
                await trio.lowlevel.checkpoint()
        check()
        opening = [draft(SessionOwner(self._grant.term, owner))]
        if self._grant.recovered is not None:
            opening.append(draft(self._grant.recovered))
        if live.session.next_seq == 0:
            self._opening, live.feed.interruption = opening, None
            return
        now = self._clock()
        timed = [(made, now) for made in opening]
        timed += [(made, live.time) for made in self._closers()]
        events = []
        for made, time in timed:  # past the rules: they do not judge what ends a foreign log
            events.append(live.session.append(made, time))
            live.rules.apply(events[-1])
        self._grant.append(events[0].seq, [event.encoded for event in events])
        for event in events:
            live.follow(event)
        await self._grant.sync()
        live.feed.interruption = None

    def _closers(self) -> list[Draft]:
        """What an earlier opening left open is interrupted, unless its store said why it ended."""
        made = closers(self._live.rules.standing, INTERRUPTED)
        why = self._live.feed.interruption
        if why is not None and made and made[-1].type == "turn/end":
            reason = EndReason("error", message=clean_text(str(why)), code="STORE_REFUSED")
            made[-1] = draft(TurnEnd(made[-1].data.turn, reason))
        return made

    def handle(self, mail: Mail[WriterMail]) -> None:
        """Do what one request asks; its refusal goes to its sender, a broken store to everybody."""
        try:
            match mail.message:
                case Append(drafts=drafts, flush=flush):
                    events = self._commit(drafts)
                    mail.answer(Committed(events, self._durable() if flush else None))
                case Queue(entry=entry, flush=flush):
                    try:
                        seq, known = self._commit((entry,))[0].seq, False
                    except KeyUsed as used:  # the same was said before
                        seq, known = used.seq, True
                    mail.answer(Queued(seq, known, self._durable() if flush else None))
                case BeginStep(turn=turn, messages=messages):
                    step = self._live.rules.standing.last_step + 1
                    events = self._commit((*messages, draft(StepStart(turn, step))))
                    boundary = StepBoundary(self._live.session_id, turn, step, events[-1].seq)
                    mail.answer(boundary)
                case Flush():
                    mail.answer(self._durable())
                case GiveBack(reason=reason):
                    self._giving_back = reason
        except Broken as failure:
            mail.fail(failure)
            raise
        except Refused as refused:
            mail.fail(refused)

    def _durable(self) -> Promise[int]:
        """A promise that everything up to now is durable; the next sync keeps it."""
        promise = self._promise()
        self._waiting.append((self._live.session.next_seq - 1, promise))
        self._wanted.set()
        return promise

    def _commit(self, drafts: tuple[Draft, ...]) -> tuple[Event, ...]:
        """All or none: check and fold in order, write, publish; a refusal leaves nothing."""
        live, now = self._live, self._clock()
        session_mark, rules_mark = live.session.mark(), live.rules.mark()
        try:
            opening = [live.admit(made, now) for made in self._opening]
            first = live.session.next_seq
            events = [live.admit(made.placed(first), now) for made in drafts]
            batch = [*opening, *events]
            if batch:
                self._grant.append(batch[0].seq, [event.encoded for event in batch])
        except Exception:
            live.session.restore(session_mark)
            live.rules.restore(rules_mark)
            raise
        self._opening = []
        live.publish(batch)
        return tuple(events)

    @enable_ki_protection
    async def fail_with_the_log(self) -> None:
        """Raise what a write or sync failed with, once everybody who waits for one was told."""
        failure = await self._grant.failed()
        self._fail_waiting(failure)
        raise failure

    @enable_ki_protection
    async def sync_on_demand(self) -> None:
        """One sync at a time, for everybody who waits when it begins."""
        with suppress(Broken):  # whoever waited was told; `fail_with_the_log` ends the writer
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self._sync()

    async def _sync(self) -> None:
        try:
            durable = await self._grant.sync()
        except Broken as failure:
            self._fail_waiting(failure)
            raise
        waiting, self._waiting = self._waiting, []
        for seq, promise in waiting:
            if seq > durable:
                self._waiting.append((seq, promise))
                self._wanted.set()
            else:
                promise.keep(durable)

    def _fail_waiting(self, failure: Broken) -> None:
        waiting, self._waiting = self._waiting, []
        for _, promise in waiting:
            promise.fail(failure)

    async def finish(self) -> None:
        """Say that the log is given back, and make everything durable before it is.

        Of one that parks, what only another turn would need is let go.
        """
        if self._live.session.next_seq:
            self._commit((draft(SessionReleased(self._grant.term, self._giving_back)),))
        if self._live.session.next_seq > self._live.durable_seq + 1:
            await self._sync()
        if self._giving_back == PARKED:
            self._live.let_go()
