"""Closing what a turn left open: the events that end its bracket, its calls, its step and itself.

Nothing that was recorded is dropped, and there is no clock: a crash's closers repeat the time of
the last event before it. What is closed follows from where the log stands alone, so that closing a
log twice adds nothing; the words and codes are those of whoever closes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.events import CompactEnd, EndReason, StepEnd, ToolError, ToolResult, TurnEnd
from refold.runtime.messages import TextBlock
from refold.runtime.standing import Call, Standing, Step, standing_of

NOT_STARTED = "This call was interrupted before it was started. Nothing ran; it can be made again."
UNKNOWN_OUTCOME = (
    "This call was interrupted while it ran and its outcome is unknown. Check the state of "
    "whatever it touches before making the call again, unless it only reads."
)


@attrs.frozen
class Why:
    """What ended a turn early, in the words and codes of its closers.

    `not_started` and `started` are what a call without a result is told, each with its error;
    `compaction` is what an open one failed with.
    """

    reason: EndReason
    compaction: str
    not_started: tuple[str, ToolError]
    started: tuple[str, ToolError]


INTERRUPTED = Why(
    EndReason("interrupted"),
    "interrupted",
    (NOT_STARTED, ToolError("InterruptedError", "interrupted")),
    (UNKNOWN_OUTCOME, ToolError("InterruptedError", "interrupted")),
)
"""A crash, a kill or a power cut: nobody knows what became of a call that had started."""


def closers(standing: Standing, why: Why, context: Sequence[Draft] = ()) -> list[Draft]:
    """The drafts that close what is open here: bracket, calls of the open step, step, turn.

    `context` joins an open step behind the results. A call that waits for an approval is closed as
    one that never started, which it is.
    """
    found = []
    if standing.bracket is not None:
        found.append(draft(CompactEnd(standing.bracket.turn, error=why.compaction)))
    if not standing.turn_open:
        return found
    step = standing.step
    if step is not None:
        found += [_result(standing.turn, step, id_, why) for id_ in step.waiting]
        found += [*context, draft(StepEnd(standing.turn, step.number))]
    return [*found, draft(TurnEnd(standing.turn, why.reason))]


def _result(turn: int, step: Step, call_id: str, why: Why) -> Draft:
    call: Call = step.calls[call_id]
    text, error = why.not_started if call.started is None else why.started
    result = ToolResult(turn, step.number, call_id, (TextBlock(text),), is_error=True, error=error)
    return draft(result, cites=None if call.started is None else (call.started,))


def is_real(event: Event) -> bool:
    """Whether an event tells of the conversation, and not of who opened or closed its log."""
    return not event.type.startswith("session/")


def interrupted_turn_closers(events: Sequence[Event], seed_length: int = 0) -> list[Event]:
    """The events that recovery appends to a log that ends with `events`; none for a whole log."""
    time = next((event.time for event in reversed(events) if is_real(event)), 0)
    made = closers(standing_of(events, seed_length), INTERRUPTED)
    next_seq = events[-1].seq + 1 if events else 0
    return [one.at(seq, time) for seq, one in enumerate(made, next_seq)]
