"""The scripted model streams whole answers in the grammar of a real provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import refold
from refold.actors.request.model import Model
from refold.actors.request.script import (
    Answer,
    Call,
    Delay,
    End,
    Fail,
    Hang,
    Piece,
    Say,
    Script,
    ScriptExhausted,
    Think,
)
from refold.runtime.errors import InvalidArgument
from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock
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
from refold.runtime.stream.failures import LlmFailure
from tests.agents import opened


async def ask(script: Model, body: bytes = b"{}", seen: list[Chunk] | None = None) -> list[Chunk]:
    seen = [] if seen is None else seen
    async with opened(script, body) as stream:
        while chunks := await stream.receive():
            seen += chunks
    return seen


async def play(*pieces: Piece) -> list[Chunk]:
    return await ask(Script([pieces]))


def usage_of(chunks: Sequence[Chunk]) -> Usage:
    (usage,) = [chunk.usage for chunk in chunks if isinstance(chunk, UsageChunk)]
    return usage


async def test_text_streams_as_a_block_of_deltas_then_usage_then_finish() -> None:
    assert await play(Say("four", pieces=2)) == [
        BlockStart(0, "text"),
        TextDelta(0, "fo"),
        TextDelta(0, "ur"),
        BlockEnd(0, TextBlock("four")),
        UsageChunk(Usage(input_tokens=0, output_tokens=1, cache_read_tokens=0)),
        Finish(FinishReason("stop")),
    ]


async def test_blocks_count_up_and_reasoning_has_its_own_deltas() -> None:
    chunks = await play(Think("hm"), Say("done"))
    assert chunks[:3] == [
        BlockStart(0, "reasoning"),
        ReasoningDelta(0, "hm"),
        BlockEnd(0, ReasoningBlock("hm")),
    ]
    assert chunks[3] == BlockStart(1, "text")


async def test_a_call_names_the_tool_once_and_finishes_with_tool_calls() -> None:
    chunks = await play(Call("read", {"path": "a"}, id="c1", pieces=2))
    assert chunks[:4] == [
        BlockStart(0, "tool-call"),
        ToolCallDelta(0, "c1", '{"path', "read"),
        ToolCallDelta(0, "c1", '":"a"}'),
        BlockEnd(0, ToolCallBlock("c1", "read", '{"path":"a"}')),
    ]
    assert chunks[-1] == Finish(FinishReason("tool-calls"))


async def test_a_call_with_empty_text_as_arguments_still_names_its_tool() -> None:
    chunks = await play(Call("now", "", id="c1"))
    assert chunks[1] == ToolCallDelta(0, "c1", "", "now")


async def test_call_ids_depend_on_the_request_and_the_place_alone() -> None:
    async def ids(body: bytes) -> list[str]:
        script = Script([[Call("a"), Call("b")]])
        return [c.id for c in await ask(script, body) if isinstance(c, ToolCallDelta)]

    first = await ids(b'{"n":1}')
    assert len(set(first)) == 2
    assert await ids(b'{"n":1}') == first
    assert not set(first) & set(await ids(b'{"n":2}'))


async def test_usage_counts_the_common_prefix_with_the_request_before_as_cached() -> None:
    script = Script([Say("x" * 40), Say("x")])
    first = usage_of(await ask(script, b"p" * 400))
    second = usage_of(await ask(script, b"p" * 400 + b"q" * 80))
    assert (first.input_tokens, first.cache_read_tokens, first.output_tokens) == (100, 0, 10)
    assert (second.input_tokens, second.cache_read_tokens) == (20, 100)


@pytest.mark.parametrize("at", [0, 1, 7, 200, 399])
async def test_usage_finds_the_first_differing_byte(at: int) -> None:
    other = bytearray(b"p" * 400)
    other[at] = 0
    script = Script([Say("a"), Say("b")])
    await ask(script, b"p" * 400)
    assert usage_of(await ask(script, bytes(other))).cache_read_tokens == at // 4


async def test_reasoning_tokens_are_absent_without_reasoning() -> None:
    assert usage_of(await play(Say("a"))).reasoning_tokens is None
    assert usage_of(await play(Think("12345678"))).reasoning_tokens == 2


async def test_end_replaces_the_finish() -> None:
    chunks = await play(Say("cut of"), End("max-tokens"))
    assert chunks[-1] == Finish(FinishReason("max-tokens"))


async def test_a_failure_breaks_the_answer_off_where_it_stands() -> None:
    seen: list[Chunk] = []
    with pytest.raises(LlmFailure) as caught:
        await ask(Script([[Say("par"), Fail("OVERLOADED", status=529)]]), seen=seen)
    assert seen[-1] == BlockEnd(0, TextBlock("par"))
    assert (caught.value.failure.code, caught.value.failure.status) == ("OVERLOADED", 529)


async def test_a_failure_alone_is_an_answer() -> None:
    with pytest.raises(LlmFailure, match="RATE_LIMIT: slow down"):
        await ask(Script([Fail("RATE_LIMIT", "slow down", retry_after_ms=50)]))


async def test_a_delay_takes_its_time_on_trios_clock(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    await play(Delay(3600), Say("late"))
    assert trio.current_time() - start == 3600


async def test_a_hang_lasts_until_cancelled_and_says_nothing_more(
    autojump_clock: MockClock,
) -> None:
    seen: list[Chunk] = []
    with trio.move_on_after(1000) as scope:
        await ask(Script([[Say("par"), Hang(), Say("never")]]), seen=seen)
    assert scope.cancelled_caught
    assert seen[-1] == BlockEnd(0, TextBlock("par"))


async def test_a_cancelled_receive_loses_no_chunk() -> None:
    async with opened(Script([Say("abc", pieces=3)])) as stream:
        seen: list[Chunk] = []
        while True:
            with trio.CancelScope() as scope:
                scope.cancel()
                await stream.receive()
            assert scope.cancelled_caught
            if not (chunks := await stream.receive()):
                break
            seen += chunks
    assert seen == await play(Say("abc", pieces=3))


async def test_a_complete_answer_stays_complete() -> None:
    async with opened(Script([Say("a")])) as stream:
        while await stream.receive():
            pass
        assert await stream.receive() == []


async def test_a_function_sees_the_parsed_body_of_each_request() -> None:
    def answer(body: Any) -> Answer:
        return Say(f"{len(body['messages'])} messages")

    script = Script(answer)
    chunks = await ask(script, b'{"messages":[1,2]}')
    assert TextDelta(0, "2 messages") in chunks
    chunks = await ask(script, b'{"messages":[1,2,3]}')
    assert TextDelta(0, "3 messages") in chunks


async def test_bodies_are_recorded_as_they_came() -> None:
    script = Script([Say("a"), Say("b")])
    await ask(script, b'{"a" : 1}')
    await ask(script, b"{}")
    assert script.bodies == [b'{"a" : 1}', b"{}"]


def test_text_in_no_piece_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="pieces"):
        Say("a", pieces=0)


async def test_a_script_that_ran_out_says_so_by_its_name() -> None:
    script = Script([Say("only")], name="clerk")
    await ask(script)
    said = r"ends after 1 and request 2 has no answer; add one to Script\(..., name='clerk'\)"
    with pytest.raises(ScriptExhausted, match=said):
        await ask(script)


async def test_text_is_an_answer_and_a_piece_of_one() -> None:
    script = Script(["one", ["two", Call("f")], Say("three")])
    for text in ("one", "two", "three"):
        chunks = await ask(script)
        assert TextDelta(0, text) in chunks
    assert TextDelta(0, "four") in await ask(Script(lambda _: "four"))


async def test_a_script_may_be_an_async_function(autojump_clock: MockClock) -> None:
    async def answer(body: Any) -> Answer:
        await trio.sleep(5)
        return [f"{len(body['messages'])} messages"]

    start = trio.current_time()
    assert TextDelta(0, "1 messages") in await ask(Script(answer), b'{"messages":[1]}')
    assert trio.current_time() - start == 5
    plain = Script(lambda body: [answer(body)][0])
    assert TextDelta(0, "2 messages") in await ask(plain, b'{"messages":[1,2]}')


async def test_an_async_function_that_is_cancelled_leaves_its_request_recorded(
    autojump_clock: MockClock,
) -> None:
    async def answer(_body: Any) -> Answer:
        await trio.sleep(100)
        return "never"

    script = Script(answer)
    with trio.move_on_after(3) as scope:
        await ask(script, b"{}")
    assert scope.cancelled_caught
    assert script.bodies == [b"{}"]


NO_ANSWERS: dict[str, Any] = {
    "a number": 3,
    "None": None,
    "bytes": b"x",
    "a dict": {"text": "x"},
    "a class": Say,
    "a list with a number": [Say("x"), 3],
    "a list in a list": [[Say("x")]],
}


@pytest.mark.parametrize("name", NO_ANSWERS)
async def test_what_is_no_answer_is_refused_with_what_is_one(name: str) -> None:
    given = NO_ANSWERS[name]
    kind = {"a list with a number": "int", "a list in a list": "list"}.get(name)
    kind = kind or type(given).__name__
    wanted = "must be text, Say, Think, Call, Delay, Hang, Fail, End, or a list of these, not"
    with pytest.raises(InvalidArgument, match=f"a script's answer to request 2 {wanted} {kind}"):
        Script(["fine", given])
    with pytest.raises(InvalidArgument, match=f"a script's answer to request 1 {wanted} {kind}"):
        await ask(Script(lambda _: given))


@pytest.mark.parametrize("given", ["hello", Say("hello"), None, 3, iter(["hello"]), {"hello"}])
def test_what_is_no_list_of_answers_is_refused(given: Any) -> None:
    wanted = "the answers of a Script must be a list of answers or a function, not "
    with pytest.raises(InvalidArgument, match=wanted + type(given).__name__):
        Script(given)


def test_a_list_of_pieces_needs_no_annotation() -> None:
    pieces = [Say("hello"), Call("count", {"upto": 2}), Fail("AUTH")]  # mypy infers list[Piece]
    assert Script(pieces).answers is pieces
    answers: list[Answer] = ["hello", [Say("x"), "y"], Fail("AUTH")]
    assert Script(answers).answers is answers


def test_a_failure_that_no_server_has_is_refused_with_the_one_that_was_meant() -> None:
    for code, said in {
        "OVERLODED": "cannot be 'OVERLODED'; did you mean OVERLOADED? The codes are ABORTED, ",
        "rate_limit": "cannot be 'rate_limit'; did you mean RATE_LIMIT? The codes are",
        "X": "cannot be 'X'; the codes are ABORTED, AUTH, ",
    }.items():
        with pytest.raises(InvalidArgument) as refused:
            Fail(code)
        assert str(refused.value).startswith(f"the code of a Fail {said}")
    number: Any = 503
    with pytest.raises(InvalidArgument, match=r"must be one of ABORTED, AUTH, .*, not int"):
        Fail(number)


def test_a_failure_may_be_given_as_a_code() -> None:
    failed = Fail(refold.Code.QUOTA)
    assert (failed.code, type(failed.code)) == ("QUOTA", str)
