"""What a session's events look like to people: the transcript of `refold show`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from refold.render import indented, plural, shortened, styled, visible_line
from refold.runtime.envelope import Event, Replace
from refold.runtime.events import (
    AgentFinished,
    AgentSpawned,
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    ContextMessage,
    EndReason,
    InboxRemoved,
    LlmRetry,
    PromptBlocked,
    SessionRecovered,
    SteeringMessage,
    TodoWrite,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.json_diff import compare_headers
from refold.runtime.messages import (
    Block,
    ReasoningBlock,
    Source,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    tool_calls,
)
from refold.runtime.request_header import EpochHeader, RequestHeader

ARGUMENTS = 400
"""How many characters of a call's arguments a transcript shows; `--json` has them all."""


@attrs.frozen
class Gap:
    """Events of a log that cannot be read, from one seq to another."""

    first: int
    last: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"seq {self.first} cannot be read"
        return f"seqs {self.first} to {self.last} cannot be read"


def with_gaps(events: Iterable[Event]) -> Iterator[Event | Gap]:
    """The events, and where seqs are missing between them, those."""
    next_seq = 0
    for event in events:
        if event.seq > next_seq:
            yield Gap(next_seq, event.seq - 1)
        yield event
        next_seq = event.seq + 1


def transcript(events: Iterable[Event | Gap], from_seq: int = 0) -> Iterator[str]:
    """The lines of a transcript; events before `from_seq` are read and not shown."""
    header: EpochHeader | None = None
    tools: dict[str, str] = {}
    for event in events:
        if isinstance(event, Gap):
            if event.last >= from_seq:
                yield styled(f"-- {event}", "red")
            continue
        if event.type == "assistant/chunk":
            continue
        if event.seq >= from_seq:
            yield from _lines(event, header, tools)
        if isinstance(event.data, RequestHeader):
            header = event.data.header
        elif isinstance(event.data, AssistantMessage):
            tools |= {call.id: call.name for call in tool_calls(event.data.content)}


def _lines(event: Event, header: EpochHeader | None, tools: Mapping[str, str]) -> Iterator[str]:
    if event.surface_op is not None:
        return _surface_lines(event, tools)
    return _other_lines(event, header)


def _surface_lines(event: Event, tools: Mapping[str, str]) -> Iterator[str]:
    if isinstance(event.surface_op, Replace):
        replaced = f"{event.surface_op.start} to {event.surface_op.end}"
        yield _note(f"seq {event.seq} takes the place of seqs {replaced} in what the model sees")
    match event.data:
        case UserMessage(content=content, source=source):
            yield from _said(f"user{_by(source)}", content)
        case ContextMessage(content=content, source=source):
            yield from _said(f"context{_by(source)}", content)
        case SteeringMessage(content=content, source=source):
            yield from _said(f"steering{_by(source)}", content)
        case AssistantMessage() as message:
            yield from _answer(message)
        case ToolResult() as result:
            yield from _result(result, tools.get(result.call_id, "?"))


def _other_lines(event: Event, header: EpochHeader | None) -> Iterator[str]:
    match event.data:
        case TurnStart(turn=turn, trigger=trigger):
            yield ""
            yield styled(visible_line(f"== turn {turn}, {_set_off(trigger.kind)} =="), "bold")
        case TurnEnd(turn=turn, reason=reason):
            yield styled(visible_line(f"== turn {turn} {_ended(reason)} =="), "bold")
        case RequestHeader(header=written, reason=why):
            yield _note(_header_note(written, why, header))
        case other if type(other) in _NOTES:
            yield _note(_NOTES[type(other)](other))


def _note(text: str) -> str:
    return styled(f"-- {visible_line(text)}", "dim")


def _said(who: str, content: Iterable[Block]) -> Iterator[str]:
    yield styled(f"{visible_line(who)}:", "bold")
    for block in content:
        yield from _block(block)


def _answer(message: AssistantMessage) -> Iterator[str]:
    maker = message.provenance
    by = "" if maker is None else f" ({maker.provider}/{maker.model})"
    broken = ", interrupted: what was visible when it broke off" if message.interrupted else ""
    yield from _said(f"assistant {message.turn}.{message.step}{by}{broken}", message.content)


