"""Rule 7: a header stands in an open step before its seal; a step has at most one seal, before any
chunk or message.
"""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import chunk, header, says, seal, step, step_end, turn

IN_STEP = [turn(1), step(1, 1)]
SEALED = [*IN_STEP, seal(1, 1)]
ENDED = [*SEALED, step_end(1, 1)]
NEXT = [*ENDED, step(1, 2)]


@rows(
    [
        ("in an open step", IN_STEP, header(), allowed),
        ("twice", [*IN_STEP, header()], header(), allowed),
        ("before any turn", [], header(), 7),
        ("before the step", [turn(1)], header(), 7),
        ("between steps", ENDED, header(), 7),
        ("after the seal", SEALED, header(), 7),
        ("in the next step", NEXT, header(), allowed),
        ("after a chunk, in a log without seals", [*IN_STEP, chunk(1, 1)], header(), allowed),
    ]
)
def test_a_header(row: Row) -> None:
    judge(row)


@rows(
    [
        ("in an open step", IN_STEP, seal(1, 1), allowed),
        ("after its header", [*IN_STEP, header()], seal(1, 1), allowed),
        ("of another step", IN_STEP, seal(1, 2), 7),
        ("of another turn", IN_STEP, seal(2, 1), 7),
        ("before the step", [turn(1)], seal(1, 1), 7),
        ("after the step", ENDED, seal(1, 1), 7),
        ("twice", SEALED, seal(1, 1), 7),
        ("once in each step", NEXT, seal(1, 2), allowed),
        ("after a chunk", [*IN_STEP, chunk(1, 1)], seal(1, 1), 7),
        ("after the message", [*IN_STEP, says(1, 1)], seal(1, 1), 7),
        ("after both", [*IN_STEP, chunk(1, 1), says(1, 1)], seal(1, 1), 7),
        ("a chunk after it", SEALED, chunk(1, 1), allowed),
        ("the message after it", SEALED, says(1, 1), allowed),
        ("a chunk without any", IN_STEP, chunk(1, 1), allowed),
    ]
)
def test_a_seal(row: Row) -> None:
    judge(row)
