"""What a model is shown: messages, their blocks, and where each came from.

Immutable and shared: a request holds the very objects that the request before it held.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from refold.runtime.json import Json


@attrs.frozen
class TextBlock:
    """Visible text of a message."""

    text: str


@attrs.frozen
class ReasoningBlock:
    """What a model thought, for reading; what goes back to its maker is `replay_state`."""

    text: str


@attrs.frozen
class ToolCallBlock:
    """One call that a model asked for; `arguments` is the raw text that it produced."""

    id: str
    name: str
    arguments: str


@attrs.frozen
class ToolResultBlock:
    tool_call_id: str
    content: tuple[Block, ...]
    is_error: bool | None = None


Block: TypeAlias = TextBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock

BLOCKS: dict[str, type] = {
    "text": TextBlock,
    "reasoning": ReasoningBlock,
    "tool-call": ToolCallBlock,
    "tool-result": ToolResultBlock,
}


@attrs.frozen
class Source:
    """Who said it: the user, a plugin by name, or another agent by session id."""

    kind: Literal["user", "plugin", "agent"]
    plugin: str | None = None
    session: str | None = None


USER = Source("user")


@attrs.frozen
class Provenance:
    """The provider and model that made a message, and what they want back verbatim."""

    provider: str
    model: str
    replay_state: Json | None = None


@attrs.frozen
class Message:
    """One message of a request; immutable, shared between requests, compared by value."""

    role: Literal["user", "assistant"]
    content: tuple[Block, ...]
    provenance: Provenance | None = None


def text_of(content: tuple[Block, ...]) -> str:
    """The visible text of some blocks, joined as it was streamed."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def tool_calls(content: tuple[Block, ...]) -> tuple[ToolCallBlock, ...]:
    return tuple(block for block in content if isinstance(block, ToolCallBlock))
