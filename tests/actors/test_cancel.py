"""Cancel works at every await and leaves a log that goes on.

Everything here runs on a virtual clock and a store in memory, but for the one test whose subject
is a socket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Call, Delay, Hang, Provider, Say, Script, Seams, Think
from refold.actors.request.model import Pass
from refold.actors.request.script import Piece, ScriptStream
from refold.actors.tools import Tool
from refold.runtime.envelope import Event
from refold.runtime.errors import NotLosslessJson
from refold.runtime.events import AssistantMessage, EndReason, InboxRemoved, ToolResult
from refold.runtime.messages import TextBlock, text_of, tool_calls
from refold.runtime.request_header import LlmCallConfig
from refold.runtime.stream.assembler import Assembler
from refold.runtime.stream.chunks import Chunk, TextDelta
from refold.runtime.verify import verify_requests
from tests.agents import assert_within_rules, of_type, stored_events
from tests.fake_server import FakeServer, answer, delta, stream

THREE_CALLS = [Call("wait", {"n": 1}), Call("wait", {"n": 2}), Call("wait", {"n": 3})]


@attrs.define
class Waiter:
    """A tool whose `hangs`-th call waits for ever; it notes what began, ended and was cleaned."""

    hangs: int
    began: list[int] = attrs.field(factory=list)
    ended: list[int] = attrs.field(factory=list)
    cleaned: list[int] = attrs.field(factory=list)

    @property
    def tool(self) -> Tool:
        @refold.tool
        async def wait(n: int) -> str:
            """Wait."""
            self.began.append(n)
            try:
                await trio.sleep(1 if n != self.hangs else 30)
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await trio.sleep(3)
                self.cleaned.append(n)
                raise
            self.ended.append(n)
            return f"waited {n}"

        return wait


async def cancelled(agent: refold.Agent, *reasons: str, text: str = "go") -> refold.Turn:
    """The turn of a prompt that is cancelled as soon as everything waits, with each reason."""
    turns: list[refold.Turn] = []

    async def ask() -> None:
        turns.append(await agent.ask(text))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        for reason in reasons or ("enough",):
            nursery.start_soon(agent.cancel, reason)
    return turns[0]


def step_kinds(events: list[Event], turn: int) -> list[str]:
    """The types of a turn's events, chunks left out."""
    kinds = [event.type for event in events if getattr(event.data, "turn", None) == turn]
    return [kind for kind in kinds if kind != "assistant/chunk"]


def results(events: list[Event]) -> list[str]:
    """The code of each tool result, `ok` for one that is no error."""
    found = [event.data for event in events if isinstance(event.data, ToolResult)]
    return [result.error.code if result.error else "ok" for result in found]


def answers(events: list[Event]) -> list[AssistantMessage]:
    return [event.data for event in events if isinstance(event.data, AssistantMessage)]


async def assert_goes_on(
    runtime: refold.Runtime, agent: refold.Agent, text: str = "and now?"
) -> list[Event]:
    """The next prompt is answered, and every request of the log is what its seal says."""
    turn = await agent.ask(text)
    assert turn.reason == EndReason("completed")
    assert turn.text == "fine"
    assert_verified(runtime, agent.session_id)
    return stored_events(runtime, agent.session_id)


def assert_verified(runtime: refold.Runtime, session_id: str) -> None:
    assert_within_rules(stored_events(runtime, session_id))
    reader = runtime.store.reader(session_id)
    try:
        verdicts = list(verify_requests(reader.read_new()))
    finally:
        reader.close()
    assert verdicts
    assert all(verdict.verified for verdict in verdicts), verdicts


async def test_cancelled_while_it_thinks_nothing_is_kept_as_a_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Think("hm, let me see", pieces=4), Hang()], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await cancelled(agent)
        assert turn.reason == EndReason("aborted", reason="enough")
        events = await assert_goes_on(runtime, agent)
        assert [message.interrupted for message in answers(events)] == [None]
        assert step_kinds(events, 1) == [
            "turn/start",
            "step/start",
            "request/sealed",
            "step/end",
            "turn/end",
        ]
        assert b"let me see" not in script.bodies[1]


