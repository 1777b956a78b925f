"""Rule 1: turns count 1, 2, 3..., steps count 1, 2, 3... in their turn, one open at a time."""

from __future__ import annotations

from tests.runtime.rules.table import Row, allowed, judge, rows
from tests.runtime.rules.words import result, says, step, step_end, turn, turn_end

IN_TURN = [turn(1)]
IN_STEP = [turn(1), step(1, 1)]
BETWEEN_STEPS = [*IN_STEP, step_end(1, 1)]
BETWEEN_TURNS = [*BETWEEN_STEPS, turn_end(1)]
IN_SECOND_TURN = [*BETWEEN_TURNS, turn(2)]


@rows(
    [
        ("the first turn is 1", [], turn(1), allowed),
        ("the first turn is not 2", [], turn(2), 1),
        ("there is no turn 0", [], turn(0), 1),
        ("the next turn is one more", BETWEEN_TURNS, turn(2), allowed),
        ("a turn is not counted twice", BETWEEN_TURNS, turn(1), 1),
        ("no turn is left out", BETWEEN_TURNS, turn(3), 1),
        ("one turn at a time", IN_TURN, turn(2), 1),
        ("a turn does not begin in a step", IN_STEP, turn(2), 1),
        ("a turn without a step may end", IN_TURN, turn_end(1), allowed),
        ("a turn may end between steps", BETWEEN_STEPS, turn_end(1), allowed),
        ("a turn that is not open cannot end", [], turn_end(1), 1),
        ("a turn ends once", BETWEEN_TURNS, turn_end(1), 1),
        ("the turn that ends is the open one", IN_TURN, turn_end(2), 1),
        ("an earlier turn cannot end again", IN_SECOND_TURN, turn_end(1), 1),
        ("a turn does not end while its step is open", IN_STEP, turn_end(1), 1),
        ("the first step is 1", IN_TURN, step(1, 1), allowed),
        ("the first step is not 2", IN_TURN, step(1, 2), 1),
        ("there is no step 0", IN_TURN, step(1, 0), 1),
        ("the next step is one more", BETWEEN_STEPS, step(1, 2), allowed),
        ("a step is not counted twice", BETWEEN_STEPS, step(1, 1), 1),
        ("no step is left out", BETWEEN_STEPS, step(1, 3), 1),
        ("one step at a time", IN_STEP, step(1, 2), 1),
        ("a step needs a turn", [], step(1, 1), 1),
        ("a step needs an open turn", BETWEEN_TURNS, step(1, 2), 1),
        ("a step names its turn", IN_TURN, step(2, 1), 1),
        ("steps count anew in each turn", IN_SECOND_TURN, step(2, 1), allowed),
        ("the count of the turn before is over", IN_SECOND_TURN, step(2, 2), 1),
        ("a step of the turn before is over", IN_SECOND_TURN, step(1, 2), 1),
        ("an open step may end", IN_STEP, step_end(1, 1), allowed),
        ("a step that is not open cannot end", IN_TURN, step_end(1, 1), 1),
        ("a step ends once", BETWEEN_STEPS, step_end(1, 1), 1),
        ("the step that ends is the open one", IN_STEP, step_end(1, 2), 1),
        ("a step ends in its own turn", IN_STEP, step_end(2, 1), 1),
    ]
)
def test_turns_and_steps(row: Row) -> None:
    judge(row)


@rows(
    [
        ("its turns go on where the parent was", BETWEEN_TURNS, turn(2), allowed, 4),
        ("they do not begin anew", BETWEEN_TURNS, turn(1), 1, 4),
        ("a turn that the parent left open is open", IN_TURN, turn_end(1), allowed, 1),
        ("as is its step", IN_STEP, says(1, 1, "a"), allowed, 2),
        ("and its calls", [*IN_STEP, says(1, 1, "a")], result(1, 1, "a"), allowed, 3),
    ]
)
def test_a_fork_inherits_turns_and_steps(row: Row) -> None:
    judge(row)
