"""Rule 2: chunk, assistant message, tool call and tool result name the open turn and step."""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import call, chunk, result, says, step, step_end, turn, turn_end

IN_STEP = [turn(1), step(1, 1)]
ASKED = [*IN_STEP, says(1, 1, "a")]
STARTED = [*ASKED, call(1, 1, "a")]
ENDED = [*IN_STEP, step_end(1, 1)]
LATER = [*ENDED, turn_end(1), turn(2), step(2, 1), step_end(2, 1), step(2, 2)]


@rows(
    [
        ("a chunk of the open step", IN_STEP, chunk(1, 1), allowed),
        ("a chunk of another step", IN_STEP, chunk(1, 2), 2),
        ("a chunk of another turn", IN_STEP, chunk(2, 1), 2),
        ("a chunk where no step is open", [turn(1)], chunk(1, 1), 2),
        ("a chunk of a step that ended", ENDED, chunk(1, 1), 2),
        ("a chunk after the message", ASKED, chunk(1, 1), allowed),
        ("a message of the open step", IN_STEP, says(1, 1), allowed),
        ("a message of another step", IN_STEP, says(1, 2), 2),
        ("a message of another turn", IN_STEP, says(2, 1), 2),
        ("a message where no turn is open", [], says(1, 1), 2),
        ("a message where no step is open", [turn(1)], says(1, 1), 2),
        ("a message of a step that ended", ENDED, says(1, 1), 2),
        ("a call of the open step", ASKED, call(1, 1, "a"), allowed),
        ("a call of another step", ASKED, call(1, 2, "a"), 2),
        ("a call of another turn", ASKED, call(2, 1, "a"), 2),
        ("a call where no step is open", [turn(1)], call(1, 1, "a"), 2),
        ("a result of the open step", STARTED, result(1, 1, "a"), allowed),
        ("a result of another step", STARTED, result(1, 2, "a"), 2),
        ("a result of another turn", STARTED, result(2, 1, "a"), 2),
        ("a result where no step is open", ENDED, result(1, 1, "a"), 2),
        ("the open step is the latest", LATER, says(2, 2), allowed),
        ("no earlier one of its turn", LATER, says(2, 1), 2),
        ("none of an earlier turn", LATER, says(1, 1), 2),
    ]
)
def test_what_a_step_holds_names_it(row: Row) -> None:
    judge(row)
