"""Rule 8: compactions do not nest and cross no turn boundary; one that succeeds has one summary."""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import (
    compact,
    compacted,
    context,
    step,
    step_end,
    summary,
    turn,
    turn_end,
    user,
)

IN_TURN = [turn(1)]
BETWEEN_TURNS = [turn(1), turn_end(1)]
OPEN = [turn(1), compact(1)]
OPEN_BETWEEN = [*BETWEEN_TURNS, compact(None)]
SUMMED_UP = [*OPEN, summary(1)]
DONE = [*SUMMED_UP, compacted(1)]


@rows(
    [
        ("in a turn, by its number", IN_TURN, compact(1), allowed),
        ("in a turn, by another number", IN_TURN, compact(2), 8),
        ("in a turn, by none", IN_TURN, compact(None), 8),
        ("in a step", [turn(1), step(1, 1)], compact(1), allowed),
        ("before any turn", [], compact(None), allowed),
        ("between turns", BETWEEN_TURNS, compact(None), allowed),
        ("between turns, by the number of the last", BETWEEN_TURNS, compact(1), 8),
        ("while one is open", OPEN, compact(1), 8),
        ("while one is open between turns", OPEN_BETWEEN, compact(None), 8),
        ("after one that ended", DONE, compact(1), allowed),
        ("after one that failed", [*OPEN, compacted(1, "e")], compact(1), allowed),
    ]
)
def test_a_compaction_begins(row: Row) -> None:
    judge(row)


@rows(
    [
        ("in one that is open", OPEN, summary(1), allowed),
        ("in one that is open between turns", OPEN_BETWEEN, summary(None), allowed),
        ("of another turn", OPEN, summary(2), 8),
        ("of no turn", OPEN, summary(None), 8),
        ("of a turn, between turns", OPEN_BETWEEN, summary(1), 8),
        ("where none is open", IN_TURN, summary(1), 8),
        ("where one is over", DONE, summary(1), 8),
        ("a second one", SUMMED_UP, summary(1), 8),
        ("in the next one", [*DONE, compact(1)], summary(1), allowed),
    ]
)
def test_a_summary(row: Row) -> None:
    judge(row)


@rows(
    [
        ("with its summary", SUMMED_UP, compacted(1), allowed),
        ("with its summary and an error", SUMMED_UP, compacted(1, "e"), allowed),
        ("without a summary", OPEN, compacted(1), 8),
        ("without a summary, with an error", OPEN, compacted(1, "e"), allowed),
        ("between turns", [*OPEN_BETWEEN, summary(None)], compacted(None), allowed),
        ("by another turn", SUMMED_UP, compacted(2), 8),
        ("by another turn, with an error", OPEN, compacted(2, "e"), 8),
        ("by no turn", SUMMED_UP, compacted(None), 8),
        ("where none is open", IN_TURN, compacted(1), 8),
        ("where none is open, with an error", IN_TURN, compacted(1, "e"), 8),
        ("twice", DONE, compacted(1), 8),
    ]
)
def test_a_compaction_ends(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a turn ends", OPEN, turn_end(1), 8),
        ("a turn ends after the summary", SUMMED_UP, turn_end(1), 8),
        ("a turn begins", OPEN_BETWEEN, turn(2), 8),
        ("a turn ends after other events", [*OPEN, context()], turn_end(1), 8),
        ("a turn ends after a step in it", [*OPEN, step(1, 1), step_end(1, 1)], turn_end(1), 8),
        ("a turn ends after it", DONE, turn_end(1), allowed),
        ("a turn begins after it", [*OPEN_BETWEEN, compacted(None, "e")], turn(2), allowed),
        ("a step begins in it", OPEN, step(1, 1), allowed),
        ("a step ends in it", [*IN_TURN, step(1, 1), compact(1)], step_end(1, 1), allowed),
        ("a prompt comes in it", OPEN, user(), allowed),
        ("context comes in it", SUMMED_UP, context(), allowed),
    ]
)
def test_what_may_happen_in_a_compaction(row: Row) -> None:
    judge(row)


@rows(
    [
        ("its own may begin", OPEN_BETWEEN, compact(None), allowed, 3),
        ("that one has no end here", [*OPEN_BETWEEN, summary(None)], compacted(None), 8, 4),
        ("nor a summary", OPEN_BETWEEN, summary(None), 8, 3),
        ("a turn may begin", OPEN_BETWEEN, turn(2), allowed, 3),
        ("its own keeps the rules", [*OPEN_BETWEEN, compact(None)], turn(2), 8, 3),
        ("up to the last event of the seed", [compact(None)], turn(1), allowed, 1),
        ("from the first of its own on", [user(), compact(None)], turn(1), 8, 1),
    ]
)
def test_a_compaction_that_a_forks_parent_left_open_is_not_the_forks(row: Row) -> None:
    judge(row)
