"""Turns, steps and what may stand inside a step: rules 1 to 5 and 7 (design 2.9).

The state is small and immutable, so that a refused batch leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from runtime.envelope import Draft, Event
from runtime.events import (
    SURFACE,
    AssistantChunk,
    AssistantMessage,
    RequestSealed,
    StepEnd,
    StepStart,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from runtime.header import RequestHeader
from runtime.messages import tool_calls

Problem: TypeAlias = "tuple[int, str] | None"
"""The number of a broken rule and a sentence, or nothing."""


@attrs.frozen
class Step:
    """The open step: how far its request came, and its calls by what happened to them.

    `started` gives the seq of each `tool/call`, `waiting` the calls without a result.
    """

    turn: int
    number: int
    sealed: bool = False
    streamed: bool = False
    answered: bool = False
    started: Mapping[str, int] = attrs.field(factory=dict)
    waiting: tuple[str, ...] = ()


@attrs.frozen
class State:
    """Where a log stands."""

    turn: int = 0
    turn_open: bool = False
    last_step: int = 0
    step: Step | None = None


def advance(state: State, event: Event) -> State:
    """The state after a committed event that is not a replacement."""
    match event.data:
        case TurnStart(turn=turn):
            return State(turn, turn_open=True)
        case TurnEnd():
            return attrs.evolve(state, turn_open=False, step=None)
        case StepStart(turn=turn, step=number):
            return attrs.evolve(state, last_step=number, step=Step(turn, number))
        case StepEnd():
            return attrs.evolve(state, step=None)
    step = None if state.step is None else _advance_step(state.step, event)
    return state if step is state.step else attrs.evolve(state, step=step)


def _advance_step(step: Step, event: Event) -> Step:
    match event.data:
        case AssistantChunk():
            return step if step.streamed else attrs.evolve(step, streamed=True)
        case RequestSealed():
            return attrs.evolve(step, sealed=True)
        case AssistantMessage(content=content):
            waiting = tuple(call.id for call in tool_calls(content))
            return attrs.evolve(step, answered=True, waiting=waiting)
        case ToolCall(call_id=call_id):
            return attrs.evolve(step, started={**step.started, call_id: event.seq})
        case ToolResult(call_id=call_id):
            return attrs.evolve(step, waiting=tuple(c for c in step.waiting if c != call_id))
    return step


def problem(state: State, event: Draft | Event) -> Problem:
    """What is wrong with `event` as the next one, if it is not a replacement."""
    match event.data:
        case TurnStart(turn=turn):
            return _turn_start(state, turn)
        case TurnEnd(turn=turn):
            return _turn_end(state, turn)
        case StepStart(turn=turn, step=number):
            return _step_start(state, turn, number)
        case StepEnd(turn=turn, step=number):
            return _names_open_step(state, turn, number, 1) or _step_end(state)
        case RequestHeader():
            return _header(state)
        case RequestSealed(turn=turn, step=number):
            return _names_open_step(state, turn, number, 7) or _sealed(state)
        case AssistantChunk() | AssistantMessage() | ToolCall() | ToolResult() as data:
            return _names_open_step(state, data.turn, data.step, 2) or _of_step(state, data)
    return _other_surface(state, event) if event.type in SURFACE else None


def replacement_problem(state: State) -> Problem:
    if state.step is None:
        return None
    return 6, f"step {state.step.turn}.{state.step.number} is open; replace between steps"


def _turn_start(state: State, turn: int) -> Problem:
    if state.turn_open:
        return 1, f"turn {state.turn} is still open"
    if turn != state.turn + 1:
        return 1, f"turn {turn} cannot follow turn {state.turn}"
    return None


def _turn_end(state: State, turn: int) -> Problem:
    if not state.turn_open or turn != state.turn:
        return 1, f"turn {turn} is not open"
    if state.step is not None:
        return 1, f"step {turn}.{state.step.number} is still open"
    return None


def _step_start(state: State, turn: int, number: int) -> Problem:
    if not state.turn_open or turn != state.turn:
        return 1, f"turn {turn} is not open"
    if state.step is not None:
        return 1, f"step {turn}.{state.step.number} is still open"
    if number != state.last_step + 1:
        return 1, f"step {turn}.{number} cannot follow step {turn}.{state.last_step}"
    return None


def _names_open_step(state: State, turn: int, number: int, rule: int) -> Problem:
    step = state.step
    if step is None or (turn, number) != (step.turn, step.number):
        return rule, f"step {turn}.{number} is not open"
    return None


def _step_end(state: State) -> Problem:
    step = state.step
    if step is not None and step.waiting:
        return 5, f"call {step.waiting[0]!r} has no result yet"
    return None


def _header(state: State) -> Problem:
    if state.step is None:
        return 7, "a request header belongs inside an open step"
    return (7, "the step's request is sealed already") if state.step.sealed else None


def _sealed(state: State) -> Problem:
    step = state.step
    assert step is not None
    if step.sealed:
        return 7, "a step seals its request once"
    if step.streamed or step.answered:
        return 7, "a request is sealed before its answer begins"
    return None


def _of_step(
    state: State, data: AssistantChunk | AssistantMessage | ToolCall | ToolResult
) -> Problem:
    step = state.step
    assert step is not None
    match data:
        case AssistantMessage(content=content):
            return _message(step, [call.id for call in tool_calls(content)])
        case ToolCall(call_id=call_id):
            if call_id not in step.waiting or call_id in step.started:
                return 3, f"call {call_id!r} was not asked for in this step, or was started before"
        case ToolResult(call_id=call_id):
            if call_id not in step.waiting:
                return 3, f"call {call_id!r} was not asked for in this step, or has its result"
    return None


def _message(step: Step, call_ids: list[str]) -> Problem:
    if step.answered:
        return 4, "the step has its assistant message already"
    if len(set(call_ids)) != len(call_ids):
        return 3, "a call id is used twice"
    return None


def _other_surface(state: State, event: Draft | Event) -> Problem:
    step = state.step
    if step is None:
        return None
    if not step.answered:
        return 4, "nothing may join the surface between step/start and the assistant message"
    if step.waiting:
        return 4, f"call {step.waiting[0]!r} must have its result first"
    if event.type == "user/message":
        return 4, "only context or steering may follow the results inside a step"
    return None
