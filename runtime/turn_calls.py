"""What was said and called in one turn, seen from its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from refold.runtime.events import AssistantMessage, ToolError, ToolResult
from refold.runtime.messages import Block, text_of, tool_calls


@attrs.frozen
class FinishedCall:
    """One tool call of a turn, and what came of it.

    `arguments` is the raw text that the model produced. `content` is what the model was shown, with
    `is_error` for a failure; `error` names that then: the class of what a tool raised, or such as
    `ToolDenied`, beside a code. `id` is unique in its step.
    """

    step: int
    id: str
    name: str
    arguments: str
    content: tuple[Block, ...]
    is_error: bool
    error: ToolError | None

    @property
    def text(self) -> str:
        """The text of the result."""
        return text_of(self.content)


def finished_calls(said: Iterable[object]) -> Iterator[FinishedCall]:
    """The calls among the data of a turn's messages that have a result, in the model's order."""
    data = tuple(said)
    results = {(one.step, one.call_id): one for one in data if isinstance(one, ToolResult)}
    for message in data:
        if not isinstance(message, AssistantMessage):
            continue
        for call in tool_calls(message.content):
            result = results.get((message.step, call.id))
            if result is not None:
                came = (result.content, result.is_error, result.error)
                yield FinishedCall(message.step, call.id, call.name, call.arguments, *came)
