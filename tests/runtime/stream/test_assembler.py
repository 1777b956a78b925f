"""From chunks to blocks: whole answers, cut ones, and traces."""

from __future__ import annotations

import pytest

from refold.runtime.json import Json
from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.stream.assembler import Assembled, Assembler
from refold.runtime.stream.chunk_order import ChunkOrderBroken
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

CALL = ToolCallBlock("c", "f", "{}")
STOP = Finish(FinishReason("stop"))


def assembler(*chunks: Chunk) -> Assembler:
    made = Assembler()
    for chunk in chunks:
        made.feed(chunk)
    return made


def finish(kind: FinishKind, replay: object = None) -> Finish:
    return Finish(FinishReason(kind), None if replay is None else Json.of(replay))


def test_a_whole_answer() -> None:
    made = assembler(
        BlockStart(0, "text"),
        TextDelta(0, "a"),
        BlockStart(1, "tool-call"),
        ToolCallDelta(1, "c", "{", "f"),
        TextDelta(0, "b"),
        ToolCallDelta(1, "c", "}"),
        BlockEnd(0, TextBlock("ab")),
        BlockEnd(1, CALL),
        UsageChunk(Usage(1, 2)),
        finish("tool-calls", {"x": 1}),
    )

    assert made.finished() == Assembled(
        (TextBlock("ab"), CALL), "tool-calls", Usage(1, 2), Json.of({"x": 1})
    )


def test_blocks_stand_in_the_order_in_which_they_began() -> None:
    made = assembler(BlockStart(5, "text"), ReasoningDelta(2, "r"), TextDelta(5, "t"), STOP)

    assert made.finished().content == (TextBlock("t"), ReasoningBlock("r"))


def test_deltas_alone_make_the_same_blocks() -> None:
    made = assembler(
        TextDelta(0, "a"), ToolCallDelta(1, "c", "{"), ToolCallDelta(1, "c", "}", "f"), STOP
    )

    assert made.finished().content == (TextBlock("a"), CALL)


def test_an_end_alone_makes_its_block() -> None:
    assert assembler(BlockEnd(0, CALL), BlockEnd(1), STOP).finished().content == (CALL,)


def test_the_first_end_settles_a_block() -> None:
    made = assembler(
        TextDelta(0, "a"),
        BlockEnd(0, TextBlock("b")),
        TextDelta(0, "c"),
        BlockEnd(0, TextBlock("d")),
        STOP,
    )

    assert made.finished().content == (TextBlock("b"),)


def test_an_end_without_its_block_settles_what_was_told() -> None:
    made = assembler(TextDelta(0, "a"), BlockEnd(0), TextDelta(0, "b"), STOP)

    assert made.finished().content == (TextBlock("a"),)


def test_an_answer_without_a_finish_is_not_finished() -> None:
    with pytest.raises(ChunkOrderBroken, match="finish"):
        assembler(TextDelta(0, "a")).finished()


@pytest.mark.parametrize("kind", ["max-tokens", "content-filter", "error", "aborted"])
def test_an_incomplete_answer_loses_its_calls_and_what_belongs_to_them(kind: FinishKind) -> None:
    replay = {"reasoning_content": "r", "tool_calls": {"c": {"s": 1}}}
    made = assembler(BlockEnd(0, TextBlock("a")), BlockEnd(1, CALL), finish(kind, replay))

    assert made.finished() == Assembled(
        (TextBlock("a"),), kind, None, Json.of({"reasoning_content": "r"})
    )


def test_a_replay_state_of_nothing_but_calls_goes_with_them() -> None:
    made = assembler(BlockEnd(0, CALL), finish("max-tokens", {"tool_calls": {"c": {"s": 1}}}))

    assert made.finished().replay_state is None


def test_usage_is_there_as_soon_as_it_came() -> None:
    assert assembler().usage is None
    assert assembler(UsageChunk(Usage(1))).usage == Usage(1)


def test_an_interrupted_answer_keeps_what_was_said() -> None:
    made = assembler(
        ReasoningDelta(0, "hm"),
        BlockEnd(1, TextBlock("a")),
        TextDelta(2, "b"),
        TextDelta(3, " \n"),
        ToolCallDelta(4, "c", "{", "f"),
    )

    assert made.interrupted() == (ReasoningBlock("hm"), TextBlock("a"), TextBlock("b"))


@pytest.mark.parametrize("chunk", [TextDelta(1, " \n"), ToolCallDelta(1, "c", "{}", "f")])
def test_an_interrupted_answer_without_visible_text_keeps_nothing(chunk: Chunk) -> None:
    assert assembler(ReasoningDelta(0, "hm"), chunk).interrupted() == ()
