"""How a session sounds while it runs: from chunks and events to text for people."""

from __future__ import annotations

from collections.abc import Sequence

from refold.chat.feed import Feed, Kind, Piece
from refold.cli.shared.transcript import transcript
from refold.render import Colour, number, shortened, styled, visible_line
from refold.runtime.envelope import Event
from refold.runtime.events import (
    AgentFinished,
    AgentSpawned,
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    LlmRetry,
    PromptBlocked,
    TodoWrite,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from refold.runtime.messages import ToolCallBlock, text_of, tool_calls
from refold.runtime.stream.chunks import BlockEnd, Chunk, ReasoningDelta, TextDelta
from refold.runtime.usage import StepUsage, usage_by_step

SHOWN = 200
"""How many characters of a call's arguments, and of a tool's result, a chat shows."""

_AS_IN_TRANSCRIPTS = (
    AgentFinished,
    AgentSpawned,
    ApprovalAsked,
    ApprovalDecided,
    CompactEnd,
    CompactStart,
    PromptBlocked,
    TodoWrite,
)


class Teller:
    """Turns what an agent does into text, in the order in which it happens.

    `chunk` is for `Agent.listen`, `event` for the observers of its log: both are called as things
    happen, so a note about an attempt comes before the text of the next one.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._voice: Kind | None = None
        self._line_is_open = False
        self._turn: list[Event] = []
        self._tools: dict[str, str] = {}

    def note(self, text: str) -> None:
        """Say something on a line of its own; `text` is made visible."""
        self._say(styled(f"-- {visible_line(text)}", "dim"))

    def lines(self, text: str) -> None:
        """Say lines that are safe to show already."""
        self._say(text)

    def _say(self, text: str) -> None:
        self.end_line()
        self._feed.put(Piece(f"{text}\n", "aside"))

    def end_line(self) -> None:
        """End the line that the model is in the middle of."""
        if self._line_is_open and self._voice is not None:
            self._feed.put(Piece("\n", self._voice))
        self._voice, self._line_is_open = None, False

    def chunk(self, chunk: Chunk) -> None:
        match chunk:
            case TextDelta(text=text):
                self._stream("answer", text)
            case ReasoningDelta(text=text):
                self._stream("thinking", text)
            case BlockEnd():
                self.end_line()

    def _stream(self, voice: Kind, text: str) -> None:
        if not text:
            return
        style: Colour | None = "dim" if voice == "thinking" else None
        if voice != self._voice:
            self.end_line()
            self._voice = voice
            if voice == "thinking":
                self._feed.put(Piece("(thinking) ", voice, style))
        self._feed.put(Piece(text, voice, style))
        self._line_is_open = not text.endswith("\n")

    @property
    def awaited(self) -> str:
        """What a turn that runs is waiting for."""
        if self._tools:
            return f"running {visible_line(', '.join(self._tools.values()))}"
        return "waiting for the model"

    def event(self, event: Event) -> None:
        self._turn.append(event)
        match event.data:
            case TurnStart():
                self._turn = [event]
            case AssistantMessage(content=content):
                for call in tool_calls(content):
                    self._call(call)
            case ToolResult() as result:
                self._result(result)
            case LlmRetry() as retry:
                self._retry(retry)
            case TurnEnd() as end:
                self._end(event, end)
            case data if isinstance(data, _AS_IN_TRANSCRIPTS):
                self._say("\n".join(transcript([event])))

    def _call(self, call: ToolCallBlock) -> None:
        self._tools[call.id] = call.name
        self._say(f"  call {visible_line(call.name)} {shortened(call.arguments, SHOWN)}")

    def _result(self, result: ToolResult) -> None:
        tool = visible_line(self._tools.pop(result.call_id, "?"))
        text = shortened(text_of(result.content), SHOWN)
        if result.is_error:
            self._say(styled(f"  error of {tool}: {text}", "red"))
        else:
            self._say(styled(f"  result of {tool}: {text}", "dim"))

    def _retry(self, retry: LlmRetry) -> None:
        failure, seconds = retry.failure, retry.delay_ms / 1000
        self.note(
            f"attempt {retry.attempt} failed ({failure.code}: {failure.message}): what it said is "
            f"void, and the request is sent again in {seconds:g} s"
        )

    def _end(self, event: Event, end: TurnEnd) -> None:
        if end.reason.kind != "completed":
            self._say("\n".join(transcript([event])))
        self.note(_usage(usage_by_step(self._turn)))
        self._turn = []


def _usage(rows: Sequence[StepUsage]) -> str:
    used = [row for row in rows if row.usage is not None]
    if not used:
        return "the model reported no usage"
    sums = (
        _sum([row.tokens_in for row in used]),
        _sum([row.tokens_cached for row in used]),
        _sum([row.tokens_out for row in used]),
    )
    return "{} tokens in, {} of them cached, {} out".format(*map(number, sums))


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
