"""The rules as a table: what must hold where the log stands for an event of a type to be next.

A type's conditions are asked in order and the first that does not hold is the refusal. A type
without a row may stand anywhere (rule 10). Replacements and the inbox are judged beside the table,
since they depend on more than where the log stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from refold.runtime.envelope import Draft, Event
from refold.runtime.events import (
    CATALOGUE,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    CompactSummary,
    StepStart,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from refold.runtime.messages import tool_calls
from refold.runtime.standing import Standing, Step

Problem: TypeAlias = "tuple[int, str] | None"
"""The number of a broken rule and a sentence, or nothing."""

Condition: TypeAlias = Callable[[Standing, Any], "str | None"]
"""What is wrong with an event's data where the log stands, if anything is."""


def problem(standing: Standing, event: Draft | Event) -> Problem:
    """The first rule that `event` breaks as the next one, if it replaces nothing.

    A stored event whose data cannot be read breaks none: it is told as unreadable.
    """
    row = ALLOWED.get(event.type)
    if row is None or not isinstance(event.data, CATALOGUE[event.type]):
        return None
    for rule, wrong in row:
        text = wrong(standing, event.data)
        if text is not None:
            return rule, text
    return None


def replacement_problem(standing: Standing) -> Problem:
    """Rule 6 as far as it depends on where the log stands."""
    if standing.step is None:
        return None
    return 6, f"step {standing.step.turn}.{standing.step.number} is open; replace between steps"


def _no_turn_is_open(at: Standing, _: TurnStart) -> str | None:
    return f"turn {at.turn} is still open" if at.turn_open else None


def _is_next_turn(at: Standing, data: TurnStart) -> str | None:
    return None if data.turn == at.turn + 1 else f"turn {data.turn} cannot follow turn {at.turn}"


def _names_open_turn(at: Standing, data: TurnEnd | StepStart) -> str | None:
    return None if at.turn_open and data.turn == at.turn else f"turn {data.turn} is not open"


def _no_step_is_open(at: Standing, data: TurnEnd | StepStart) -> str | None:
    return None if at.step is None else f"step {data.turn}.{at.step.number} is still open"


def _is_next_step(at: Standing, data: StepStart) -> str | None:
    if data.step == at.last_step + 1:
        return None
    return f"step {data.turn}.{data.step} cannot follow step {data.turn}.{at.last_step}"


def _names_open_step(at: Standing, data: Any) -> str | None:
    named = (data.turn, data.step)
    if at.step is not None and named == (at.step.turn, at.step.number):
        return None
    return f"step {named[0]}.{named[1]} is not open"


def _a_step_is_open(at: Standing, _: object) -> str | None:
    return "a request header belongs inside an open step" if at.step is None else None


def _in_step(wrong: Callable[[Step, Any], str | None]) -> Condition:
    """A condition of the open step; without one it holds."""
    return lambda at, data: None if at.step is None else wrong(at.step, data)


def _every_call_has_its_result(step: Step, _: object) -> str | None:
    return f"call {step.waiting[0]!r} has no result yet" if step.waiting else None


def _request_is_not_sealed(step: Step, _: object) -> str | None:
    return None if step.seal is None else "the step's request is sealed already"


def _seals_once(step: Step, _: object) -> str | None:
    return None if step.seal is None else "a step seals its request once"


def _answer_has_not_begun(step: Step, _: object) -> str | None:
    begun = step.streamed or step.answered
    return "a request is sealed before its answer begins" if begun else None


def _is_first_message(step: Step, _: object) -> str | None:
    return "the step has its assistant message already" if step.answered else None


def _call_ids_differ(_: Step, data: AssistantMessage) -> str | None:
    ids = [call.id for call in tool_calls(data.content)]
    return None if len(set(ids)) == len(ids) else "a call id is used twice"


def _starts_a_call(step: Step, data: ToolCall) -> str | None:
    call = step.calls.get(data.call_id)
    if call is not None and call.started is None and not call.has_result:
        return None
    return f"call {data.call_id!r} was not asked for in this step, or was started before"


def _answers_a_call(step: Step, data: ToolResult) -> str | None:
    call = step.calls.get(data.call_id)
    if call is not None and not call.has_result:
        return None
    return f"call {data.call_id!r} was not asked for in this step, or has its result"


def _message_came_first(step: Step, _: object) -> str | None:
    if step.answered:
        return None
    return "nothing may join the surface between step/start and the assistant message"


def _results_came_first(step: Step, _: object) -> str | None:
    return f"call {step.waiting[0]!r} must have its result first" if step.waiting else None


def _no_user_message(_step: Step, _: object) -> str | None:
    return "only context or steering may follow the results inside a step"


def _no_compaction_crosses(at: Standing, _: object) -> str | None:
    if at.bracket is None:
        return None
    return "a compaction is open and must end before the turn boundary"


def _no_compaction_is_open(at: Standing, _: object) -> str | None:
    return None if at.bracket is None else "a compaction is open already"


def _names_where_it_is(at: Standing, data: CompactStart) -> str | None:
    if data.turn == (at.turn if at.turn_open else None):
        return None
    return "a compaction names the open turn, or null between turns"


def _names_open_compaction(at: Standing, data: CompactSummary | CompactEnd) -> str | None:
    if at.bracket is not None and data.turn == at.bracket.turn:
        return None
    return "there is no such compaction open"


def _is_first_summary(at: Standing, _: object) -> str | None:
    return "a compaction has one summary" if at.bracket and at.bracket.summaries else None


def _has_summary_or_error(at: Standing, data: CompactEnd) -> str | None:
    if data.error is not None or (at.bracket is not None and at.bracket.summaries == 1):
        return None
    return "a compaction without a summary must end with an error"


_JOINS_SURFACE = ((4, _in_step(_message_came_first)), (4, _in_step(_results_came_first)))

ALLOWED: dict[str, tuple[tuple[int, Condition], ...]] = {
    "turn/start": ((1, _no_turn_is_open), (1, _is_next_turn), (8, _no_compaction_crosses)),
    "turn/end": ((1, _names_open_turn), (1, _no_step_is_open), (8, _no_compaction_crosses)),
    "step/start": ((1, _names_open_turn), (1, _no_step_is_open), (1, _is_next_step)),
    "step/end": ((1, _names_open_step), (5, _in_step(_every_call_has_its_result))),
    "request/header": ((7, _a_step_is_open), (7, _in_step(_request_is_not_sealed))),
    "request/sealed": (
        (7, _names_open_step),
        (7, _in_step(_seals_once)),
        (7, _in_step(_answer_has_not_begun)),
    ),
    "assistant/chunk": ((2, _names_open_step),),
    "assistant/message": (
        (2, _names_open_step),
        (4, _in_step(_is_first_message)),
        (3, _in_step(_call_ids_differ)),
    ),
    "tool/call": ((2, _names_open_step), (3, _in_step(_starts_a_call))),
    "tool/result": ((2, _names_open_step), (3, _in_step(_answers_a_call))),
    "user/message": (*_JOINS_SURFACE, (4, _in_step(_no_user_message))),
    "context/message": _JOINS_SURFACE,
    "steering/message": _JOINS_SURFACE,
    "compact/start": ((8, _no_compaction_is_open), (8, _names_where_it_is)),
    "compact/summary": ((8, _names_open_compaction), (8, _is_first_summary)),
    "compact/end": ((8, _names_open_compaction), (8, _has_summary_or_error)),
}
"""By event type, each condition with the rule that it belongs to."""
