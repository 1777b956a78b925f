"""The relational rules between events, for new writes (design 2.9).

The log writer asks `Rules.check` before each append; a loaded foreign log is only reported on, by
`broken_rules`. Enter here for what one event may be *because of the others*; what one event may be
by itself is judged in `runtime.session`.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from runtime.envelope import Draft, Event, Replace
from runtime.errors import RuleBroken
from runtime.rules import brackets, structure
from runtime.rules.balance import last_balanced_end, unanswered
from runtime.rules.inbox import Inbox, InboxMark
from runtime.rules.pairing import Pairing
from runtime.session import Session
from runtime.surface import SurfaceManager

__all__ = ["Inbox", "Pairing", "Rules", "broken_rules", "last_balanced_end", "unanswered"]


@attrs.frozen
class RulesMark:
    """A moment of the rules' folds, for `Rules.restore`."""

    structure: structure.State
    bracket: brackets.Bracket | None
    inbox: InboxMark
    next_seq: int


class Rules:
    """The folds that the relational rules need, over the log whose surface is given.

    In a fork the folds of inbox and brackets ignore events below `seed_length`.
    """

    def __init__(self, surface: SurfaceManager, seed_length: int = 0) -> None:
        self._seed_length = seed_length
        self.structure = structure.State()
        self.bracket: brackets.Bracket | None = None
        self.inbox = Inbox(seed_length)
        self.pairing = Pairing(surface)
        self._next_seq = 0

    def check(self, event: Draft | Event, seq: int) -> None:
        """Raise `RuleBroken` unless `event` may stand at `seq`; changes nothing."""
        if isinstance(event.surface_op, Replace):
            broken = structure.replacement_problem(self.structure)
            broken = broken or self.pairing.problem(event, event.surface_op)
        else:
            broken = structure.problem(self.structure, event)
            broken = broken or brackets.problem(self.bracket, self.structure, event)
        broken = broken or self.inbox.problem(event)
        if broken is not None:
            raise RuleBroken(broken[0], seq, broken[1])

    def apply(self, event: Event) -> None:
        """Fold a committed event, whether or not the rules would have let it in."""
        if not isinstance(event.surface_op, Replace):
            self.structure = structure.advance(self.structure, event)
        if event.seq >= self._seed_length:
            self.bracket = brackets.advance(self.bracket, event)
        self.inbox.apply(event)
        self.pairing.apply(event)
        self._next_seq = event.seq + 1

    def mark(self) -> RulesMark:
        return RulesMark(self.structure, self.bracket, self.inbox.mark(), self._next_seq)

    def restore(self, mark: RulesMark) -> None:
        """Forget every event since `mark`."""
        self.structure, self.bracket = mark.structure, mark.bracket
        self.inbox.restore(mark.inbox, mark.next_seq)
        self.pairing.restore(mark.next_seq)
        self._next_seq = mark.next_seq


def broken_rules(events: Iterable[Event], seed_length: int = 0) -> list[RuleBroken]:
    """Every rule that a whole log breaks, in order; raises only what `Session` refuses."""
    session = Session(retain=False)
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
