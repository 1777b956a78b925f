"""Where a log stands: the one fold of turns, steps, calls, compaction and approvals.

The rules, the closers of an interrupted turn, the list of steps and the reports all ask it, so
that none of them can be of another opinion. It is immutable: a refused batch leaves nothing behind,
and an earlier standing can be kept. It never refuses; what an event may be here is for the rules,
which stand on top of it.

    turn   closed --turn/start--> open --turn/end--> closed
    step   none --step/start--> open (sealed? streamed? answered?) --step/end--> none
    call   asked --tool/call--> started --tool/result--> has its result

They are coupled downwards: a turn's start or end ends the step that is open, a step's start ends
the one before it, and with a step go its calls. An `assistant/message` asks for calls only inside
a step. An event that takes the place of others on the surface is history, not progress: it changes
nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from refold.runtime.envelope import Event, Replace
from refold.runtime.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    CompactSummary,
    RequestSealed,
    StepStart,
    ToolCall,
    ToolResult,
    TurnStart,
)
from refold.runtime.messages import tool_calls

STEP_ENDS = frozenset({"step/start", "step/end", "turn/start", "turn/end"})
"""What ends an open step."""


@attrs.frozen
class Call:
    """A call that the open step's message asked for; `started` is the seq of its `tool/call`."""

    started: int | None = None
    has_result: bool = False
    asked_approval: bool = False
    """Whether somebody was asked to allow it and has not decided."""


@attrs.frozen
class Step:
    """The open step, begun at seq `start`: how far its request came, and its calls in order."""

    turn: int
    number: int
    start: int
    seal: RequestSealed | None = None
    streamed: bool = False
    answered: bool = False
    calls: Mapping[str, Call] = attrs.field(factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The calls without a result."""
        return tuple(id_ for id_, call in self.calls.items() if not call.has_result)

    @property
    def approvals(self) -> tuple[str, ...]:
        """The calls that wait for somebody's approval."""
        return tuple(
            id_
            for id_, call in self.calls.items()
            if call.asked_approval and call.started is None and not call.has_result
        )


@attrs.frozen
class Bracket:
    """An open compaction; `turn` is None between turns."""

    turn: int | None
    summaries: int = 0


@attrs.frozen
class Standing:
    """Where a log stands: the last turn and whether it is open, its last step, what is open."""

    turn: int = 0
    turn_open: bool = False
    last_step: int = 0
    step: Step | None = None
    bracket: Bracket | None = None

    def after(self, event: Event) -> Standing:
        """Where it stands once `event` is committed."""
        fold = _FOLDS.get(event.type)
        if fold is None or isinstance(event.surface_op, Replace):
            return self
        return fold(self, event)


def standing_of(events: Iterable[Event], seed_length: int = 0) -> Standing:
    """Where a whole log stands; a fork's seed of `seed_length` events leaves no bracket open."""
    standing = Standing()
    for event in events:
        standing = standing.after(event)
        if event.seq + 1 == seed_length:
            standing = attrs.evolve(standing, bracket=None)
    return standing


def _turn_start(at: Standing, event: Event) -> Standing:
    if not isinstance(event.data, TurnStart):
        return at
    return Standing(event.data.turn, turn_open=True, bracket=at.bracket)


def _turn_end(at: Standing, event: Event) -> Standing:
    del event  # whatever it says, the turn is over
    return Standing(at.turn, last_step=at.last_step, bracket=at.bracket)


def _step_start(at: Standing, event: Event) -> Standing:
    data = event.data
    if not isinstance(data, StepStart):
        return at
    step = Step(data.turn, data.step, event.seq)
    return Standing(at.turn, at.turn_open, data.step, step, at.bracket)


def _step_end(at: Standing, event: Event) -> Standing:
    del event  # as for a turn
    return _with_step(at, None)


def _with_step(at: Standing, step: Step | None) -> Standing:
    return Standing(at.turn, at.turn_open, at.last_step, step, at.bracket)


def _in_step(fold: Callable[[Step, Event], Step]) -> Callable[[Standing, Event], Standing]:
    """A fold of the open step; without one nothing happens."""

    def in_step(at: Standing, event: Event) -> Standing:
        if at.step is None:
            return at
        step = fold(at.step, event)
        return at if step is at.step else _with_step(at, step)

    return in_step


def _chunk(step: Step, event: Event) -> Step:
    del event  # that there is one is enough
    return step if step.streamed else attrs.evolve(step, streamed=True)


def _sealed(step: Step, event: Event) -> Step:
    return attrs.evolve(step, seal=event.data) if isinstance(event.data, RequestSealed) else step


def _message(step: Step, event: Event) -> Step:
    data: AssistantMessage = event.data
    asked = {call.id: Call() for call in tool_calls(data.content)}
    return attrs.evolve(step, answered=True, calls={**step.calls, **asked})


def _of_call(
    cls: type[ToolCall | ToolResult | ApprovalAsked | ApprovalDecided],
    change: Callable[[Call, Event], Call],
) -> Callable[[Standing, Event], Standing]:
    """A fold of the call that the event names; of another one nothing happens."""

    def of_call(step: Step, event: Event) -> Step:
        data = event.data
        if not isinstance(data, cls) or data.call_id not in step.calls:
            return step
        call = change(step.calls[data.call_id], event)
        return attrs.evolve(step, calls={**step.calls, data.call_id: call})

    return _in_step(of_call)


def _bracket(
    cls: type, change: Callable[[Bracket | None, Any], Bracket | None]
) -> Callable[[Standing, Event], Standing]:
    def of_bracket(at: Standing, event: Event) -> Standing:
        if not isinstance(event.data, cls):
            return at
        return attrs.evolve(at, bracket=change(at.bracket, event.data))

    return of_bracket


def _summarised(bracket: Bracket | None, data: CompactSummary) -> Bracket | None:
    del data  # how many there are is enough
    return None if bracket is None else Bracket(bracket.turn, bracket.summaries + 1)


_FOLDS: dict[str, Callable[[Standing, Event], Standing]] = {
    "turn/start": _turn_start,
    "turn/end": _turn_end,
    "step/start": _step_start,
    "step/end": _step_end,
    "assistant/chunk": _in_step(_chunk),
    "request/sealed": _in_step(_sealed),
    "assistant/message": _in_step(_message),
    "tool/call": _of_call(ToolCall, lambda call, event: attrs.evolve(call, started=event.seq)),
    "tool/result": _of_call(ToolResult, lambda call, _: attrs.evolve(call, has_result=True)),
    "approval/asked": _of_call(
        ApprovalAsked, lambda call, _: attrs.evolve(call, asked_approval=True)
    ),
    "approval/decided": _of_call(
        ApprovalDecided, lambda call, _: attrs.evolve(call, asked_approval=False)
    ),
    "compact/start": _bracket(CompactStart, lambda _, data: Bracket(data.turn)),
    "compact/summary": _bracket(CompactSummary, _summarised),
    "compact/end": _bracket(CompactEnd, lambda _bracket, _data: None),
}
"""By event type, what it changes."""
