"""Rule 6: replacements come while no step is open, and leave every call with its result and no
result without its call; a replacing result changes the content of one result and nothing else.
"""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import (
    at,
    call,
    context,
    queued,
    result,
    says,
    step,
    step_end,
    turn,
    turn_end,
    user,
)

ROUND = [
    user(),  # 0
    turn(1),
    step(1, 1),
    says(1, 1, "a", "b"),  # 3
    result(1, 1, "a"),  # 4
    result(1, 1, "b", error=True),  # 5
    step_end(1, 1),
]
"""A turn between steps: a prompt, a message with two calls, their results."""

AND_CONTEXT = [*ROUND, context()]  # 7
OVER = [*AND_CONTEXT, turn_end(1)]
SUMMED_UP = [*AND_CONTEXT, user(3, 4, 5, replaces=at(3, 5))]  # 8
TWO_ROUNDS = [*ROUND, step(1, 2), says(1, 2, "c"), result(1, 2, "c"), step_end(1, 2)]  # 8, 9
ASKED = [user(), turn(1), step(1, 1), says(1, 1, "a")]


@rows(
    [
        ("between steps", ROUND, user(0, replaces=at(0)), allowed),
        ("between turns", OVER, user(0, replaces=at(0)), allowed),
        ("before any turn", [user()], user(0, replaces=at(0)), allowed),
        ("in a turn, before its first step", [user(), turn(1)], user(0, replaces=at(0)), allowed),
        ("in a step", [*ROUND, step(1, 2)], user(0, replaces=at(0)), 6),
        (
            "in a step, after its message",
            [*ROUND, step(1, 2), says(1, 2)],
            user(0, replaces=at(0)),
            6,
        ),
        (
            "in a step, of a result",
            [*ASKED, result(1, 1, "a")],
            result(1, 1, "a", cites=(4,), replaces=at(4)),
            6,
        ),
    ]
)
def test_a_replacement_stands_between_steps(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a prompt", ROUND, context(0, replaces=at(0)), allowed),
        ("a call with its results", ROUND, user(3, 4, 5, replaces=at(3, 5)), allowed),
        ("all of it", AND_CONTEXT, user(0, 3, 4, 5, 7, replaces=at(0, 7)), allowed),
        ("the end of it", AND_CONTEXT, user(7, replaces=at(7)), allowed),
        ("a round with what is before it", ROUND, user(0, 3, 4, 5, replaces=at(0, 5)), allowed),
        ("one of two rounds", TWO_ROUNDS, user(8, 9, replaces=at(8, 9)), allowed),
        ("what was put in the place of a round", SUMMED_UP, context(8, replaces=at(8)), allowed),
        (
            "a round with citations of more",
            AND_CONTEXT,
            user(0, 3, 4, 5, replaces=at(3, 5)),
            allowed,
        ),
        (
            "by a message without calls",
            ROUND,
            says(1, 1, cites=(3, 4, 5), replaces=at(3, 5)),
            allowed,
        ),
        ("by a message of any step", ROUND, says(8, 9, cites=(0,), replaces=at(0)), allowed),
    ]
)
def test_whole_rounds_may_be_replaced(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a call without its results", ROUND, user(3, replaces=at(3)), 6),
        ("a call with one of two results", ROUND, user(3, 4, replaces=at(3, 4)), 6),
        ("a result", ROUND, user(4, replaces=at(4)), 6),
        ("the last result", ROUND, user(5, replaces=at(5)), 6),
        ("all results", ROUND, user(4, 5, replaces=at(4, 5)), 6),
        ("the prompt and the call", ROUND, user(0, 3, replaces=at(0, 3)), 6),
        ("a result and what follows", AND_CONTEXT, user(5, 7, replaces=at(5, 7)), 6),
        ("from one round into the next", TWO_ROUNDS, user(4, 5, 8, replaces=at(4, 8)), 6),
        ("the second call of two rounds", TWO_ROUNDS, user(8, replaces=at(8)), 6),
        ("the second result of two rounds", TWO_ROUNDS, user(9, replaces=at(9)), 6),
        (
            "the first round, and half the second",
            TWO_ROUNDS,
            user(3, 4, 5, 8, replaces=at(3, 8)),
            6,
        ),
    ]
)
def test_no_pair_is_split(row: Row) -> None:
    judge(row)


@rows(
    [
        ("with the same calls", ROUND, says(1, 1, "a", "b", cites=(3,), replaces=at(3)), allowed),
        ("with one call less", ROUND, says(1, 1, "a", cites=(3,), replaces=at(3)), 6),
        ("with one call more", ROUND, says(1, 1, "a", "b", "c", cites=(3,), replaces=at(3)), 6),
        ("with another call", ROUND, says(1, 1, "a", "c", cites=(3,), replaces=at(3)), 6),
        ("with no call", ROUND, says(1, 1, cites=(3,), replaces=at(3)), 6),
        (
            "with a call, for a whole round",
            ROUND,
            says(1, 1, "a", cites=(3, 4, 5), replaces=at(3, 5)),
            6,
        ),
        ("with a call, at the end", AND_CONTEXT, says(1, 1, "c", cites=(7,), replaces=at(7)), 6),
        ("with a call, for a prompt", ROUND, says(1, 1, "c", cites=(0,), replaces=at(0)), 6),
        (
            "with the one call whose result stays",
            ROUND,
            says(1, 1, "b", cites=(3, 4), replaces=at(3, 4)),
            allowed,
        ),
    ]
)
def test_a_replacing_message_has_the_calls_that_are_answered(row: Row) -> None:
    judge(row)


