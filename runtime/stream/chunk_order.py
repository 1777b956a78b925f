"""The order in which chunks may come, whatever wire they came over.

What a decoder gets wrong is found here, before any of it is in a log.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from refold.runtime.errors import Refused
from refold.runtime.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    BlockType,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)

_DELTAS: dict[type, BlockType] = {
    TextDelta: "text",
    ReasoningDelta: "reasoning",
    ToolCallDelta: "tool-call",
}
_BLOCKS: dict[type[Block], BlockType] = {
    TextBlock: "text",
    ReasoningBlock: "reasoning",
    ToolCallBlock: "tool-call",
}


@attrs.define(eq=False)
class ChunkOrderBroken(Refused):
    """A chunk that cannot stand where it came; a fault of the provider's adapter."""

    problem: str

    def __str__(self) -> str:
        return f"the stream of chunks is not well formed: {self.problem}"


class ChunkOrder:
    """Checks the chunks of one answer, one after the other.

    An index is never negative and starts once; a delta and an end need an open block of their own
    type; usage comes at most once; nothing comes after finish, and finish comes when every block is
    closed, unless it says `aborted` or `error`.
    """

    def __init__(self) -> None:
        self._started: dict[int, BlockType] = {}
        self._open: set[int] = set()
        self._has_usage = False
        self._finished = False

    def check(self, chunk: Chunk) -> None:
        """Take note of `chunk`, or raise `ChunkOrderBroken` and stay as before."""
        if self._finished:
            raise ChunkOrderBroken(f"{type(chunk).__name__} after the finish")
        match chunk:
            case BlockStart():
                self._start(chunk)
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                self._inside(chunk.index, _DELTAS[type(chunk)])
            case BlockEnd():
                self._end(chunk)
            case UsageChunk():
                self._usage()
            case Finish():
                self._finish(chunk)
            case _:
                assert_never(chunk)

    def _start(self, chunk: BlockStart) -> None:
        if chunk.index < 0:
            raise ChunkOrderBroken(f"block {chunk.index} has a negative index")
        if chunk.index in self._started:
            raise ChunkOrderBroken(f"block {chunk.index} starts twice")
        self._started[chunk.index] = chunk.block_type
        self._open.add(chunk.index)

    def _inside(self, index: int, block_type: BlockType | None) -> None:
        if index not in self._open:
            raise ChunkOrderBroken(f"block {index} is not open")
        if block_type != self._started[index]:
            started = self._started[index]
            raise ChunkOrderBroken(f"block {index} is {started}, but {block_type} came for it")

    def _end(self, chunk: BlockEnd) -> None:
        block = chunk.block
        found = self._started.get(chunk.index) if block is None else _BLOCKS.get(type(block))
        self._inside(chunk.index, found)
        self._open.remove(chunk.index)

    def _usage(self) -> None:
        if self._has_usage:
            raise ChunkOrderBroken("usage comes twice")
        self._has_usage = True

    def _finish(self, chunk: Finish) -> None:
        if self._open and chunk.reason.kind not in ("aborted", "error"):
            blocks = ", ".join(map(str, sorted(self._open)))
            raise ChunkOrderBroken(f"{chunk.reason.kind} while block {blocks} is open")
        self._finished = True
