"""Rule 10: every other log-only type may stand anywhere."""

from __future__ import annotations

import pytest

from refold.runtime.envelope import Draft, draft, parse_draft
from refold.runtime.events import (
    AgentFinished,
    AgentSpawned,
    EndReason,
    LlmRetry,
    Owner,
    PromptBlocked,
    SessionOwner,
    SessionRecovered,
    SessionReleased,
    TodoWrite,
)
from refold.runtime.messages import USER, TextBlock
from refold.runtime.stream.failures import Failure
from tests.runtime.rules.table import Row, allowed, judge
from tests.runtime.rules.words import (
    asked,
    call,
    chunk,
    compact,
    decided,
    header,
    queued,
    result,
    says,
    seal,
    step,
    step_end,
    turn,
    turn_end,
)

IN_STEP = [turn(1), step(1, 1)]
ASKED = [*IN_STEP, header(), seal(1, 1), chunk(1, 1), says(1, 1, "a")]

STATES = {
    "at the beginning": [],
    "in a turn": [turn(1)],
    "in a step": IN_STEP,
    "before the answer": [*IN_STEP, header(), seal(1, 1)],
    "while the answer streams": [*IN_STEP, seal(1, 1), chunk(1, 1)],
    "while a call waits": ASKED,
    "while a call runs": [*ASKED, call(1, 1, "a")],
    "after the result": [*ASKED, result(1, 1, "a")],
    "between steps": [*IN_STEP, step_end(1, 1)],
    "between turns": [turn(1), turn_end(1)],
    "in a compaction": [compact(None)],
}

EVENTS: dict[str, Draft] = {
    made.type: made
    for made in (
        draft(PromptBlocked((TextBlock("p"),), USER, "no")),
        draft(LlmRetry(9, 9, 1, Failure("OVERLOADED", "m"), 5)),
        queued(),
        asked(9, 9, "x"),
        decided(9, 9, "x"),
        draft(SessionOwner(9, Owner("h", 1, "b"))),
        draft(SessionReleased(9, "closed")),
        draft(SessionRecovered(9, 9, "partial")),
        draft(AgentSpawned("child")),
        draft(AgentFinished("child", EndReason("completed"))),
        draft(TodoWrite(())),
        parse_draft({"type": "of/others", "data": {"turn": 9, "step": 9}}),
    )
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_it_may_stand_anywhere(state: str, event: str) -> None:
    judge(Row(event, STATES[state], EVENTS[event], allowed))
