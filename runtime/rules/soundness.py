"""Whether a session can go on with its history, and the last end of a turn where it could.

A log that refold wrote always can. One from elsewhere may hold calls without results, results
without calls, or events that do not say where it stands; it stays readable, and the turns before
can be forked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from refold.runtime.envelope import Event
from refold.runtime.errors import HistoryUnbalanced, HistoryUnreadable, RefoldError
from refold.runtime.history import History
from refold.runtime.odd_events import missing_field
from refold.runtime.rules import Rules


def refusal(
    rules: Rules, events: Callable[[], Iterable[Event]]
) -> HistoryUnbalanced | HistoryUnreadable | None:
    """Why a session whose log folded to `rules` cannot go on; `events` gives the log again."""
    if rules.unreadable:
        lacking = [
            (e.seq, e.type, missing_field(e.type, e.data.json.value)) for e in rules.unreadable
        ]
        return HistoryUnreadable(tuple(lacking), last_sound_end(events()))
    faults = rules.faults()
    if faults:
        return HistoryUnbalanced(
            faults.unanswered, last_sound_end(events()), faults.orphans, faults.doubled
        )
    return None


def refusal_of(events: Sequence[Event]) -> HistoryUnbalanced | HistoryUnreadable | None:
    """Why a session with this log cannot go on; raises what `History` refuses."""
    session = History(retain=False)
    rules = Rules(session.surface)
    for event in events:
        session.replay(event)
        rules.apply(event)
    return refusal(rules, lambda: events)


def last_sound_end(events: Iterable[Event]) -> int | None:
    """The seq of the last `turn/end` at which the session could have gone on.

    Structural and surface events are enough. What stands behind the first event that no session
    takes does not count.
    """
    session, found = History(retain=False), None
    rules = Rules(session.surface)
    for event in events:
        session.pass_over(max(event.seq, session.next_seq))
        try:
            session.replay(event)
        except RefoldError:
            break
        rules.apply(event)
        if rules.unreadable:
            break
        if event.type == "turn/end" and not rules.faults():
            found = event.seq
    return found
