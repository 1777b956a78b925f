"""A result answers a call of the message before it, with nothing but results between.

Ids come back: servers number calls per answer. So a pair is known by its place, not by its id.
"""

from __future__ import annotations

import pytest

from refold.runtime.envelope import Event
from refold.runtime.rules.soundness import last_sound_end
from tests.runtime.rules.table import Row, allowed, judge, log_of, rows, unanswered
from tests.runtime.rules.words import (
    at,
    context,
    result,
    says,
    step,
    step_end,
    turn,
    turn_end,
    user,
)

ROUNDS = [
    turn(1),
    step(1, 1),
    says(1, 1, "a"),  # 2
    result(1, 1, "a"),  # 3
    step_end(1, 1),
    step(1, 2),
    says(1, 2, "a"),  # 6
    result(1, 2, "a"),  # 7
    step_end(1, 2),
]
"""Two rounds whose calls have the same id."""


@rows(
    [
        ("the first result", ROUNDS, user(3, replaces=at(3)), 6),
        ("from the first result to the second call", ROUNDS, user(3, 6, replaces=at(3, 6)), 6),
    ]
)
def test_an_id_that_comes_back_pairs_with_its_own_message(row: Row) -> None:
    judge(row)


@rows(
    [
        ("the first call", ROUNDS, user(2, replaces=at(2)), 6),
        ("the second call", ROUNDS, user(6, replaces=at(6)), 6),
        ("the second result", ROUNDS, user(7, replaces=at(7)), 6),
        (
            "the second result goes before",
            ROUNDS,
            says(1, 2, "a", cites=(3, 6, 7), replaces=at(3, 7)),
            6,
        ),
        ("the first round", ROUNDS, user(2, 3, replaces=at(2, 3)), allowed),
        ("the second round", ROUNDS, user(6, 7, replaces=at(6, 7)), allowed),
        ("both rounds", ROUNDS, user(2, 3, 6, 7, replaces=at(2, 7)), allowed),
        ("both by one", ROUNDS, says(1, 1, "a", cites=(2, 3, 6), replaces=at(2, 6)), allowed),
    ]
)
def test_replacements_of_rounds_with_one_id(row: Row) -> None:
    """These hold already; they stay when the rule above comes."""
    judge(row)


def events(*drafts: object) -> list[Event]:
    return log_of(drafts, seed=len(drafts)).session.events  # type: ignore[arg-type,return-value]  # a list of events is one


LOST = (
    turn(1),
    step(1, 1),
    says(1, 1, "a"),  # 2, whose result is lost
    step_end(1, 1),
    step(1, 2),
    says(1, 2, "a"),  # 5
    result(1, 2, "a"),
    step_end(1, 2),
    turn_end(1),
)


def test_a_lost_result_is_seen_though_a_later_call_has_the_same_id() -> None:
    assert unanswered(events(*LOST)) == (2,)


def test_no_end_after_a_lost_result_is_balanced() -> None:
    assert last_sound_end(events(*LOST)) is None


@pytest.mark.parametrize("between", [user(), context(), says(1, 1)])
def test_what_stands_between_a_call_and_its_result_parts_them(between: object) -> None:
    history = (turn(1), step(1, 1), says(1, 1, "a"), between, result(1, 1, "a"), step_end(1, 1))
    assert unanswered(events(*history, turn_end(1))) == (2,)