async def test_cancelled_after_some_text_the_text_is_kept_as_interrupted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first: list[Piece] = [Think("hm"), Say("Once upon", pieces=3), Call("wait", {"n": 1}), Hang()]
    script = Script([first, Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[Waiter(0).tool])
        turn = await cancelled(agent)
        assert turn.reason == EndReason("aborted", reason="enough")
        assert turn.text == "Once upon"
        events = await assert_goes_on(runtime, agent)
        kept = answers(events)[0]
        assert text_of(kept.content) == "Once upon"
        assert kept.interrupted is True
        assert tool_calls(kept.content) == ()
        assert kept.provenance is not None
        assert kept.provenance.replay_state is None
        assert results(events) == []
        assert b"Once upon" in script.bodies[1]


async def test_blank_text_is_no_visible_text(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([[Say(" \n"), Hang()], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await cancelled(agent)
        events = await assert_goes_on(runtime, agent)
        assert len(answers(events)) == 1


async def test_a_real_stream_cancelled_inside_a_block_keeps_what_came_and_hangs_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamed, feed = trio.Event(), Assembler.feed

    def feed_and_tell(assembler: Assembler, chunk: Chunk) -> None:
        feed(assembler, chunk)
        if chunk == TextDelta(0, "lo"):
            streamed.set()

    monkeypatch.setattr(Assembler, "feed", feed_and_tell)
    cut = stream(delta(role="assistant", content="Hel"), delta(content="lo"), ending="hang")
    with FakeServer(cut, stream(*answer("fine"))) as server:
        provider = Provider("fake", "chat/1", server.url)
        async with refold.open("memory:", providers=[provider]) as runtime:
            agent = await runtime.start_agent(model="fake/m")
            turns: list[refold.Turn] = []

            async def ask() -> None:
                turns.append(await agent.ask("go"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await streamed.wait()
                await agent.cancel("enough")
            assert turns[0].reason == EndReason("aborted", reason="enough")
            assert await trio.to_thread.run_sync(server.peer_left.wait, 10)
            events = await assert_goes_on(runtime, agent)
            kept = answers(events)[0]
            assert text_of(kept.content) == "Hello"
            assert kept.interrupted is True
            assert b'"Hello"' in server.requests[1].body


@pytest.mark.parametrize("hangs", [1, 2, 3])
async def test_cancelled_inside_a_tool_each_call_has_the_result_it_earned(
    hangs: int, autojump_clock: trio.testing.MockClock
) -> None:
    waiter = Waiter(hangs)
    script = Script([[Say("calling"), *THREE_CALLS], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[waiter.tool])
        turns: list[refold.Turn] = []

        async def ask() -> None:
            turns.append(await agent.ask("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(hangs + 10)
            before = trio.current_time()
            await agent.cancel("enough")
            assert trio.current_time() - before == 3, "its cleanup took its time"
        assert waiter.began == [*range(1, hangs + 1)]
        assert waiter.cleaned == [hangs]
        assert turns[0].reason == EndReason("aborted", reason="enough")
        assert turns[0].text == "calling"
        events = await assert_goes_on(runtime, agent)
        assert results(events) == ["ok"] * (hangs - 1) + ["ABORTED"] + ["NOT_STARTED"] * (3 - hangs)
        started = [event for event in events if event.type == "tool/call"]
        assert len(started) == hangs


async def test_cancelled_between_two_tools_the_second_was_never_started(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waiter = Waiter(0)

    async def hold_back_the_second(call: refold.CallView) -> None:
        if "2" in call.arguments:
            await trio.sleep_forever()

    script = Script([THREE_CALLS, Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m",
            tools=[waiter.tool],
            seams=Seams(pre_tool=(hold_back_the_second,)),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "go")
            await trio.sleep(5)
            await agent.cancel()
        assert waiter.began == [1]
        events = await assert_goes_on(runtime, agent)
        assert results(events) == ["ok", "NOT_STARTED", "NOT_STARTED"]


async def test_a_tool_may_cancel_its_own_turn(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([Call("give_up"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:

        @refold.tool
        async def give_up() -> str:
            """Give up."""
            await agent.cancel("the tool gave up")
            return "unreachable"

        agent = await runtime.start_agent(model="script/m", tools=[give_up])
        turn = await agent.ask("go")
        assert turn.reason == EndReason("aborted", reason="the tool gave up")
        events = await assert_goes_on(runtime, agent)
        assert results(events) == ["ABORTED"]


async def test_a_tool_that_fails_while_it_is_cancelled_does_not_change_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @refold.tool
    async def clumsy() -> str:
        """Fail in a nursery while cancelled."""

        async def trip() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("tripped")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trip)
            nursery.start_soon(trio.sleep_forever)
        return "unreachable"

    script = Script([Call("clumsy"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[clumsy])
        turn = await cancelled(agent)
        assert turn.reason == EndReason("aborted", reason="enough")
        events = await assert_goes_on(runtime, agent)
        assert results(events) == ["ABORTED"]


async def test_a_seam_that_fails_while_it_is_cancelled_does_not_change_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script, calls = Script([Say("fine")]), []

    async def clumsy_at_first(config: LlmCallConfig) -> LlmCallConfig:
        calls.append(config)
        if len(calls) == 1:
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("tripped")
        return config

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(request=(clumsy_at_first,)))
        turn = await cancelled(agent)
        assert turn.reason == EndReason("aborted", reason="enough")
        await assert_goes_on(runtime, agent)


async def test_a_turn_cancelled_before_its_step_takes_its_prompt_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("fine")])
    calls: list[int] = []

    async def slow_at_first(view: refold.StepView) -> None:
        calls.append(view.turn)
        if len(calls) == 1:
            await trio.sleep_forever()

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(slow_at_first,)))
        turn = await cancelled(agent, text="the first question")
        assert turn.reason == EndReason("aborted", reason="enough")
        await agent.wait_idle()
        assert script.bodies == [], "a cancelled prompt does not start a turn by itself"
        events = await assert_goes_on(runtime, agent)
        assert [event.type for event in events].count("turn/start") == 2
        assert b"the first question" not in script.bodies[0]
        assert of_type(events, "inbox/removed") == [InboxRemoved((turn.prompts[0],), "rejected")]
        assert agent.pending() == ()


async def test_a_cancel_with_nothing_running_does_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("fine"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.cancel()
        await agent.ask("one")
        before = stored_events(runtime, agent.session_id)
        await agent.cancel()
        assert stored_events(runtime, agent.session_id) == before
        await assert_goes_on(runtime, agent)


async def test_a_second_cancel_keeps_the_first_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Call("wait", {"n": 1}), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[Waiter(1).tool])
        turns: list[refold.Turn] = []

        async def ask() -> None:
            turns.append(await agent.ask("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(5)
            nursery.start_soon(agent.cancel, "the first")
            await trio.sleep(1)
            assert turns == [], "the tool is still cleaning up"
            await agent.cancel("the second")
        assert turns[0].reason == EndReason("aborted", reason="the first")


async def test_a_reason_that_json_cannot_carry_is_refused_and_the_turn_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(5), Say("fine")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "go")
            await trio.sleep(1)
            with pytest.raises(NotLosslessJson):
                await agent.cancel("\ud800")
        assert answers(stored_events(runtime, agent.session_id))[0].interrupted is None


async def test_cancelling_the_caller_of_ask_leaves_the_turn_running(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(10), Say("late")], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        with trio.move_on_after(5) as scope:
            await agent.ask("go")
        assert scope.cancelled_caught
        await agent.wait_idle()
        assert trio.current_time() == 10
        events = await assert_goes_on(runtime, agent)
        assert [text_of(message.content) for message in answers(events)] == ["late", "fine"]


async def close_agent(_runtime: refold.Runtime, agent: refold.Agent) -> None:
    await agent.close()


async def close_runtime(runtime: refold.Runtime, _agent: refold.Agent) -> None:
    await runtime.close()


@pytest.mark.parametrize("close", [close_agent, close_runtime])
async def test_closing_mid_turn_ends_it_as_disposed(
    close: Callable[[refold.Runtime, refold.Agent], Any],
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Say("half a"), Hang()], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turns: list[refold.Turn] = []

        async def ask() -> None:
            turns.append(await agent.ask("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await close(runtime, agent)
        assert turns[0].reason == EndReason("disposed")
        assert_verified(runtime, agent.session_id)
        with pytest.raises(refold.ActorStopped):
            await agent.ask("anyone there?")
        again = await runtime.resume(agent.session_id)
        events = await assert_goes_on(runtime, again)
        assert text_of(answers(events)[0].content) == "half a"


async def test_closing_starts_no_turn_for_what_is_still_waiting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Hang(), Say("unwanted"), Say("unwanted")])
    outcomes: dict[str, object] = {}
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def ask(text: str) -> None:
            try:
                outcomes[text] = (await agent.ask(text)).reason.kind
            except refold.ActorStopped:
                outcomes[text] = "stopped"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "one")
            await trio.testing.wait_all_tasks_blocked()
            await agent.prompt("two")
            nursery.start_soon(ask, "three")
            await trio.testing.wait_all_tasks_blocked()
            await agent.close()
        assert outcomes == {"one": "disposed", "three": "stopped"}
        assert len(script.bodies) == 1
        events = stored_events(runtime, agent.session_id)
        assert_within_rules(events)
        assert [event.type for event in events[-2:]] == ["turn/end", "session/released"]


async def test_leaving_the_runtime_mid_turn_ends_it_as_disposed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Say("calling"), *THREE_CALLS]])
    waiter = Waiter(2)
    turns: list[refold.Turn] = []
    async with (
        trio.open_nursery() as nursery,
        refold.open("memory:", providers=[script]) as runtime,
    ):
        agent = await runtime.start_agent(model="script/m", tools=[waiter.tool])

        async def ask() -> None:
            turns.append(await agent.ask("go"))

        nursery.start_soon(ask)
        await trio.sleep(10)
    assert turns[0].reason == EndReason("disposed")
    assert_disposed_between_tools(runtime, agent, waiter)


async def test_cancelling_the_scope_around_the_runtime_ends_the_turn_as_disposed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Say("calling"), *THREE_CALLS]])
    waiter = Waiter(2)
    live: list[tuple[refold.Runtime, refold.Agent]] = []
    with trio.move_on_after(10) as scope:
        async with refold.open("memory:", providers=[script]) as runtime:
            agent = await runtime.start_agent(model="script/m", tools=[waiter.tool])
            live.append((runtime, agent))
            await agent.ask("go")
    assert scope.cancelled_caught
    assert_disposed_between_tools(*live[0], waiter)


def assert_disposed_between_tools(
    runtime: refold.Runtime, agent: refold.Agent, waiter: Waiter
) -> None:
    events = stored_events(runtime, agent.session_id)
    assert_verified(runtime, agent.session_id)
    assert waiter.cleaned == [2]
    assert results(events) == ["ok", "ABORTED", "NOT_STARTED"]
    assert events[-2].data.reason == EndReason("disposed")


@attrs.define(eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels the turn in hand when, during it, tasks have run `at` times."""

    agent: refold.Agent
    at: int
    ran: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        cancel = self.agent._opened.loop._cancel
        if cancel is not None:
            self.ran += 1
            if self.ran == self.at:
                cancel(EndReason("aborted", reason="enough"))


def answer_the_last_message(body: Any) -> Any:
    last = body["messages"][-1]
    if "and now?" in str(last["content"]):
        return Say("fine")
    if last["role"] == "tool" or "by the way" in str(last["content"]):
        return Say("done")
    return [Think("hm"), Say("I will wait.", pieces=3), *THREE_CALLS]


async def cancelled_at(at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Cancel a turn of two steps with three tools at its `at`-th task step; whether it was."""
    shown: list[str] = []
    receive = ScriptStream.receive

    async def receive_and_note(stream: ScriptStream) -> list[Chunk]:
        chunks = await receive(stream)
        shown[-1] += "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
        return chunks

    def reply(body: Any) -> Any:
        shown.append("")
        return answer_the_last_message(body)

    async def pre_step(view: refold.StepView) -> None:
        await trio.lowlevel.checkpoint()

    async def pre_tool(view: refold.CallView) -> None:
        await trio.lowlevel.checkpoint()

    async def post_tool(view: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        await trio.lowlevel.checkpoint()
        return attrs.evolve(outcome, context=(TextBlock("by the way"),))

    @asynccontextmanager
    async def hang_up_slowly(
        script: Script, body: bytes, clearance: Pass
    ) -> AsyncIterator[ScriptStream]:
        async with whole_open(script, body, clearance) as stream:
            yield stream
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()

    whole_open = Script.open
    monkeypatch.setattr(ScriptStream, "receive", receive_and_note)
    monkeypatch.setattr(Script, "open", hang_up_slowly)
    script, waiter = Script(reply), Waiter(0)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m",
            tools=[waiter.tool],
            seams=Seams(pre_step=(pre_step,), pre_tool=(pre_tool,), post_tool=(post_tool,)),
            chunks="verbatim",
        )
        instrument = CancelAt(agent, at)
        trio.lowlevel.add_instrument(instrument)
        turn = await agent.ask("go")
        trio.lowlevel.remove_instrument(instrument)
        assert turn.reason in (EndReason("aborted", reason="enough"), EndReason("completed"))
        events = await assert_goes_on(runtime, agent)
    assert [event.type for event in events].count("turn/start") == 2
    taken = [event.type for event in events].count("user/message") - 1
    assert script.bodies[-1].count(b'"go"') == taken
    assert [text_of(message.content) for message in answers(events)] == [s for s in shown if s]
    for message in answers(events):
        assert not (message.interrupted and tool_calls(message.content))
    kinds = [event.type for event in events]
    assert kinds.count("tool/call") >= len(waiter.began)
    assert kinds.count("context/message") == results(events).count("ok")
    monkeypatch.undo()
    return instrument.ran >= at


async def test_a_turn_can_be_cancelled_at_its_every_checkpoint(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    at = 1
    while await cancelled_at(at, monkeypatch):
        at += 1
    assert at > 50
