"""The ten relational rules: what an event may be because of those before it.

 1. Turns are numbered 1, 2, 3..., one open at a time; steps 1, 2, 3... in their turn. No turn ends
    with an open step.
 2. A chunk, an assistant message, a tool call and a result name the open turn and step.
 3. A result answers a call of the step's assistant message, once, whether or not the call was
    logged as started; a call starts once. No call id is used twice in a step.
 4. Between a step's start and its assistant message nothing joins the surface; after the message
    only results until every call has one, then context or steering.
 5. A step ends once every call has its result.
 6. The surface is replaced only while no step is open, and then each result on it answers a call
    of the assistant message before it, with nothing but results between, and each call has one. A
    replacing result takes the place of exactly one and changes only its content.
 7. A request header stands inside an open step, before the request is sealed; a step seals its
    request at most once, before the answer begins.
 8. Compactions do not nest and do not cross a turn's boundary; one that succeeds has one summary.
 9. A message that is made from an inbox entry cites it; an entry is used or removed once. A prompt
    that wants a turn of its own is cited in a turn that takes no other prompt.
10. Every other event may stand anywhere.

Why: a request is derived from what stands before its step's start, so nothing may join the history
while it is on its way (4, 6, 7), or the log could not explain what was sent. A provider refuses a
history in which a call lacks its result or a result its call (3, 5, 6). Numbers that only grow name
every step for good, and whatever happened in one says so (1, 2). An entry that could be used twice
would be said twice, and of two questions in one turn nobody could say which one its answer is for
(9); a compaction that crossed a boundary could not be closed by what ends a
turn (8).

The log writer asks `Rules.check` before each append. A log that was not written here is only
reported on, by `broken_rules`; whether its history can be sent at all is for `refusal_of`. What an
event may be by itself is judged in `refold.runtime.history`.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from refold.runtime.envelope import Draft, Event, Replace
from refold.runtime.errors import RuleBroken
from refold.runtime.events import UnknownEvent
from refold.runtime.history import History
from refold.runtime.odd_events import STRUCTURAL
from refold.runtime.rules import table
from refold.runtime.rules.inbox import Inbox, InboxMark
from refold.runtime.rules.pairing import Faults, Pairing, Walk
from refold.runtime.standing import Standing
from refold.runtime.surface import SurfaceManager

__all__ = ["Inbox", "Pairing", "Rules", "broken_rules"]


@attrs.frozen
class RulesMark:
    """A moment of the rules' folds, for `Rules.restore`."""

    standing: Standing
    walk: Walk
    inbox: InboxMark
    next_seq: int


class Rules:
    """The folds that the relational rules need, over the log whose surface is given.

    A fork's first `seed_length` events are judged as its parent's; what they left pending or open
    is not the fork's.
    """

    def __init__(self, surface: SurfaceManager, seed_length: int = 0) -> None:
        self._seed_length = seed_length
        self.standing = Standing()
        self.inbox = Inbox()
        self.pairing = Pairing(surface)
        self.unreadable: list[Event] = []
        """Structural events that lack what a fold needs; only a stored log has any."""
        self._next_seq = 0

    def check(self, event: Draft | Event, seq: int) -> None:
        """Raise `RuleBroken` unless `event` may stand at `seq`; changes nothing."""
        if isinstance(event.surface_op, Replace):
            broken = table.replacement_problem(self.standing)
            broken = broken or self.pairing.problem(event, event.surface_op)
        else:
            broken = table.problem(self.standing, event)
        broken = broken or self.inbox.problem(event)
        if broken is not None:
            raise RuleBroken(broken[0], seq, broken[1])

    def apply(self, event: Event) -> None:
        """Fold a committed event, whether or not the rules would have let it in."""
        self.standing = self.standing.after(event)
        self.inbox.apply(event)
        self.pairing.apply(event)
        if event.type in STRUCTURAL and isinstance(event.data, UnknownEvent):
            self.unreadable.append(event)
        self._next_seq = event.seq + 1
        if self._next_seq == self._seed_length:
            self.standing = attrs.evolve(self.standing, bracket=None)
            self.inbox.leave_parent()

    def faults(self) -> Faults:
        """What keeps the history from being sent, once the open step's calls have results."""
        return self.pairing.faults(self.standing)

    def mark(self) -> RulesMark:
        return RulesMark(self.standing, self.pairing.walk, self.inbox.mark(), self._next_seq)

    def restore(self, mark: RulesMark) -> None:
        """Forget every event since `mark`."""
        self.standing = mark.standing
        self.inbox.restore(mark.inbox, mark.next_seq)
        self.pairing.restore(mark.walk, mark.next_seq)
        self._next_seq = mark.next_seq


def broken_rules(events: Iterable[Event], seed_length: int = 0) -> list[RuleBroken]:
    """Every rule that a whole log breaks, in order; raises only what `History` refuses."""
    session = History(retain=False)
    rules = Rules(session.surface, seed_length)
    found = []
    for event in events:
        try:
            rules.check(event, event.seq)
        except RuleBroken as broken:
            found.append(broken)
        session.replay(event)
        rules.apply(event)
    return found
