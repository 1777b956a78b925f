"""What crash repair appends to a log that ends here: what is open is closed, and said in words.

A row is a log as a short list of events, and its closers, each as its type and what matters in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import orjson
import pytest

from refold.runtime.closing import INTERRUPTED, closers, interrupted_turn_closers
from refold.runtime.envelope import Draft, Event, decode_line, draft
from refold.runtime.events import EndReason, Owner, SessionOwner, SessionReleased, TurnEnd
from refold.runtime.messages import text_of
from refold.runtime.rules import broken_rules
from refold.runtime.standing import standing_of
from tests.runtime.rules.words import (
    asked,
    at,
    call,
    chunk,
    compact,
    compacted,
    context,
    decided,
    header,
    queued,
    result,
    says,
    seal,
    step,
    step_end,
    summary,
    turn,
    turn_end,
    user,
)


def events_of(drafts: Sequence[Draft]) -> list[Event]:
    """Each with a time of its own: 1000 for the first, 1001 for the second..."""
    return [made.at(seq, 1000 + seq) for seq, made in enumerate(drafts)]


def said(closer: Event) -> tuple[Any, ...]:
    """A closer as a row says it."""
    data = closer.data
    match closer.type:
        case "tool/result":
            assert data.is_error
            assert data.error.code == "interrupted"
            return "result", data.turn, data.step, data.call_id, closer.source_event_seqs
        case "step/end":
            return "step/end", data.turn, data.step
        case "turn/end":
            return "turn/end", data.turn, data.reason.kind
    return closer.type, data.turn, data.error


IN_TURN = [user(), turn(1)]
IN_STEP = [*IN_TURN, step(1, 1)]
CALLED = [*IN_STEP, header(), seal(1, 1), says(1, 1, "a", "b")]  # 5
STARTED = [*CALLED, call(1, 1, "a")]  # 6
ANSWERED = [*STARTED, result(1, 1, "a"), result(1, 1, "b")]
ENDED = [*ANSWERED, step_end(1, 1)]

END = ("turn/end", 1, "interrupted")
ENDS = [("step/end", 1, 1), END]

CLOSED: dict[str, tuple[Sequence[Draft], list[Any]]] = {
    "nothing": ([], []),
    "no turn": ([user(), context(), queued()], []),
    "a turn that ended": ([turn(1), turn_end(1)], []),
    "a turn": (IN_TURN, [END]),
    "a later turn": ([turn(1), turn_end(1), turn(2)], [("turn/end", 2, "interrupted")]),
    "a step": (IN_STEP, ENDS),
    "a step that streams": ([*IN_STEP, seal(1, 1), chunk(1, 1)], ENDS),
    "a turn between steps": (ENDED, [END]),
    "the second step": ([*ENDED, step(1, 2)], [("step/end", 1, 2), END]),
    "a message without calls": ([*IN_STEP, says(1, 1)], ENDS),
    "calls that did not start": (
        CALLED,
        [("result", 1, 1, "a", None), ("result", 1, 1, "b", None), *ENDS],
    ),
    "one of them runs": (
        STARTED,
        [("result", 1, 1, "a", (6,)), ("result", 1, 1, "b", None), *ENDS],
    ),
    "both run": (
        [*STARTED, call(1, 1, "b")],
        [("result", 1, 1, "a", (6,)), ("result", 1, 1, "b", (7,)), *ENDS],
    ),
    "one has its result": (
        [*STARTED, result(1, 1, "a")],
        [("result", 1, 1, "b", None), *ENDS],
    ),
    "the other runs": (
        [*STARTED, result(1, 1, "a"), call(1, 1, "b")],
        [("result", 1, 1, "b", (8,)), *ENDS],
    ),
    "all have theirs": (ANSWERED, ENDS),
    "calls of the second step": (
        [*ENDED, step(1, 2), says(1, 2, "a")],
        [("result", 1, 2, "a", None), ("step/end", 1, 2), END],
    ),
    "a step that ended with an open call": ([*CALLED, step_end(1, 1)], [END]),
    "a new step after one with an open call": (
        [*CALLED, step_end(1, 1), step(1, 2)],
        [("step/end", 1, 2), END],
    ),
    "a call that was allowed": (
        [*CALLED, asked(1, 1, "a"), decided(1, 1, "a")],
        [("result", 1, 1, "a", None), ("result", 1, 1, "b", None), *ENDS],
    ),
    "a call that was allowed and runs": (
        [*CALLED, asked(1, 1, "a"), decided(1, 1, "a"), call(1, 1, "a")],
        [("result", 1, 1, "a", (8,)), ("result", 1, 1, "b", None), *ENDS],
    ),
    "a call that runs though nobody allowed it": (
        [*CALLED, asked(1, 1, "a"), call(1, 1, "a")],
        [("result", 1, 1, "a", (7,)), ("result", 1, 1, "b", None), *ENDS],
    ),
    "a start that nobody asked for": ([*IN_STEP, call(1, 1, "x")], ENDS),
    "a result that nobody asked for": ([*IN_STEP, result(1, 1, "x")], ENDS),
    "an approval of nothing": ([*IN_STEP, asked(1, 1, "x"), decided(1, 1, "x")], ENDS),
    "a compaction between turns": ([compact(None)], [("compact/end", None, "interrupted")]),
    "a compaction in a turn": (
        [*IN_TURN, compact(1)],
        [("compact/end", 1, "interrupted"), END],
    ),
    "a compaction with its summary": (
        [*IN_TURN, compact(1), summary(1), context()],
        [("compact/end", 1, "interrupted"), END],
    ),
    "a compaction beside a call": (
        [*IN_STEP, compact(1), says(1, 1, "a")],
        [("compact/end", 1, "interrupted"), ("result", 1, 1, "a", None), *ENDS],
    ),
    "a compaction that ended": ([*IN_TURN, compact(1), compacted(1, "e")], [END]),
    "a second compaction": (
        [compact(None), compacted(None, "e"), compact(None)],
        [("compact/end", None, "interrupted")],
    ),
}


@pytest.mark.parametrize("what", CLOSED)
def test_what_is_open_is_closed(what: str) -> None:
    drafts, expected = CLOSED[what]
    events = events_of(drafts)
    closers = interrupted_turn_closers(events)
    assert [said(closer) for closer in closers] == expected
    assert [closer.seq for closer in closers] == [len(events) + at for at in range(len(closers))]
    assert interrupted_turn_closers([*events, *closers]) == [], "closed twice"


@pytest.mark.parametrize("what", [what for what in CLOSED if "ended with" not in what])
def test_closers_keep_the_rules(what: str) -> None:
    events = events_of(CLOSED[what][0])
    before = [broken.seq for broken in broken_rules(events)]
    closers = interrupted_turn_closers(events)
    assert [broken.seq for broken in broken_rules([*events, *closers])] == before


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        (
            [*CALLED, asked(1, 1, "a")],
            [("result", 1, 1, "a", None), ("result", 1, 1, "b", None), *ENDS],
        ),
        (
            [*CALLED, asked(1, 1, "a"), decided(1, 1, "a"), asked(1, 1, "b")],
            [("result", 1, 1, "a", None), ("result", 1, 1, "b", None), *ENDS],
        ),
    ],
    ids=["one", "the second of two"],
)
def test_a_call_that_waits_for_an_approval_is_closed_as_never_started(
    drafts: Sequence[Draft], expected: list[Any]
) -> None:
    """As long as nobody can be asked again. Take `ahead` away when it holds."""
    assert [said(closer) for closer in interrupted_turn_closers(events_of(drafts))] == expected


def test_the_model_is_told_what_never_ran_and_what_may_have() -> None:
    """Never run twice by itself, in words: what was started has an unknown outcome, alone."""
    started, unstarted = interrupted_turn_closers(events_of(STARTED))[:2]
    assert (started.data.call_id, unstarted.data.call_id) == ("a", "b")
    assert "outcome is unknown" in text_of(started.data.content)
    assert "before making the call again" in text_of(started.data.content)
    assert "Nothing ran" not in text_of(started.data.content)
    assert "Nothing ran" in text_of(unstarted.data.content)
    assert "can be made again" in text_of(unstarted.data.content)
    assert "unknown" not in text_of(unstarted.data.content)


def test_what_tools_left_for_the_model_joins_an_open_step_behind_all_results() -> None:
    """And is lost with a step that is no more open: nothing may stand between steps."""
    log = [user(), turn(1), step(1, 1), header(), says(1, 1, "a"), call(1, 1, "a")]
    standing = standing_of(events_of(log))
    made = closers(standing, INTERRUPTED, [context()])
    assert [one.type for one in made] == [
        "tool/result", "context/message", "step/end", "turn/end",
    ]  # fmt: skip
    ended = standing_of(events_of([user(), turn(1)]))
    assert [one.type for one in closers(ended, INTERRUPTED, [context()])] == ["turn/end"]


def test_closers_repeat_the_time_of_the_last_real_event() -> None:
    opened = draft(SessionOwner(2, Owner("h", 1, "b")))
    closers = interrupted_turn_closers(events_of([*CALLED, opened]))
    assert {closer.time for closer in closers} == {1005}
    released = draft(SessionReleased(1, "closed"))
    assert [one.time for one in interrupted_turn_closers(events_of([turn(1), released]))] == [1000]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(3, []), (4, []), (2, [("compact/end", None, "interrupted")])],
    ids=["below the seed", "far below", "the fork's own"],
)
def test_a_compaction_that_a_forks_parent_left_open_is_not_closed(
    seed: int, expected: list[Any]
) -> None:
    events = events_of([turn(1), turn_end(1), compact(None), user()])
    assert [said(closer) for closer in interrupted_turn_closers(events, seed)] == expected


def test_a_turn_that_a_forks_parent_left_open_is_closed() -> None:
    events = events_of(IN_STEP)
    assert [said(closer) for closer in interrupted_turn_closers(events, 3)] == ENDS


def test_a_replacement_is_no_message_of_the_open_step() -> None:
    """Of a foreign log: within the rules nothing is replaced in a step."""
    closers = interrupted_turn_closers(events_of([says(1, 1, "a"), result(1, 1, "a"), *IN_TURN]))
    assert [said(closer) for closer in closers] == [END]
    outside = [*IN_TURN, user(0, replaces=at(0)), says(1, 1, "x")]
    assert [said(closer) for closer in interrupted_turn_closers(events_of(outside))] == [END]


def foreign(event: Event, **more: object) -> Event:
    """The event with further fields in its data, as another implementation may write it."""
    record = orjson.loads(event.encoded)
    return decode_line(orjson.dumps({**record, "data": {**record["data"], **more}}))


@pytest.mark.parametrize("odd", range(len(IN_STEP)))
def test_fields_that_nobody_here_knows_do_not_keep_a_turn_open(odd: int) -> None:
    events = events_of(IN_STEP)
    if events[odd].surface_op is None:
        events[odd] = foreign(events[odd], note="of another")
    assert [said(closer) for closer in interrupted_turn_closers(events)] == ENDS


def test_an_end_of_an_unknown_kind_ends_the_turn() -> None:
    end = draft(TurnEnd(1, EndReason("completed"))).at(3, 0)
    odd = foreign(end, reason={"kind": "of another", "why": 1})
    assert interrupted_turn_closers([*events_of(IN_STEP), odd]) == []


def test_closers_are_the_same_each_time() -> None:
    events = events_of(STARTED)
    first = interrupted_turn_closers(events)
    assert [attrs.astuple(one)[5] for one in first] == [
        attrs.astuple(one)[5] for one in interrupted_turn_closers(events)
    ]
