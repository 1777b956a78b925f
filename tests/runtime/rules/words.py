"""The events of the tables in one word each, with nothing in them that no rule looks at."""

from __future__ import annotations

from typing import Literal

from refold.runtime.envelope import Draft, Replace, draft
from refold.runtime.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantChunk,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    CompactSummary,
    ContextMessage,
    EndReason,
    InboxQueued,
    InboxRemoved,
    RequestSealed,
    SteeringMessage,
    StepEnd,
    StepStart,
    ToolCall,
    ToolError,
    ToolResult,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.messages import USER, Provenance, Source, TextBlock, ToolCallBlock
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.stream.chunks import TextDelta

Cites = tuple[int, ...] | None


def turn(number: int, kind: Literal["message", "recovery"] = "message") -> Draft:
    return draft(TurnStart(number, Trigger(kind, USER)))


def turn_end(number: int) -> Draft:
    return draft(TurnEnd(number, EndReason("completed")))


def step(turn: int, number: int) -> Draft:
    return draft(StepStart(turn, number))


def step_end(turn: int, number: int) -> Draft:
    return draft(StepEnd(turn, number))


def header() -> Draft:
    return draft(RequestHeader(EpochHeader(LlmCallConfig("p", model="m")), "initial"))


def seal(turn: int, step: int) -> Draft:
    return draft(RequestSealed(turn, step, "chat/1", "0" * 64, "0" * 64, 0, 0, "off"))


def chunk(turn: int, step: int) -> Draft:
    return draft(AssistantChunk(turn, step, TextDelta(0, "t")))


def says(
    turn: int, step: int, *calls: str, cites: Cites = None, replaces: Replace | None = None
) -> Draft:
    """An assistant message that asks for these calls."""
    blocks = tuple(ToolCallBlock(call, "tool", "{}") for call in calls)
    message = AssistantMessage(turn, step, (TextBlock("t"), *blocks), Provenance("p", "m"))
    return draft(message, cites=cites, replaces=replaces)


def call(turn: int, step: int, id_: str) -> Draft:
    """A tool body starts."""
    return draft(ToolCall(turn, step, id_, "tool", "{}"))


def result(
    turn: int,
    step: int,
    id_: str,
    text: str = "r",
    *,
    error: bool = False,
    cites: Cites = None,
    replaces: Replace | None = None,
) -> Draft:
    failure = ToolError("E", "CODE") if error else None
    said = ToolResult(turn, step, id_, (TextBlock(text),), error, failure)
    return draft(said, cites=cites, replaces=replaces)


def user(*cites: int, replaces: Replace | None = None) -> Draft:
    return draft(UserMessage((TextBlock("u"),), USER), cites=cites or None, replaces=replaces)


def context(*cites: int, replaces: Replace | None = None) -> Draft:
    message = ContextMessage((TextBlock("c"),), Source("plugin", plugin="p"))
    return draft(message, cites=cites or None, replaces=replaces)


def steering(turn: int, *cites: int) -> Draft:
    return draft(SteeringMessage(turn, (TextBlock("s"),), USER), cites=cites or None)


def queued(key: str | None = None, text: str = "q", *, own: bool | None = None) -> Draft:
    return draft(InboxQueued("turn", "prompt", (TextBlock(text),), USER, key, own))


def aside() -> Draft:
    """Injected context is queued."""
    source = Source("plugin", plugin="p")
    return draft(InboxQueued("step", "inject", (TextBlock("c"),), source))


def removed(*seqs: int) -> Draft:
    return draft(InboxRemoved(seqs, "cancelled"))


def compact(turn: int | None) -> Draft:
    """A compaction begins, in a turn or between turns."""
    return draft(CompactStart(turn, "p", "m", (0, 0), "v1", "0" * 64))


def summary(turn: int | None) -> Draft:
    return draft(CompactSummary(turn, "s", (0, 0), (0,), "p", "m"))


def compacted(turn: int | None, error: str | None = None) -> Draft:
    """A compaction is over."""
    return draft(CompactEnd(turn, error))


def asked(turn: int, step: int, id_: str) -> Draft:
    return draft(ApprovalAsked(turn, step, id_))


def decided(turn: int, step: int, id_: str) -> Draft:
    return draft(ApprovalDecided(turn, step, id_, "allowed", "user"))


def at(start: int, end: int | None = None) -> Replace:
    """In the place of the surface nodes from `start` to `end`."""
    return Replace(start, start if end is None else end)
