"""Which chunks are logged: rates, sizes, ends, and that nothing gets lost."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.stream.assembler import Assembled, Assembler
from refold.runtime.stream.chunk_logging import Trace
from refold.runtime.stream.chunk_order import ChunkOrder
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)

STOP = Finish(FinishReason("stop"))


def run(trace: Trace, *timed: tuple[float, Chunk]) -> list[Chunk]:
    return [logged for now, chunk in timed for logged in trace.feed(chunk, now)]


def test_deltas_are_held_until_they_are_a_second_old() -> None:
    trace = Trace()

    assert trace.feed(TextDelta(0, "a"), 10.0) == []
    assert trace.feed(TextDelta(0, "b"), 10.99) == []
    assert trace.feed(TextDelta(0, "c"), 11.0) == [TextDelta(0, "abc")]
    assert trace.feed(TextDelta(0, "d"), 11.5) == []
    assert trace.feed(TextDelta(0, "e"), 12.5) == [TextDelta(0, "de")]


def test_deltas_are_held_until_they_are_as_long_as_the_limit_in_bytes() -> None:
    trace = Trace(limit=4)

    assert trace.feed(TextDelta(0, "éa"), 0.0) == []
    assert trace.feed(TextDelta(0, "b"), 0.0) == [TextDelta(0, "éab")]
    assert trace.feed(TextDelta(0, "c"), 0.0) == []


def test_a_block_that_went_quiet_comes_out_with_another() -> None:
    logged = run(Trace(), (0.0, ReasoningDelta(0, "hm")), (2.0, TextDelta(1, "a")))

    assert logged == [ReasoningDelta(0, "hm")]


def test_starts_usage_and_finish_pass() -> None:
    passing: list[Chunk] = [BlockStart(0, "text"), UsageChunk(Usage(1)), STOP]

    assert run(Trace(), *((0.0, chunk) for chunk in passing)) == passing


def test_an_end_comes_behind_its_text_and_without_its_block() -> None:
    logged = run(
        Trace(),
        (0.0, TextDelta(0, "a")),
        (0.0, ReasoningDelta(1, "r")),
        (0.1, BlockEnd(0, TextBlock("a"))),
    )

    assert logged == [TextDelta(0, "a"), BlockEnd(0)]


def test_a_block_that_no_delta_told_stays_in_its_end() -> None:
    end = BlockEnd(0, TextBlock("a"))

    assert run(Trace(), (0.0, BlockStart(0, "text")), (0.0, end)) == [BlockStart(0, "text"), end]


def test_a_finish_comes_last() -> None:
    aborted = Finish(FinishReason("aborted"))

    assert run(Trace(), (0.0, TextDelta(0, "a")), (0.0, aborted)) == [TextDelta(0, "a"), aborted]


def test_deltas_of_a_call_keep_its_id_and_name() -> None:
    trace = Trace()
    run(trace, (0.0, ToolCallDelta(0, "c", "{", "f")), (0.1, ToolCallDelta(0, "c", "}")))

    assert trace.flush() == [ToolCallDelta(0, "c", "{}", "f")]


def test_a_flush_gives_out_what_is_held_once() -> None:
    trace = Trace()
    run(trace, (0.0, TextDelta(0, "a")), (0.0, TextDelta(1, "b")))

    assert trace.flush() == [TextDelta(0, "a"), TextDelta(1, "b")]
    assert trace.flush() == []


@pytest.mark.parametrize(("setting", "kept"), [("verbatim", True), ("none", False)])
def test_the_other_settings_log_everything_and_nothing(
    setting: Literal["verbatim", "none"], kept: bool
) -> None:
    trace = Trace(setting)
    stream: list[Chunk] = [
        BlockStart(0, "text"),
        TextDelta(0, "a"),
        BlockEnd(0, TextBlock("a")),
        STOP,
    ]

    assert run(trace, *((0.0, chunk) for chunk in stream)) == (stream if kept else [])
    assert trace.flush() == []


def start_of(delta: Chunk) -> BlockStart:
    match delta:
        case ReasoningDelta(index):
            return BlockStart(index, "reasoning")
        case ToolCallDelta(index):
            return BlockStart(index, "tool-call")
        case TextDelta(index):
            return BlockStart(index, "text")
        case _:
            raise AssertionError(delta)


def end_of(index: int, deltas: list[Chunk]) -> BlockEnd:
    texts = [d.text for d in deltas if isinstance(d, TextDelta) and d.index == index]
    thoughts = [d.text for d in deltas if isinstance(d, ReasoningDelta) and d.index == index]
    arguments = [
        d.arguments_delta for d in deltas if isinstance(d, ToolCallDelta) and d.index == index
    ]
    whole = (TextBlock("".join(texts)), ReasoningBlock("".join(thoughts)))
    return BlockEnd(index, (*whole, ToolCallBlock("c", "f", "".join(arguments)))[index])


texts = st.text(st.characters(codec="utf-8"), max_size=5)
deltas = st.lists(
    st.builds(TextDelta, st.just(0), texts)
    | st.builds(ReasoningDelta, st.just(1), texts)
    | st.builds(ToolCallDelta, st.just(2), st.just("c"), texts, st.just("f"))
)


@given(deltas, st.lists(st.floats(0, 2), min_size=1), st.integers(1, 12))
def test_a_coalesced_trace_tells_what_the_stream_told(
    told: list[Chunk], waits: list[float], limit: int
) -> None:
    starts = list(dict.fromkeys(start_of(delta) for delta in told))
    ends = [end_of(start.index, told) for start in starts]
    stream: list[Chunk] = [*starts, *told, *ends, STOP]
    trace, grammar, whole, traced = Trace(limit=limit), ChunkOrder(), Assembler(), Assembler()
    now = 0.0
    for position, chunk in enumerate(stream):
        now += waits[position % len(waits)]
        whole.feed(chunk)
        for logged in trace.feed(chunk, now):
            grammar.check(logged)
            traced.feed(logged)

    result: Assembled = whole.finished()
    assert trace.flush() == []
    assert traced.finished() == result
