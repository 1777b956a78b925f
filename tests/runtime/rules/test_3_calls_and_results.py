"""Rule 3: a call of the step's message starts once and is answered once; no id stands for two."""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import call, result, says, step, step_end, turn, turn_end

IN_STEP = [turn(1), step(1, 1)]
ASKED = [*IN_STEP, says(1, 1, "a", "b")]
STARTED = [*ASKED, call(1, 1, "a")]
ANSWERED = [*STARTED, result(1, 1, "a")]
WHOLE = [*ANSWERED, result(1, 1, "b"), step_end(1, 1)]
NEXT_STEP = [*WHOLE, step(1, 2)]
ASKED_AGAIN = [*NEXT_STEP, says(1, 2, "a")]


@rows(
    [
        ("a call of the message may start", ASKED, call(1, 1, "a"), allowed),
        ("any of them, in any order", ASKED, call(1, 1, "b"), allowed),
        ("another, while one runs", STARTED, call(1, 1, "b"), allowed),
        ("a call that nobody asked for", ASKED, call(1, 1, "c"), 3),
        ("a call of a message without calls", [*IN_STEP, says(1, 1)], call(1, 1, "a"), 3),
        ("a call before the message", IN_STEP, call(1, 1, "a"), 3),
        ("a call that was started before", STARTED, call(1, 1, "a"), 3),
        ("a call that runs beside another", [*STARTED, call(1, 1, "b")], call(1, 1, "a"), 3),
        ("a call that has its result", ANSWERED, call(1, 1, "a"), 3),
        (
            "a call that has its result and never started",
            [*ASKED, result(1, 1, "a")],
            call(1, 1, "a"),
            3,
        ),
        ("a call of the step before", NEXT_STEP, call(1, 2, "a"), 3),
    ]
)
def test_a_tool_starts_once_and_if_asked_for(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a result of a call that was started", STARTED, result(1, 1, "a"), allowed),
        ("a result of a call that was never started", ASKED, result(1, 1, "b"), allowed),
        ("the other's result first", STARTED, result(1, 1, "b"), allowed),
        ("the second result", ANSWERED, result(1, 1, "b"), allowed),
        ("a result that nobody asked for", ASKED, result(1, 1, "c"), 3),
        ("a result before the message", IN_STEP, result(1, 1, "a"), 3),
        ("a second result of one call", ANSWERED, result(1, 1, "a"), 3),
        ("a second result, all being there", [*ANSWERED, result(1, 1, "b")], result(1, 1, "b"), 3),
        ("a result of the step before", NEXT_STEP, result(1, 2, "a"), 3),
    ]
)
def test_a_result_answers_one_call_once(row: Row) -> None:
    judge(row)


@rows(
    [
        ("two calls, two ids", IN_STEP, says(1, 1, "a", "b"), allowed),
        ("two calls, one id", IN_STEP, says(1, 1, "a", "a"), 3),
        ("one id twice among others", IN_STEP, says(1, 1, "a", "b", "a"), 3),
        ("the ids of an earlier step", NEXT_STEP, says(1, 2, "a", "b"), allowed),
        ("an id that came back starts anew", ASKED_AGAIN, call(1, 2, "a"), allowed),
        ("and is answered anew", ASKED_AGAIN, result(1, 2, "a"), allowed),
        (
            "in the next turn, too",
            [*WHOLE, turn_end(1), turn(2), step(2, 1)],
            says(2, 1, "b", "a"),
            allowed,
        ),
    ]
)
def test_an_id_is_used_once_in_a_step(row: Row) -> None:
    judge(row)
