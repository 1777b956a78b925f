"""Crash repair: the events that close an interrupted turn (design 2.8).

Deterministic and idempotent, without a clock: times repeat the last real event's. Nothing that
was recorded is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from runtime.envelope import Draft, Event, draft
from runtime.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    CompactEnd,
    EndReason,
    StepEnd,
    ToolCall,
    ToolError,
    ToolResult,
    TurnEnd,
)
from runtime.messages import TextBlock, tool_calls

NOT_STARTED = "This call was interrupted before it was started. Nothing ran; it can be made again."
UNKNOWN_OUTCOME = (
    "This call was interrupted while it ran and its outcome is unknown. Check the state of "
    "whatever it touches before making the call again, unless it only reads."
)


_BOUNDARIES = frozenset({"turn/start", "turn/end", "step/start", "step/end"})
_CALL_EVENTS = frozenset(
    {"assistant/message", "tool/call", "tool/result", "approval/asked", "approval/decided"}
)


@attrs.define
class _Call:
    started_at: int | None = None
    waits_for_approval: bool = False


class Repair:
    """What an ending at this point would leave open; feed it every event of a log in order.

    Events below `seed_length` (a fork's inherited part) open no compaction bracket.
    """

    def __init__(self, seed_length: int = 0) -> None:
        self._seed_length = seed_length
        self._turn: int | None = None
        self._step: int | None = None
        self._calls: dict[str, _Call] = {}
        self._bracket: list[int | None] = []
        self.time = 0
        """The last real event's time; `session/*` events are not real in this sense."""

    def feed(self, event: Event) -> None:
        if not event.type.startswith("session/"):
            self.time = event.time
        if event.type in _BOUNDARIES:
            self._cross(event)
        elif event.type in ("compact/start", "compact/end"):
            self._bracket.clear()
            if event.type == "compact/start" and event.seq >= self._seed_length:
                self._bracket.append(getattr(event.data, "turn", None))
        elif event.type in _CALL_EVENTS:
            self._follow_call(event)

    def _cross(self, event: Event) -> None:
        self._calls.clear()
        self._step = _number(event, "step") if event.type == "step/start" else None
        if event.type == "turn/start":
            self._turn = _number(event, "turn")
        elif event.type == "turn/end":
            self._turn = None

    def _follow_call(self, event: Event) -> None:
        match event.data:
            case AssistantMessage(content=content) if self._step is not None:
                self._calls.update({call.id: _Call() for call in tool_calls(content)})
            case ToolCall(call_id=call_id) if call_id in self._calls:
                self._calls[call_id].started_at = event.seq
            case ToolResult(call_id=call_id):
                self._calls.pop(call_id, None)
            case ApprovalAsked(call_id=call_id) | ApprovalDecided(call_id=call_id):
                if call_id in self._calls:
                    self._calls[call_id].waits_for_approval = event.type == "approval/asked"

    def closers(self) -> list[Draft]:
        """The drafts that close what is open: bracket, calls of the open step, step, turn."""
        found = [draft(CompactEnd(turn, error="interrupted")) for turn in self._bracket]
        if self._turn is None:
            return found
        waiting = False
        for call_id, call in self._calls.items():
            if call.waits_for_approval and call.started_at is None:
                waiting = True
            else:
                found.append(self._result(call_id, call.started_at))
        return found if waiting else [*found, *self._boundaries()]

    def _result(self, call_id: str, started_at: int | None) -> Draft:
        assert self._turn is not None
        assert self._step is not None
        text = NOT_STARTED if started_at is None else UNKNOWN_OUTCOME
        result = ToolResult(
            self._turn,
            self._step,
            call_id,
            (TextBlock(text),),
            is_error=True,
            error=ToolError("InterruptedError", "interrupted"),
        )
        return draft(result, cites=None if started_at is None else (started_at,))

    def _boundaries(self) -> list[Draft]:
        assert self._turn is not None
        end = draft(TurnEnd(self._turn, EndReason("interrupted")))
        if self._step is None:
            return [end]
        return [draft(StepEnd(self._turn, self._step)), end]


def _number(event: Event, name: str) -> int:
    """A turn or step number, also of a foreign event that carries more than ours or less."""
    found = getattr(event.data, name, None)
    if found is None:
        found = event.data.json.value.get(name)
    return found if isinstance(found, int) else 0


def interrupted_turn_closers(events: Iterable[Event], seed_length: int = 0) -> list[Event]:
    """The events that repair appends to a log that ends with `events`; empty for a whole log."""
    repair, next_seq = Repair(seed_length), 0
    for event in events:
        repair.feed(event)
        next_seq = event.seq + 1
    return [closer.at(next_seq + i, repair.time) for i, closer in enumerate(repair.closers())]
