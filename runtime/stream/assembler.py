"""From the chunks of one answer to its blocks."""

from __future__ import annotations

from typing import assert_never

import attrs

from refold.runtime.json import Json
from refold.runtime.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.stream.chunk_order import ChunkOrderBroken
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    BlockType,
    Chunk,
    Finish,
    FinishKind,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)

_COMPLETE: frozenset[FinishKind] = frozenset(("stop", "tool-calls"))


@attrs.frozen
class Assembled:
    """A finished answer: its blocks in the order in which they began."""

    content: tuple[Block, ...]
    finish: FinishKind
    usage: Usage | None
    replay_state: Json | None


@attrs.define(eq=False)
class _Growing:
    block_type: BlockType
    pieces: list[str] = attrs.Factory(list)
    id: str = ""
    name: str = ""
    whole: Block | None = None  # once it is there, what else comes makes no difference

    def block(self) -> Block:
        if self.whole is not None:
            return self.whole
        text = "".join(self.pieces)
        match self.block_type:
            case "text":
                return TextBlock(text)
            case "reasoning":
                return ReasoningBlock(text)
            case "tool-call":
                return ToolCallBlock(self.id, self.name, text)


class Assembler:
    """Collects chunks; streams of deltas alone and coalesced traces make the same blocks.

    The first end of a block settles it: what comes for its index afterwards is ignored.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Growing] = {}
        self._usage: Usage | None = None
        self._finish: Finish | None = None

    @property
    def usage(self) -> Usage | None:
        """What the answer cost, as far as the provider has said."""
        return self._usage

    def feed(self, chunk: Chunk) -> None:
        """Take one chunk in; never refuses one, which is the grammar's business."""
        match chunk:
            case BlockStart(index, block_type):
                self._growing(index, block_type)
            case TextDelta(index, text):
                self._growing(index, "text").pieces.append(text)
            case ReasoningDelta(index, text):
                self._growing(index, "reasoning").pieces.append(text)
            case ToolCallDelta():
                self._add_call(chunk)
            case BlockEnd(index, block):
                self._end(index, block)
            case UsageChunk(usage):
                self._usage = usage
            case Finish():
                self._finish = chunk
            case _:
                assert_never(chunk)

    def _growing(self, index: int, block_type: BlockType) -> _Growing:
        return self._blocks.setdefault(index, _Growing(block_type))

    def _add_call(self, delta: ToolCallDelta) -> None:
        growing = self._growing(delta.index, "tool-call")
        growing.id = growing.id or delta.id
        growing.name = growing.name or delta.name or ""
        growing.pieces.append(delta.arguments_delta)

    def _end(self, index: int, block: Block | None) -> None:
        growing = self._blocks.get(index)
        if growing is None:
            if block is not None:
                self._blocks[index] = _Growing("text", whole=block)
        elif growing.whole is None:
            growing.whole = growing.block() if block is None else block

    def finished(self) -> Assembled:
        """The answer; raises `ChunkOrderBroken` when no finish came.

        Tool calls are kept only in an answer that is complete: after any finish but `stop` and
        `tool-calls` the last one may be cut, so all of them go, together with what the replay state
        holds for them under `tool_calls`.
        """
        if self._finish is None:
            raise ChunkOrderBroken("it ended without a finish")
        kind, replay_state = self._finish.reason.kind, self._finish.replay_state
        content = self._content()
        if kind not in _COMPLETE:
            content = tuple(block for block in content if not isinstance(block, ToolCallBlock))
            replay_state = _without_calls(replay_state)
        return Assembled(content, kind, self._usage, replay_state)

    def interrupted(self) -> tuple[Block, ...]:
        """What is kept of an answer that was cut: text and reasoning that are not blank.

        Nothing at all when there is no text that a reader saw. No tool calls.
        """
        kept = tuple(
            block
            for block in self._content()
            if isinstance(block, TextBlock | ReasoningBlock) and block.text.strip()
        )
        return kept if any(isinstance(block, TextBlock) for block in kept) else ()

    def _content(self) -> tuple[Block, ...]:
        return tuple(growing.block() for growing in self._blocks.values())


def _without_calls(state: Json | None) -> Json | None:
    value = None if state is None else state.thaw()
    if not isinstance(value, dict) or "tool_calls" not in value:
        return state
    del value["tool_calls"]
    return Json.of(value) if value else None
