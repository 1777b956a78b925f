"""What tools and seams are told of their call, and what they may say beside its result."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Optional
from unittest.mock import AsyncMock

import attrs
import pytest
import trio

import refold
from refold import Call, Context, Progress, Say, Script, Seams
from refold.runtime.events import (
    ApprovalDecided,
    AssistantMessage,
    EndReason,
    InboxQueued,
    InboxRemoved,
    SessionReleased,
    Todo,
    TodoWrite,
    ToolCall,
    ToolResult,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
    register,
)
from refold.runtime.messages import USER
from tests.agents import assert_sound, count, of_type, sent

Clock = trio.testing.MockClock
NAMES = tuple(field.name for field in attrs.fields(Seams))
STATE = {"tenant": "acme", "limits": {"items": [1, 2]}}


@attrs.frozen
class Note:
    text: str


register("context-test/note", Note)


def calling(*calls: Call) -> Script:
    """A model that makes these calls after each prompt, and is done after their results."""
    return Script(
        lambda body: Say("done") if body["messages"][-1]["role"] == "tool" else list(calls)
    )


def place(context: Context) -> tuple[Any, ...]:
    return (context.session, context.agent, context.turn, context.step, context.call_id)


async def test_a_tool_that_asks_for_a_context_knows_whose_call_it_is(
    autojump_clock: Clock,
) -> None:
    seen: list[Context] = []

    @refold.tool(timeout=20)
    async def look(path: str, who: Context, depth: int = 1) -> str:
        """Look."""
        seen.append(who)
        await trio.sleep(5)
        assert who.deadline == 15
        return f"{path} {depth}"

    assert look.schema.parameters.value["properties"].keys() == {"path", "depth"}
    script = calling(Call("look", {"path": "/"}, id="call-1"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(name="scout", model="script/m", tools=[look], state=STATE)
        await agent.ask("hello")
        await agent.ask("again")
        assert sent(script)[-1] == "/ 1"
        assert [place(context) for context in seen] == [
            (agent.session_id, "scout", 1, 1, "call-1"),
            (agent.session_id, "scout", 2, 1, "call-1"),
        ]
        assert seen[0].state == {"tenant": "acme", "limits": {"items": (1, 2)}}
        assert_sound(runtime, agent)


class Bound:
    async def method(self, ctx: Context) -> str:
        """A method."""
        return str(ctx.call_id)


async def hinted(ctx: refold.Context) -> str:
    """By its public name."""
    return str(ctx.call_id)


async def optional(ctx: Context | None = None) -> str:
    """One that may be called without."""
    return str(ctx and ctx.call_id)


async def old_optional(ctx: Optional[Context] = None) -> str:  # noqa: UP045 - as others write it
    """As before."""
    return str(ctx and ctx.call_id)


async def annotated(*, ctx: Annotated[Context, "whose call"]) -> str:
    """With more words."""
    return str(ctx.call_id)


@functools.wraps(hinted)
async def wrapped(*args: Any, **kwargs: Any) -> str:
    return await hinted(*args, **kwargs)


BODIES: list[Callable[..., Any]] = [
    hinted,
    optional,
    old_optional,
    annotated,
    wrapped,
    Bound().method,
]


@pytest.mark.parametrize("body", BODIES)
async def test_a_context_may_be_asked_for_in_any_spelling(
    body: Callable[..., Any], autojump_clock: Clock
) -> None:
    tool = refold.tool(body, name="it")
    assert tool.schema.parameters.value["properties"] == {}
    script = calling(Call("it", id="call-7"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[tool])
        await agent.ask("hello")
        assert sent(script)[-1] == "call-7"


async def test_a_model_cannot_pass_a_context(autojump_clock: Clock) -> None:
    script = calling(Call("it", {"ctx": {"session": "another"}}))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[refold.tool(hinted, name="it")])
        await agent.ask("hello")
        assert "has no field ctx" in sent(script)[-1]


def seam(kind: str, seen: dict[str, tuple[Any, ...]], taken: dict[str, Any]) -> Any:
    """A seam that asks for its context, changes nothing, and notes where it was asked."""

    def note(ctx: Context, *arguments: Any) -> Any:
        seen[kind] = place(ctx)
        taken[kind] = arguments[0]
        unchanged = {"session_prefix": (), "request": arguments[-1], "post_tool": arguments[-1]}
        return unchanged.get(kind)

    async def of_one(given: Any, ctx: Context) -> Any:
        return note(ctx, given)

    async def of_two(given: Any, more: Any, *, ctx: Context) -> Any:
        return note(ctx, given, more)

    return of_two if kind in ("session_start", "post_tool") else of_one


async def test_every_seam_may_ask_for_a_context(autojump_clock: Clock) -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    taken: dict[str, Any] = {}
    seams = Seams(**{kind: (seam(kind, seen, taken),) for kind in NAMES})
    script = calling(Call("it", id="call-1"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[refold.tool(hinted, name="it")], seams=seams
        )
        assert (await agent.ask("hello")).reason.kind == "completed"
        at = (agent.session_id, None, 1)
        early = dict.fromkeys(("session_start", "prompt_submit", "session_prefix"), (*at, None))
        assert seen == {
            **{kind: (*where, None) for kind, where in early.items()},
            "pre_step": (*at, None, None),
            "request": (*at, 2, None),
            "pre_tool": (*at, 1, "call-1"),
            "post_tool": (*at, 1, "call-1"),
            "turn_continuation": (*at, 2, None),
            "turn_stop": (*at, 2, None),
        }
        views = ("prompt_submit", "pre_step", "pre_tool", "post_tool", "turn_continuation")
        assert {taken[kind].session for kind in views} == {agent.session_id}
        assert_sound(runtime, agent)


async def test_a_wrapper_may_give_a_context_of_its_own(autojump_clock: Clock) -> None:
    seen: list[Context] = []

    async def guard(call: refold.CallView, ctx: Context) -> None:
        seen.append(ctx)

    @functools.wraps(guard)
    async def wrapper(call: refold.CallView) -> None:
        await guard(call, mine)

    async def give(ctx: Context) -> str:
        """Give."""
        return str(ctx.call_id)

    @functools.wraps(give)
    async def given() -> str:
        return await give(mine)

    mine: Any = object()
    script = calling(Call("count", {"upto": 2}))
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(pre_tool=(wrapper,))
        agent = await runtime.start_agent(model="script/m", tools=[count], seams=seams)
        assert (await agent.ask("hello")).reason.kind == "completed"
        assert seen == [mine]
    assert refold.tool(given).contexts == ()


def test_a_mock_is_an_async_function() -> None:
    guard = AsyncMock()
    assert Seams(pre_tool=(guard,)).pre_tool == (guard,)


def test_a_seam_whose_context_cannot_be_passed_by_name_is_refused() -> None:
    async def first(ctx: Context, view: refold.PromptView) -> None: ...
    async def unnamed(view: refold.PromptView, ctx: Context, /) -> None: ...

    given: Any
    for given in (first, unnamed):
        with pytest.raises(refold.InvalidArgument, match=r"a refold\.Context by name"):
            Seams(prompt_submit=(given,))


def test_a_context_that_only_a_type_checker_knows_is_refused() -> None:
    names: dict[str, Any] = {}
    source = "async def it(call: 'CallView', ctx: 'refold.Context') -> None:\n    'It.'"
    exec(source, names)
    with pytest.raises(refold.InvalidArgument, match=r"ctx is annotated .*, which cannot"):
        Seams(pre_tool=(names["it"],))
    with pytest.raises(refold.RefoldError, match="import or define every name"):
        refold.tool(names["it"])


def test_other_hints_that_cannot_be_evaluated_are_nobodys_business() -> None:
    names: dict[str, Any] = {}
    exec("async def it(call: 'Unknown') -> None: ...", names)
    assert Seams(pre_tool=(names["it"],)).pre_tool == (names["it"],)


async def test_without_a_limit_there_is_no_deadline_and_the_turns_limit_counts(
    autojump_clock: Clock,
) -> None:
    left: list[float | None] = []

    @refold.tool(timeout=math.inf)
    async def look(ctx: Context) -> None:
        """Look."""
        left.append(ctx.deadline)

    async def guard(call: refold.CallView, ctx: Context) -> None:
        left.append(ctx.deadline)

    for budgets in (refold.Budgets(), refold.Budgets(max_seconds=30)):
        async with refold.open("memory:", providers=[calling(Call("look"))]) as runtime:
            agent = await runtime.start_agent(
                model="script/m", tools=[look], seams=Seams(pre_tool=(guard,)), budgets=budgets
            )
            await agent.ask("hello")
    assert left == [None, None, 30, 30]


async def test_what_is_told_of_progress_reaches_listeners_and_no_log(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Progress] = []

    @refold.tool
    async def work(ctx: Context) -> str:
        """Work."""
        await ctx.progress("half")
        await ctx.progress("whole")
        return "done"

    async def guard(call: refold.CallView, ctx: Context) -> None:
        await ctx.progress("guarding")

    def broken(_told: Progress) -> None:
        raise LookupError("no display")

    async with refold.open("memory:", providers=[calling(Call("work", id="c"))]) as runtime:
        seams = Seams(pre_tool=(guard,))
        agent = await runtime.start_agent(model="script/m", tools=[work], seams=seams)
        agent.on_progress(broken)
        stop = agent.on_progress(told.append)
        await agent.ask("hello")
        at = (agent.session_id, 1, 1, "c")
        assert told == [Progress(*at, text) for text in ("guarding", "half", "whole")]
        assert "a listener of session" in caplog.text
        stop()
        await agent.wait_idle()
        await agent.park()
        await agent.ask("again")
        assert len(told) == 3
        assert "half" not in str([event.encoded for event in assert_sound(runtime, agent)])


async def test_a_tool_reads_the_log_and_appends_what_a_plugin_may(autojump_clock: Clock) -> None:
    read: list[int] = []

    @refold.tool
    async def work(ctx: Context) -> str:
        """Work."""
        read.append(len(await ctx.log.messages()))
        read.append([event.seq async for event in ctx.log.events()][-1])
        (noted,) = await ctx.append(refold.draft(Note("so far")), flush=True)
        return str(noted.seq)

    script = calling(Call("work"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[work])
        await agent.ask("hello")
        events = assert_sound(runtime, agent)
        (note,) = [event for event in events if event.type == "context-test/note"]
        assert read == [2, note.seq - 1]
        assert sent(script)[-1] == str(note.seq)


TEXT = (refold.TextBlock("x"),)
PLUGIN = refold.Source("plugin", plugin="test")
FORBIDDEN: dict[str, object] = {
    "turn/end": TurnEnd(1, EndReason("completed")),
    "turn/start": TurnStart(2, Trigger("message", USER)),
    "tool/result": ToolResult(1, 1, "c", TEXT, is_error=False),
    "tool/call": ToolCall(1, 1, "c", "work", "{}"),
    "user/message": UserMessage(TEXT, USER),
    "assistant/message": AssistantMessage(1, 1, TEXT),
    "session/released": SessionReleased(1, "bye"),
    "approval/decided": ApprovalDecided(1, 1, "c", "allowed", "me"),
}


@pytest.mark.parametrize("type_", FORBIDDEN)
@pytest.mark.parametrize("who", ["a tool", "a seam", "a seam's log"])
async def test_what_refold_alone_writes_is_refused_at_the_call(
    who: str, type_: str, autojump_clock: Clock
) -> None:
    refusals: list[str] = []

    def attempt(append: Callable[..., Any]) -> None:
        with pytest.raises(refold.InvalidArgument) as refused:
            append(refold.draft(FORBIDDEN[type_]))
        refusals.append(str(refused.value))

    @refold.tool
    async def work(ctx: Context) -> None:
        """Work."""
        if who == "a tool":
            attempt(ctx.append)

    async def look(view: refold.StepView, ctx: Context) -> None:
        if who != "a tool":
            attempt(ctx.append if who == "a seam" else view.log.append)

    script = calling(Call("work", id="c"))
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(pre_step=(look,))
        agent = await runtime.start_agent(model="script/m", tools=[work], seams=seams)
        assert (await agent.ask("hello")).reason.kind == "completed"
        assert_sound(runtime, agent)
    assert refusals[0].startswith(
        f"what is appended is of the type {type_}, which refold alone writes; a tool or seam may "
    )


async def test_what_a_plugin_may_write_is_taken(autojump_clock: Clock) -> None:
    async def write(_view: refold.StepView, ctx: Context) -> None:
        if await ctx.log.header() is None:
            queued = InboxQueued("step", "inject", TEXT, PLUGIN)
            (entry,) = await ctx.append(refold.draft(queued))
            await ctx.append(refold.draft(InboxRemoved((entry.seq,), "cancelled")))
            await ctx.append(refold.draft(TodoWrite((Todo("it", "pending"),))))
            (said,) = await ctx.append(refold.draft(refold.ContextMessage(TEXT, PLUGIN)))
            shorter = UserMessage((refold.TextBlock("shorter"),), USER)
            here = refold.Replace(said.seq, said.seq)
            await ctx.append(refold.draft(shorter, cites=[said.seq], replaces=here))

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(write,)))
        turn = await agent.ask("hello")
        assert turn.reason.message is None
        assert sent(script) == ["shorter", "hello"]
        said = [str(message.content) for message in turn.messages]
        assert not any("shorter" in text for text in said), "it says nothing new"
        assert_sound(runtime, agent)


async def test_a_tool_in_a_thread_reaches_the_session_by_trio() -> None:
    told: list[Progress] = []
    threads: list[int] = []

    @refold.tool(isolation="thread")
    def work(ctx: Context) -> str:
        """Work."""
        threads.append(threading.get_ident())
        assert ctx.deadline is not None
        assert 0 < ctx.deadline <= 60
        trio.from_thread.run(ctx.progress, "half")
        (noted,) = trio.from_thread.run(ctx.append, refold.draft(Note(str(ctx.call_id))))
        messages = trio.from_thread.run(ctx.log.messages)
        return f"{noted.type} {len(messages)}"

    script = calling(Call("work", id="c"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[work])
        agent.on_progress(told.append)
        await agent.ask("hello")
        assert threads != [threading.get_ident()]
        assert sent(script)[-1] == "context-test/note 2"
        assert [one.text for one in told] == ["half"]
        assert of_type(assert_sound(runtime, agent), "context-test/note") == [Note("c")]


CALLS: dict[str, Callable[[Context], Any]] = {
    "progress": lambda ctx: ctx.progress("half"),
    "append": lambda ctx: ctx.append(refold.draft(Note("x"))),
}


@pytest.mark.parametrize("isolation", ["task", "thread"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_plain_function_that_cannot_await_is_told_what_to_write(
    name: str, isolation: Any
) -> None:
    @refold.tool(isolation=isolation)
    def work(ctx: Context) -> None:
        """Work."""
        CALLS[name](ctx)

    script = calling(Call("work"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[work])
        await agent.ask("hello")
        advice = {"task": "make it async, or give its tool ", "thread": "in a thread write "}
        assert sent(script)[-1].startswith(
            "Error: NotHere: a plain function cannot await what a refold.Context does; "
            + advice[isolation]
        )
        assert f"trio.from_thread.run(context.{name}, ...)" in sent(script)[-1]


async def test_a_task_that_a_plain_tool_starts_may_await(autojump_clock: Clock) -> None:
    told: list[Progress] = []

    async with (
        trio.open_nursery() as nursery,
        refold.open("memory:", providers=[calling(Call("work"))]) as runtime,
    ):

        @refold.tool
        def work(ctx: Context) -> str:
            """Work."""

            async def later() -> None:
                await ctx.progress("later")

            nursery.start_soon(later)
            return "started"

        agent = await runtime.start_agent(model="script/m", tools=[work])
        agent.on_progress(told.append)
        await agent.ask("hello")
        assert [one.text for one in told] == ["later"]


async def test_progress_takes_text_alone(autojump_clock: Clock) -> None:
    @refold.tool
    async def work(ctx: Context) -> None:
        """Work."""
        await ctx.progress(3)  # type: ignore[arg-type]  # the point of it

    script = calling(Call("work"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[work])
        await agent.ask("hello")
        assert "what is told must be text, not int" in sent(script)[-1]


# State.


async def test_state_is_given_again_at_resume_and_fork_and_not_logged(
    autojump_clock: Clock,
) -> None:
    states: list[Mapping[str, Any]] = []

    @refold.tool
    async def look(ctx: Context) -> None:
        """Look."""
        states.append(ctx.state)
        with pytest.raises(TypeError):
            ctx.state["tenant"] = "another"  # type: ignore[index]  # the point of it

    async with refold.open("memory:", providers=[calling(Call("look"))]) as runtime:
        given = {"tenant": "acme", "tags": ["a"]}
        agent = await runtime.start_agent(model="script/m", tools=[look], state=given)
        given["tenant"] = "changed"
        await agent.ask("hello")
        await agent.wait_idle()
        await agent.park()
        await agent.ask("again")
        assert states == [{"tenant": "acme", "tags": ("a",)}] * 2
        assert not any(b"acme" in event.encoded for event in assert_sound(runtime, agent))
        twin = await runtime.fork(agent.session_id, tools=[look], state=states[0])
        await twin.ask("hello")
        assert states[-1] == states[0], "read-only state may be handed on"
        await agent.close()
        agent = await runtime.resume(agent.session_id, tools=[look])
        await agent.ask("hello")
        assert states[-1] == {}


NO_STATES: dict[str, tuple[Any, str]] = {
    "text": ("x", "'state' cannot be str; give it a dict of JSON"),
    "None": (None, "'state' cannot be NoneType; give it a dict of JSON"),
    "an object": ({"at": {"db": object()}}, "$.state.at.db is of type object, which JSON cannot"),
    "a number as key": ({1: 2}, "$.state is a mapping with the key 1, which is not text"),
    "NaN": ({"x": [math.nan]}, "$.state.x[0] is the number nan"),
    "a set": ({"x": {1}}, "$.state.x is of type set"),
}


@pytest.mark.parametrize("name", NO_STATES)
async def test_state_that_is_no_json_is_refused_before_anything_is_written(name: str) -> None:
    state, said = NO_STATES[name]
    async with refold.open("memory:", providers=[Script([])]) as runtime:
        with pytest.raises(refold.RefoldError) as refused:
            await runtime.start_agent(model="script/m", state=state)
        assert said in str(refused.value)
        assert await runtime.list() == []
