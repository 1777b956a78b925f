"""The vocabulary of a streamed answer, the same for every wire."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from refold.runtime.json import Json
from refold.runtime.messages import Block

BlockType: TypeAlias = Literal["text", "reasoning", "tool-call"]


@attrs.frozen
class Usage:
    """Token counts that do not overlap; what a provider did not report is absent, never 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_input(self) -> int:
        """Every token that the model read: uncached, read from cache and written to it."""
        counts = (self.input_tokens, self.cache_read_tokens, self.cache_write_tokens)
        return sum(count or 0 for count in counts)


FinishKind: TypeAlias = Literal[
    "stop", "tool-calls", "max-tokens", "content-filter", "aborted", "error"
]


@attrs.frozen
class FinishReason:
    """How an answer ended; `said` is the server's own word where it is not one of the usual."""

    kind: FinishKind
    said: str | None = None


@attrs.frozen
class BlockStart:
    index: int
    block_type: BlockType


@attrs.frozen
class TextDelta:
    index: int
    text: str


@attrs.frozen
class ReasoningDelta:
    index: int
    text: str


@attrs.frozen
class ToolCallDelta:
    index: int
    id: str
    arguments_delta: str
    name: str | None = None


@attrs.frozen
class BlockEnd:
    """A block is whole; `block` is left out of coalesced traces, which hold its text already."""

    index: int
    block: Block | None = None


@attrs.frozen
class UsageChunk:
    usage: Usage


@attrs.frozen
class Finish:
    reason: FinishReason
    replay_state: Json | None = None


Chunk: TypeAlias = (
    BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | Finish
)

CHUNKS: dict[str, type] = {
    "block-start": BlockStart,
    "text-delta": TextDelta,
    "reasoning-delta": ReasoningDelta,
    "tool-call-delta": ToolCallDelta,
    "block-end": BlockEnd,
    "usage": UsageChunk,
    "finish": Finish,
}