@rows(
    [
        (
            "by another content",
            ROUND,
            result(1, 1, "a", "cut", cites=(4,), replaces=at(4)),
            allowed,
        ),
        (
            "of a failed call",
            ROUND,
            result(1, 1, "b", "cut", error=True, cites=(5,), replaces=at(5)),
            allowed,
        ),
        (
            "again",
            [*ROUND, result(1, 1, "a", "cut", cites=(4,), replaces=at(4))],
            result(1, 1, "a", "", cites=(7,), replaces=at(7)),
            allowed,
        ),
        (
            "by that of another call",
            ROUND,
            result(1, 1, "b", error=True, cites=(4,), replaces=at(4)),
            6,
        ),
        ("by that of another turn", ROUND, result(2, 1, "a", cites=(4,), replaces=at(4)), 6),
        ("by that of another step", ROUND, result(1, 2, "a", cites=(4,), replaces=at(4)), 6),
        ("by an error", ROUND, result(1, 1, "a", error=True, cites=(4,), replaces=at(4)), 6),
        ("by a success", ROUND, result(1, 1, "b", cites=(5,), replaces=at(5)), 6),
        ("with its neighbour", ROUND, result(1, 1, "a", cites=(4, 5), replaces=at(4, 5)), 6),
        (
            "with its neighbour, by the neighbour's",
            ROUND,
            result(1, 1, "b", error=True, cites=(4, 5), replaces=at(4, 5)),
            6,
        ),
        (
            "with what follows it",
            AND_CONTEXT,
            result(1, 1, "b", error=True, cites=(5, 7), replaces=at(5, 7)),
            6,
        ),
        ("with its call", ROUND, result(1, 1, "a", cites=(3, 4), replaces=at(3, 4)), 6),
        ("where a prompt is", ROUND, result(1, 1, "a", cites=(0,), replaces=at(0)), 6),
        ("where its call is", ROUND, result(1, 1, "a", cites=(3,), replaces=at(3)), 6),
        ("where context is", AND_CONTEXT, result(1, 1, "a", cites=(7,), replaces=at(7)), 6),
    ]
)
def test_a_result_is_replaced(row: Row) -> None:
    judge(row)


@rows(
    [
        ("it takes an entry", [user(), queued()], user(0, 1, replaces=at(0)), allowed),
        (
            "it takes an entry that is gone",
            [user(), queued(), user(1)],
            user(0, 1, replaces=at(0)),
            9,
        ),
        (
            "numbers of turns and steps are nothing to it",
            [*OVER, turn(2)],
            says(1, 1, cites=(0,), replaces=at(0)),
            allowed,
        ),
        (
            "after it the next step is the next",
            [*SUMMED_UP],
            step(1, 2),
            allowed,
        ),
        (
            "a message in it asks for nothing in the next step",
            [*ROUND, says(1, 1, "a", "b", cites=(3,), replaces=at(3)), step(1, 2)],
            call(1, 2, "a"),
            3,
        ),
        (
            "nor does it answer in the next step",
            [*ROUND, says(1, 1, cites=(0,), replaces=at(0)), step(1, 2)],
            context(),
            4,
        ),
    ]
)
def test_a_replacement_under_the_other_rules(row: Row) -> None:
    judge(row)


INSIDE = [user(), turn(1), step(1, 1), says(1, 1, "a", cites=(0,), replaces=at(0))]
"""An inherited history with a replacement in its open step."""


@rows(
    [
        ("the step has no message by it", INSIDE, context(), 4, 4),
        ("nor calls", INSIDE, call(1, 1, "a"), 3, 4),
        ("its message may come", INSIDE, says(1, 1), allowed, 4),
    ]
)
def test_a_replacement_in_a_step_of_a_foreign_history_is_no_message_of_it(row: Row) -> None:
    judge(row)


LOST = [user(), turn(1), step(1, 1), says(1, 1, "a"), turn(2)]
"""An inherited history whose call has no result."""


@rows(
    [
        ("it may go", LOST, user(3, replaces=at(3)), allowed, 5),
        ("with all before it", LOST, user(0, 3, replaces=at(0, 3)), allowed, 5),
        ("it may not stay", LOST, user(0, replaces=at(0)), 6, 5),
        ("nor come back", LOST, says(1, 1, "a", cites=(3,), replaces=at(3)), 6, 5),
    ]
)
def test_a_call_that_a_foreign_history_left_open(row: Row) -> None:
    judge(row)