def _result(result: ToolResult, tool: str) -> Iterator[str]:
    kind = "error" if result.is_error else "result"
    code = f" ({result.error.code})" if result.error else ""
    yield from _said(f"{kind} of {tool} {result.call_id}{code}", result.content)


def _block(block: Block) -> Iterable[str]:
    match block:
        case TextBlock(text=text):
            return indented(text)
        case ReasoningBlock(text=text):
            return (styled(line, "dim") for line in indented(f"(thinking) {text}"))
        case ToolCallBlock(id=call_id, name=name, arguments=arguments):
            return [
                visible_line(f"  call {name}")
                + f" {shortened(arguments, ARGUMENTS)}"
                + styled(f"  [{visible_line(call_id)}]", "dim")
            ]
        case ToolResultBlock(tool_call_id=call_id, content=content):
            lines = (line for inner in content for line in _block(inner))
            return [visible_line(f"  result of {call_id}"), *lines]


def _by(source: Source) -> str:
    match source.kind:
        case "plugin":
            return f" (from plugin {source.plugin})"
        case "agent":
            return f" (from agent {source.session})"
        case _:
            return ""


def _set_off(kind: str) -> str:
    told = {
        "message": "set off by a message",
        "injection": "set off by injected context",
        "recovery": "after a recovery",
    }
    return told.get(kind, f"set off as {kind!r}")  # another version may know other kinds


def _ended(reason: EndReason) -> str:
    kind: str = reason.kind  # another version may know other kinds
    match kind:
        case "completed":
            return "completed"
        case "aborted":
            return f"cancelled ({reason.reason})"
        case "error":
            code = f" {reason.code}" if reason.code else ""
            return f"failed in step {reason.step}{code}: {reason.message}"
        case "interrupted":
            return "interrupted by a crash, and closed when the session was opened again"
        case "disposed":
            return "ended when its agent was closed"
        case "max-tokens":
            return "ended at the limit of tokens"
        case "rejected":
            return f"rejected ({reason.reason})"
        case "budget":
            return f"ended at its budget of {reason.limit}"
    return f"ended as {kind!r}"


def _header_note(written: EpochHeader, why: str, before: EpochHeader | None) -> str:
    model = f"{written.config.provider}/{written.config.model}"
    if before is None:
        return f"request header: {model}, {plural(len(written.tools), 'tool')}"
    fields = ", ".join(drift.path for drift in compare_headers(before, written))
    begins = "a new loop instance begins; " if why == "resume" else ""
    return f"{begins}request header {f'changed in {fields}' if fields else 'unchanged'}"


def _cut(cut: SessionRecovered) -> str:
    if cut.dropped_records and not cut.dropped_bytes:
        return f"recovered: {plural(cut.dropped_records, 'record')} lost at the log's end"
    what = f"{plural(cut.dropped_bytes, 'byte')} ({plural(cut.dropped_records, 'record')})"
    return f"recovered: {what} were cut from the tail, {cut.reason}"


def _removed(removed: InboxRemoved) -> str:
    return f"pending input at seq {', '.join(map(str, removed.queued_seqs))} was {removed.outcome}"


def _retried(retry: LlmRetry) -> str:
    code = retry.failure.code
    return f"attempt {retry.attempt} failed ({code}); sent again after {retry.delay_ms} ms"


_NOTES: Mapping[type, Callable[[Any], str]] = {
    SessionRecovered: _cut,
    InboxRemoved: _removed,
    LlmRetry: _retried,
    PromptBlocked: lambda blocked: f"a prompt was blocked: {blocked.reason}",
    CompactStart: lambda start: f"compaction by {start.provider}/{start.model} begins",
    CompactEnd: lambda end: f"compaction failed: {end.error}" if end.error else "compaction ends",
    ApprovalAsked: lambda asked: f"call {asked.call_id} waits for an approval",
    ApprovalDecided: lambda made: f"call {made.call_id} was {made.decision} by {made.by}",
    AgentSpawned: lambda spawned: f"agent {spawned.session} was spawned",
    AgentFinished: lambda finished: f"agent {finished.session} {_ended(finished.reason)}",
    TodoWrite: lambda list_: "; ".join(f"todo ({t.status}): {t.content}" for t in list_.todos),
}
"""Log-only events that tell a reader something, each in one line."""
