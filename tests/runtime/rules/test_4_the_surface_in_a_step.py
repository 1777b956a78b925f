"""Rule 4: in a step nothing joins the surface before the message, then only results until every
call has one, then context or steering.
"""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import (
    call,
    chunk,
    context,
    header,
    queued,
    removed,
    result,
    says,
    seal,
    steering,
    step,
    step_end,
    turn,
    turn_end,
    user,
)

IN_STEP = [turn(1), step(1, 1)]
SENT = [*IN_STEP, header(), seal(1, 1), chunk(1, 1)]
SAID = [*IN_STEP, says(1, 1)]
WAITING = [*IN_STEP, says(1, 1, "a", "b")]
WAITING_FOR_ONE = [*WAITING, call(1, 1, "a"), result(1, 1, "a")]
ANSWERED = [*WAITING_FOR_ONE, result(1, 1, "b")]
ENDED = [*ANSWERED, step_end(1, 1)]


@rows(
    [
        ("a prompt before the message", IN_STEP, user(), 4),
        ("context before the message", IN_STEP, context(), 4),
        ("steering before the message", IN_STEP, steering(1), 4),
        ("context while the answer streams", SENT, context(), 4),
        ("the message", SENT, says(1, 1), allowed),
        ("a second message", SAID, says(1, 1), 4),
        ("a second message after results", ANSWERED, says(1, 1, "c"), 4),
        ("a message in the next step", [*ENDED, step(1, 2)], says(1, 2), allowed),
    ]
)
def test_before_the_message(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a prompt while calls wait", WAITING, user(), 4),
        ("context while calls wait", WAITING, context(), 4),
        ("steering while calls wait", WAITING, steering(1), 4),
        ("context while one call waits", WAITING_FOR_ONE, context(), 4),
        ("steering while one call waits", WAITING_FOR_ONE, steering(1), 4),
        ("a result while calls wait", WAITING, result(1, 1, "b"), allowed),
    ]
)
def test_while_calls_wait(row: Row) -> None:
    judge(row)


@rows(
    [
        ("context after a message without calls", SAID, context(), allowed),
        ("steering after a message without calls", SAID, steering(1), allowed),
        ("a prompt after a message without calls", SAID, user(), 4),
        ("context after all results", ANSWERED, context(), allowed),
        ("steering after all results", ANSWERED, steering(1), allowed),
        ("both", [*ANSWERED, context()], steering(1), allowed),
        ("a prompt after all results", ANSWERED, user(), 4),
        ("a prompt after context", [*ANSWERED, context()], user(), 4),
    ]
)
def test_after_the_results_only_context_or_steering(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a prompt before any turn", [], user(), allowed),
        ("context before any turn", [], context(), allowed),
        ("a prompt before the step", [turn(1)], user(), allowed),
        ("steering before the step", [turn(1)], steering(1), allowed),
        ("a prompt between steps", ENDED, user(), allowed),
        ("context between steps", ENDED, context(), allowed),
        ("a prompt between turns", [*ENDED, turn_end(1)], user(), allowed),
        ("what is log-only, before the message", IN_STEP, queued(), allowed),
        ("what is log-only, while calls wait", [queued(), *WAITING], removed(0), allowed),
    ]
)
def test_what_it_does_not_speak_of(row: Row) -> None:
    judge(row)
