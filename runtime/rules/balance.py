"""Whether every tool call of a history has its result, and where it last had (design 3.3)."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.envelope import Event
from runtime.errors import RefoldError
from runtime.rules.pairing import Pairing
from runtime.session import Session


def unanswered(events: Iterable[Event]) -> tuple[int, ...]:
    """The seqs of messages with a call that no result answers, but for those of an open step.

    Raises what `Session` refuses.
    """
    session, opened, end = Session(retain=False), None, 0
    pairing = Pairing(session.surface)
    for event in events:
        session.replay(event)
        pairing.apply(event)
        end = event.seq + 1
        if event.type == "step/start":
            opened = event.seq
        elif event.type in ("step/end", "turn/start", "turn/end"):
            opened = None
    before = end if opened is None else opened
    return tuple(seq for seq in pairing.unbalanced() if seq < before)


def last_balanced_end(events: Iterable[Event]) -> int | None:
    """The seq of the last `turn/end` where every call on the surface had its result.

    Surface events and `turn/end` are enough. What stands behind the first event that no session
    takes does not count. Its cost grows with turns times messages: ask it of a history that cannot
    be sent.
    """
    session, found = Session(retain=False), None
    pairing = Pairing(session.surface)
    for event in events:
        session.pass_over(max(event.seq, session.next_seq))
        try:
            session.replay(event)
        except RefoldError:
            break
        pairing.apply(event)
        if event.type == "turn/end" and not pairing.unbalanced():
            found = event.seq
    return found
