"""Which calls of a history have no result, and where every one last had: what `check` reports."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.events import TodoWrite
from refold.runtime.rules.soundness import last_sound_end
from tests.runtime.rules.table import log_of, unanswered
from tests.runtime.rules.words import (
    at,
    result,
    says,
    step,
    step_end,
    turn,
    turn_end,
    user,
)

CALLED = (turn(1), step(1, 1), says(1, 1, "a", "b"))  # 2
HALF = (*CALLED, result(1, 1, "a"))
WHOLE = (*HALF, result(1, 1, "b"), step_end(1, 1), turn_end(1))  # ends at 6


def events(drafts: Sequence[Draft]) -> list[Event]:
    """Of a foreign log, which need not keep the rules."""
    return list(log_of(drafts, seed=len(drafts)).session.events)


@pytest.mark.parametrize(
    ("history", "seqs"),
    [
        ((), ()),
        (WHOLE, ()),
        (CALLED, ()),
        (HALF, ()),
        ((*CALLED, step_end(1, 1)), (2,)),
        ((*HALF, step_end(1, 1)), (2,)),
        ((*CALLED, turn_end(1)), (2,)),
        ((*CALLED, turn(2)), (2,)),
        ((*CALLED, step_end(1, 1), step(1, 2), says(1, 2, "c")), (2,)),
        ((*CALLED, step_end(1, 1), step(1, 2), says(1, 2, "c"), step_end(1, 2)), (2, 5)),
        ((*CALLED, step_end(1, 1), user(2, replaces=at(2))), ()),
        ((says(1, 1, "a"),), (0,)),
        ((says(1, 1, "a"), turn(1), step(1, 1)), (0,)),
    ],
    ids=[
        "nothing",
        "all answered",
        "those of an open step may come",
        "one of two in an open step",
        "none in a step that ended",
        "one of two in a step that ended",
        "the turn ended over an open step",
        "the next turn began over an open step",
        "an open step waits for its own",
        "two messages",
        "replaced, they are no concern",
        "where no step ever was",
        "a step that came later does not excuse it",
    ],
)
def test_calls_without_a_result(history: Sequence[Draft], seqs: tuple[int, ...]) -> None:
    assert unanswered(events(history)) == seqs


@pytest.mark.parametrize(
    ("history", "end"),
    [
        ((), None),
        ((turn(1), turn_end(1)), 1),
        (WHOLE, 6),
        ((*WHOLE, turn(2)), 6),
        ((*WHOLE, turn(2), turn_end(2)), 8),
        ((*HALF, step_end(1, 1), turn_end(1)), None),
        ((*WHOLE, turn(2), step(2, 1), says(2, 1, "c"), step_end(2, 1), turn_end(2)), 6),
        (
            (
                *HALF,
                step_end(1, 1),
                turn_end(1),
                user(2, 3, replaces=at(2, 3)),
                turn(2),
                turn_end(2),
            ),
            8,
        ),
    ],
    ids=[
        "no turn has ended",
        "a turn without a message",
        "every call answered",
        "an open turn does not count",
        "the last of several",
        "a call without its result",
        "the last turn is not, the one before is",
        "mended by a replacement",
    ],
)
def test_the_last_sound_end(history: Sequence[Draft], end: int | None) -> None:
    assert last_sound_end(events(history)) == end


def test_the_last_sound_end_needs_no_other_events() -> None:
    log_only = draft(TodoWrite(()))
    whole = events((log_only, *WHOLE, log_only, turn(2)))
    few = [event for event in whole if event.surface_op is not None or event.type == "turn/end"]
    assert len(few) < len(whole)
    assert last_sound_end(few) == last_sound_end(whole) == 7


def test_the_last_sound_end_is_before_what_no_session_takes() -> None:
    history = events((*WHOLE, user(), turn(2), turn_end(2)))
    assert last_sound_end(history) == 9
    refused = attrs.evolve(history[7], source_event_seqs=(99,))
    assert last_sound_end([*history[:7], refused, *history[8:]]) == 6
