"""The projection: from one surface event to at most one message.

Because no other event has a part in it, what was derived for one request is the beginning of what
is derived for the next.
"""

from __future__ import annotations

import orjson

from refold.runtime.envelope import Event
from refold.runtime.events import (
    AssistantMessage,
    ContextMessage,
    SteeringMessage,
    ToolResult,
    UserMessage,
)
from refold.runtime.messages import Block, Message, Source, TextBlock, ToolResultBlock


def derive_event_message(event: Event) -> Message | None:
    """The message that a surface event projects to; None for every other event.

    Pure, per event: no other event, clock or setting has a part in it.
    """
    return message_of(event.data)


def message_of(data: object) -> Message | None:
    """The message that a surface event with this data projects to."""
    match data:
        case UserMessage(content=content):
            return Message("user", content)
        case AssistantMessage(content=content, provenance=provenance):
            return Message("assistant", content, provenance) if content else None
        case ToolResult() as result:
            block = ToolResultBlock(result.call_id, result.content, result.is_error)
            return Message("user", (block,))
        case ContextMessage(content=content, envelope="raw"):
            return Message("user", content)
        case ContextMessage(content=content, source=source):
            return Message("user", _tagged("context", source, content))
        case SteeringMessage(content=content, source=source):
            return Message("user", _tagged("steering", source, content))
    return None


def _tagged(tag: str, source: Source, content: tuple[Block, ...]) -> tuple[Block, ...]:
    opening = TextBlock(f"<{tag} source={orjson.dumps(source.kind).decode()}>")
    return (opening, *content, TextBlock(f"</{tag}>"))
