"""Tools in threads, and output that is cut."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
import trio

from refold.actors.tools import Abandoned, InvalidTool, Outcome, run_tool, tool
from refold.actors.tools.run import _THREADS
from refold.runtime.events import ToolError
from refold.runtime.messages import ReasoningBlock, TextBlock, text_of


async def test_a_thread_tool_gets_its_arguments_and_runs_in_another_thread() -> None:
    @tool(isolation="thread")
    def name_thread(prefix: str) -> str:
        return f"{prefix} {threading.get_ident()}"

    outcome = await run_tool(name_thread, '{"prefix":"it is"}')
    assert not outcome.is_error
    assert text_of(outcome.content).startswith("it is ")
    assert text_of(outcome.content) != f"it is {threading.get_ident()}"


async def test_a_plain_tool_runs_on_the_trio_thread() -> None:
    @tool
    def name_thread() -> int:
        return threading.get_ident()

    outcome = await run_tool(name_thread, "")
    assert text_of(outcome.content) == str(threading.get_ident())


async def test_a_thread_tool_that_raises_is_a_failure_as_any_other() -> None:
    @tool(isolation="thread")
    def trip() -> str:
        raise LookupError("tripped")

    outcome = await run_tool(trip, "")
    assert outcome == Outcome(
        (TextBlock("Error: LookupError: tripped"),),
        is_error=True,
        error=ToolError("LookupError", "TOOL_FAILED"),
    )


async def test_a_thread_tool_sees_the_context_of_its_call_and_may_call_back() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    async def answer() -> str:
        return "and Trio answers"

    @tool(isolation="thread")
    def look() -> str:
        return f"{who.get()} {trio.from_thread.run(answer)}"

    who.set("the caller")
    assert text_of((await run_tool(look, "")).content) == "the caller and Trio answers"


async def test_a_thread_in_time_is_never_counted_as_abandoned() -> None:
    @tool(isolation="thread", timeout=30)
    def quick() -> str:
        return "done"

    abandoned = Abandoned()
    for _ in range(20):
        await run_tool(quick, "", abandoned)
    assert abandoned.count == 0


async def test_a_call_that_finds_no_free_thread_times_out_without_having_begun() -> None:
    let_go, began = threading.Event(), list[str]()

    @tool(isolation="thread", timeout=60)
    def hang() -> None:
        began.append("hang")
        let_go.wait(30)

    @tool(isolation="thread", timeout=0.05)
    def late() -> None:
        began.append("late")

    abandoned = Abandoned()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(_THREADS):
                nursery.start_soon(run_tool, hang, "")
            with trio.fail_after(30):
                while len(began) < _THREADS:
                    await trio.lowlevel.checkpoint()
            outcome = await run_tool(late, "", abandoned)
            let_go.set()
    finally:
        let_go.set()
    assert outcome.error == ToolError("ToolTimeout", "TOOL_TIMEOUT")
    assert began == ["hang"] * _THREADS
    assert abandoned.count == 0
    assert not (await run_tool(late, "")).is_error, "threads that ended are free again"


@pytest.mark.parametrize(
    ("length", "limit", "shown"),
    [
        (10, 10, "a" * 10),
        (11, 10, "aaaaaaa\n[... 1 of 11 characters left out; ask for less ...]\naaa"),
        (5, 1, "\n[... 4 of 5 characters left out; ask for less ...]\na"),
        (0, 1, ""),
    ],
)
async def test_text_over_the_limit_keeps_its_head_and_tail(
    length: int, limit: int, shown: str
) -> None:
    @tool(max_output=limit)
    def say(length: int) -> str:
        return "a" * length

    outcome = await run_tool(say, f'{{"length":{length}}}')
    assert text_of(outcome.content) == shown
    assert not outcome.is_error


async def test_each_text_block_has_the_limit_and_other_blocks_are_left_whole() -> None:
    @tool(max_output=4)
    def blocks() -> list[object]:
        return [TextBlock("aaaa"), TextBlock("bbbbb"), ReasoningBlock("c" * 9)]

    first, second, third = (await run_tool(blocks, "")).content
    assert (first, third) == (TextBlock("aaaa"), ReasoningBlock("c" * 9))
    assert text_of((second,)).startswith("bbb\n[... 1 of 5 ")


def test_a_place_or_a_limit_that_makes_no_sense_is_refused_where_the_tool_is_made() -> None:
    async def wait() -> None: ...

    def work() -> None: ...

    with pytest.raises(InvalidTool, match="is async and cannot run in a thread"):
        tool(wait, isolation="thread")
    with pytest.raises(InvalidTool, match="choose one of task, thread"):
        tool(work, isolation="space")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # the wrong word is the case
    with pytest.raises(InvalidTool, match="above 0"):
        tool(work, max_output=0)
