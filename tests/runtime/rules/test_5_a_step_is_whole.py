"""Rule 5: a step ends when every call of its message has its result."""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import call, context, result, says, seal, step, step_end, turn

IN_STEP = [turn(1), step(1, 1)]
ASKED = [*IN_STEP, says(1, 1, "a", "b")]
HALF = [*ASKED, call(1, 1, "a"), result(1, 1, "a")]
WHOLE = [*HALF, result(1, 1, "b")]


@rows(
    [
        ("no call has its result", ASKED, step_end(1, 1), 5),
        ("one call runs", [*ASKED, call(1, 1, "a")], step_end(1, 1), 5),
        ("the second has none", HALF, step_end(1, 1), 5),
        ("the first has none", [*ASKED, result(1, 1, "b")], step_end(1, 1), 5),
        ("every call has its result", WHOLE, step_end(1, 1), allowed),
        ("and context follows", [*WHOLE, context()], step_end(1, 1), allowed),
        ("a message without calls", [*IN_STEP, says(1, 1)], step_end(1, 1), allowed),
        ("a request without an answer", [*IN_STEP, seal(1, 1)], step_end(1, 1), allowed),
        ("nothing at all", IN_STEP, step_end(1, 1), allowed),
    ]
)
def test_a_step_ends_whole(row: Row) -> None:
    judge(row)
