"""The folds of one live session, and how far its log has come.

Its log writer alone changes them: `LiveLog.admit` is the one door for what may be said next, and
`LiveLog.publish` tells of what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial

import attrs
import trio

from refold.actors.bodies import call_plainly
from refold.actors.kernel import waiting_chain
from refold.actors.stores import Progress
from refold.runtime.closing import is_real
from refold.runtime.envelope import Draft, Event
from refold.runtime.events import InboxQueued, RequestSealed
from refold.runtime.history import History, PastMessages
from refold.runtime.prompt_ledger import PromptLedger
from refold.runtime.request_header import EpochHeader
from refold.runtime.rules import Rules
from refold.runtime.rules.inbox import KeyUsed

_log = logging.getLogger("refold")


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

    def __init__(
        self,
        session_id: str,
        seed_length: int,
        feed: LogProgress | None = None,
        held: set[int] | None = None,
    ) -> None:
        self.session_id = session_id
        self.feed = feed or LogProgress()
        self.held = set[int]() if held is None else held
        """Pending entries that an earlier life left and nobody has let go: no turn takes them."""
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

    @property
    def waiting(self) -> dict[int, InboxQueued]:
        """The pending entries that a turn may take, in the order in which they came."""
        pending = self.rules.inbox.pending
        return {seq: entry for seq, entry in pending.items() if seq not in self.held}

    def admit(self, made: Draft, time: int) -> Event:
        """Judge `made` as the next event and fold it, labelled with `time`; the one door.

        Raises what refuses it: `KeyUsed`, `KeyConflict`, `SurfaceRefused`, `RuleBroken`.
        """
        session, rules = self.session, self.rules
        if made.type == "inbox/queued" and (seq := rules.inbox.said(made.data)) is not None:
            raise KeyUsed(made.data.idempotency_key, seq)
        session.check(made)
        rules.check(made, session.next_seq)
        event = made.at(session.next_seq, time)  # only now: a seq may be too large to be written
        session.take(event)
        rules.apply(event)
        return event

    def publish(self, events: Sequence[Event]) -> None:
        """Fold events that are committed for good, tell the observers, wake whoever waits."""
        self.publishing = True
        try:
            for event in events:
                self.follow(event)
                for observer in tuple(self.feed.observers):
                    # A task that an observer starts is nobody's wait.
                    context = copy_context()
                    context.run(waiting_chain.set, ())
                    try:
                        call_plainly(partial(context.run, observer, event))
                    except KeyboardInterrupt as interrupt:  # of the program, not of the event
                        self.feed.interrupt(interrupt)
                    except Exception:  # noqa: BLE001 - a user's observer concerns nobody else
                        self.feed.observer_errors += 1
                        _log.exception("an observer of session %s failed", self.session_id)
        finally:
            self.publishing = False
        self.feed.wake()

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
