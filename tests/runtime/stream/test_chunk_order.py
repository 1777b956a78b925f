"""The order of chunks: one rule, one test."""

from __future__ import annotations

import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock
from refold.runtime.stream.chunk_order import ChunkOrder, ChunkOrderBroken
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishKind,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)

TEXT = BlockStart(0, "text")
STOP = Finish(FinishReason("stop"))


def check(*chunks: Chunk) -> None:
    grammar = ChunkOrder()
    for chunk in chunks:
        grammar.check(chunk)


def refused(*chunks: Chunk) -> str:
    """What is wrong with the last chunk; the ones before it are fine."""
    grammar = ChunkOrder()
    for chunk in chunks[:-1]:
        grammar.check(chunk)
    with pytest.raises(ChunkOrderBroken) as caught:
        grammar.check(chunks[-1])
    assert isinstance(caught.value, RefoldError)
    return str(caught.value)


def test_blocks_may_overlap_and_start_in_any_order() -> None:
    check(
        BlockStart(3, "reasoning"),
        ReasoningDelta(3, "hm"),
        BlockStart(1, "tool-call"),
        ToolCallDelta(1, "c", "{", "f"),
        BlockStart(2, "text"),
        TextDelta(2, "a"),
        BlockEnd(1, ToolCallBlock("c", "f", "{")),
        ReasoningDelta(3, "m"),
        BlockEnd(3, ReasoningBlock("hmm")),
        UsageChunk(Usage()),
        BlockEnd(2),
        STOP,
    )


def test_an_answer_may_be_empty() -> None:
    check(STOP)


def test_an_index_is_never_negative() -> None:
    assert "negative" in refused(BlockStart(-1, "text"))


@pytest.mark.parametrize("between", [(), (BlockEnd(0),)])
def test_an_index_starts_once(between: tuple[Chunk, ...]) -> None:
    assert "twice" in refused(TEXT, *between, BlockStart(0, "text"))


@pytest.mark.parametrize("chunk", [TextDelta(0, "a"), ToolCallDelta(0, "c", ""), BlockEnd(0)])
def test_deltas_and_ends_need_a_start(chunk: Chunk) -> None:
    assert "not open" in refused(chunk)


@pytest.mark.parametrize("chunk", [TextDelta(0, "a"), BlockEnd(0)])
def test_nothing_comes_for_a_block_that_ended(chunk: Chunk) -> None:
    assert "not open" in refused(TEXT, BlockEnd(0), chunk)


@pytest.mark.parametrize(
    "chunk",
    [
        ReasoningDelta(0, "a"),
        ToolCallDelta(0, "c", ""),
        BlockEnd(0, ReasoningBlock("a")),
        BlockEnd(0, ToolResultBlock("c", ())),
    ],
)
def test_deltas_and_ends_have_the_type_of_their_block(chunk: Chunk) -> None:
    assert "block 0 is text" in refused(TEXT, chunk)


def test_usage_comes_once() -> None:
    assert "usage" in refused(UsageChunk(Usage()), UsageChunk(Usage()))


@pytest.mark.parametrize("chunk", [STOP, TEXT, UsageChunk(Usage())])
def test_nothing_comes_after_the_finish(chunk: Chunk) -> None:
    assert "after the finish" in refused(STOP, chunk)


@pytest.mark.parametrize("kind", ["stop", "tool-calls", "max-tokens", "content-filter"])
def test_an_answer_finishes_when_its_blocks_are_closed(kind: FinishKind) -> None:
    assert "block 0" in refused(TEXT, Finish(FinishReason(kind)))


@pytest.mark.parametrize("kind", ["aborted", "error"])
def test_a_broken_answer_may_leave_blocks_open(kind: FinishKind) -> None:
    check(TEXT, Finish(FinishReason(kind)))


def test_a_refused_chunk_changes_nothing() -> None:
    grammar = ChunkOrder()
    grammar.check(TEXT)
    with pytest.raises(ChunkOrderBroken):
        grammar.check(BlockEnd(0, ReasoningBlock("a")))

    grammar.check(BlockEnd(0, TextBlock("a")))
    grammar.check(STOP)
