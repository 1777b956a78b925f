"""What an agent does on an ordinary day, with a virtual clock."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

import refold
from refold import Call, Delay, Deny, End, Hang, Say, Script, Seams
from refold.actors.log.seam_log import SeamLog
from refold.actors.request.script import Piece
from refold.runtime.envelope import Event, draft
from refold.runtime.events import ContextMessage, EndReason, ToolResult
from refold.runtime.json import Json
from refold.runtime.messages import Message, Source, TextBlock, text_of, tool_calls
from refold.runtime.request_header import LlmCallConfig
from refold.runtime.storage.errors import LogFailed
from refold.runtime.storage.jsonl.memory import MemoryPort
from refold.runtime.wire.format import ExtraRefused
from refold.runtime.wire.providers import UnknownProvider
from tests.agents import (
    assert_sound,
    count,
    headers,
    kinds,
    of_type,
    read_file,
    sent,
    stored_events,
)

PLUGIN = Source("plugin", plugin="test")


async def test_a_turn_writes_what_the_design_says_in_its_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Say("let me see"), Call("count", {"upto": 3})], Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", system="S", tools=[count])
        turn = await agent.ask("hello")
        events = assert_sound(runtime, agent)
        assert kinds(events) == [
            "session/owner",
            "inbox/queued",
            "turn/start",
            "user/message",
            "step/start",
            "request/header",
            "request/sealed",
            "assistant/message",
            "tool/call",
            "tool/result",
            "step/end",
            "step/start",
            "request/sealed",
            "assistant/message",
            "step/end",
            "turn/end",
        ]
        assert (turn.turn, turn.text, turn.reason) == (1, "done", EndReason("completed"))
        assert turn.end_seq == events[-1].seq
        used = [message.usage for message in of_type(events, "assistant/message")]
        assert turn.usage.total_input == sum(usage.total_input for usage in used)
        assert turn.usage.output_tokens == sum(usage.output_tokens for usage in used)
        assert [message.role for message in agent.messages()] == [
            "user",
            "assistant",
            "user",
            "assistant",
        ]


async def test_prompts_that_come_during_a_turn_have_theirs_in_order_and_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(
        [[Delay(10), Call("count", {"upto": 1})], Say("one"), Say("two"), Say("three"), Say("four")]
    )
    turns: dict[str, refold.Turn] = {}
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count])

        async def ask(text: str) -> None:
            turns[text] = await agent.ask(text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "first")
            await trio.sleep(1)
            await agent.prompt("second")
            nursery.start_soon(ask, "third")
            await trio.testing.wait_all_tasks_blocked()
            await agent.prompt("fourth")
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        said = [text_of(message.content) for message in of_type(events, "user/message")]
        assert said[:2] == ["first", "second"]
        assert sorted(said) == ["first", "fourth", "second", "third"]
        asked = next(data for data in of_type(events, "inbox/queued") if data.own_turn)
        assert text_of(asked.content) == "first"
        if said[2] == "third":  # its writer may be behind that of the fourth
            assert (len(script.bodies), turns["third"].turn) == (5, 3)
        else:
            assert sent(script, 2)[-3:] == ["one", "second", "fourth"]
            assert (len(script.bodies), turns["third"].turn) == (4, 3)
        assert turns["first"].turn == 1


async def test_prompt_returns_its_durable_seq_and_wait_idle_waits_for_its_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(10), Say("one")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        assert stored_events(runtime, agent.session_id)[seq].type == "inbox/queued"
        assert agent.log.live.durable_seq >= seq
        await agent.wait_idle()
        assert trio.current_time() == 10
        assert kinds(assert_sound(runtime, agent))[-1] == "turn/end"


async def test_what_is_injected_during_a_turn_joins_the_next_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Call("slow")], Say("done")])

    @refold.tool
    async def slow() -> str:
        """Take ten seconds."""
        await trio.sleep(10)
        return "slept"

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[slow])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(1)
            await agent.inject("the news", plugin="radio")
        (request,) = [sent(script)]
        assert [len(sent(script, 0)), len(request)] == [1, 4]
        assert "the news" in request[-1]
        events = assert_sound(runtime, agent)
        (news,) = of_type(events, "context/message")
        assert news.source == Source("plugin", plugin="radio")
        assert len(of_type(events, "turn/start")) == 1


async def test_what_is_injected_while_idle_wakes_nothing_and_joins_the_next_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await agent.inject("the news")
        await agent.wait_idle()
        await trio.sleep(100)
        assert len(script.bodies) == 1
        await agent.ask("and now?")
        assert len(of_type(assert_sound(runtime, agent), "turn/start")) == 2
        assert [text for text in sent(script) if "the news" in text] != []
        assert sent(script)[-1] == "and now?"


async def test_events_are_told_without_gap_or_double_from_any_seq(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two")])
    told: list[int] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")

        async def listen(*, task_status: trio.TaskStatus[None]) -> None:
            subscription = agent.events(from_seq=3)
            task_status.started()
            while True:
                told.append((await anext(subscription)).seq)

        async with trio.open_nursery() as nursery:
            await nursery.start(listen)
            await agent.ask("and now?")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel(reason="heard enough")
        assert told == [*range(3, len(stored_events(runtime, agent.session_id)))]


async def test_resume_takes_the_config_from_the_log_and_the_tools_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two"), Say("three"), Say("four")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m",
            system="S",
            tools=[count],
            temperature=0.5,
            max_tokens=77,
            stop=["END"],
            extra={"seed": 1},
        )
        await agent.ask("hello")
        await agent.close()
        again = await runtime.resume(agent.session_id, tools=[read_file])
        await again.ask("and now?")
        await again.ask("and then?")
        await again.close()
        other = await runtime.resume(
            agent.session_id, model="script/other", temperature=0.1, tools=()
        )
        await other.ask("still there?")
        first, second, third = headers(assert_sound(runtime, other))
        assert [first.reason, second.reason, third.reason] == ["initial", "resume", "resume"]
        assert second.header.config == first.header.config
        assert second.header.system == "S"
        assert [tool.name for tool in second.header.tools] == ["read_file"]
        expected = attrs.evolve(first.header.config, model="other", temperature=0.1)
        assert third.header.config == expected
        assert third.header.tools == ()
        body = orjson.loads(script.bodies[1])
        assert (body["temperature"], body["seed"], body["stop"]) == (0.5, 1, ["END"])
        assert sent(script)[0] == "hello"


async def test_each_opening_is_announced_with_a_higher_term(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", name="scout")
        assert agent.header.name == "scout"
        await agent.ask("hello")
        for _ in range(2):
            await agent.close()
            agent = await runtime.resume(agent.session_id)
        events = assert_sound(runtime, agent)
        assert events[0].type == "session/owner"
        assert [owner.term for owner in of_type(events, "session/owner")] == [1, 2, 3]
        assert await runtime.list() == [agent.session_id]


async def test_what_an_earlier_life_left_pending_waits_until_it_is_released(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Hang(), Say("two"), Say("three")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.testing.wait_all_tasks_blocked()
            seq = await agent.prompt("left over")
            await agent.inject("beside it")
            await agent.close()
        again = await runtime.resume(agent.session_id)
        await again.wait_idle()
        assert len(script.bodies) == 1
        for _ in range(2):
            waiting = again.pending()
            assert [(one.text, one.held) for one in waiting] == [
                ("left over", True),
                ("beside it", True),
            ]
            await again.park()
            await again.wait_idle()
        await again.ask("and now?")
        assert sent(script) == ["hello", "and now?"]
        assert not again.snapshot().running
        await again.park()
        await again.release()
        assert (await again.answer(seq)).text == "three"
        assert sent(script)[2:4] == ["two", "left over"]
        assert "beside it" in sent(script)[4]
        assert again.pending() == ()
        assert_sound(runtime, again)


async def test_a_fork_goes_its_own_way_and_leaves_its_parent_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two"), Say("three"), Say("four"), Say("five")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", system="S", max_tokens=77)
        first = await agent.ask("first")
        await agent.ask("second")
        await agent.inject("for the parent alone")
        before = stored_events(runtime, agent.session_id)
        early = await runtime.fork(agent.session_id, at=first.end_seq)
        late = await runtime.fork(agent.session_id, model="script/other", system="T")
        assert stored_events(runtime, agent.session_id) == before
        await early.ask("early")
        assert sent(script) == ["first", "one", "early"]
        await late.ask("late")
        assert sent(script) == ["first", "one", "second", "two", "late"]
        await agent.ask("third")
        assert "for the parent alone" in script.bodies[-1].decode()
        for child, model, system in ((early, "m", "S"), (late, "other", "T")):
            events = assert_sound(runtime, child)
            assert [header.reason for header in headers(events)] == ["initial", "resume"]
            config = headers(events)[-1].header.config
            assert (config.model, config.max_tokens) == (model, 77)
            assert headers(events)[-1].header.system == system
            assert child.header.parent_session == agent.session_id
        assert [header.reason for header in headers(assert_sound(runtime, agent))] == ["initial"]
        ids = {agent.session_id, early.session_id, late.session_id}
        assert set(await runtime.list()) == ids


async def test_a_parent_may_be_forked_in_the_middle_of_a_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), [Delay(10), Say("two")], Say("three")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "second")
            await trio.sleep(1)
            child = await runtime.fork(agent.session_id)
            await child.ask("aside")
            assert sent(script) == ["first", "one", "aside"]
        assert_sound(runtime, agent)
        assert_sound(runtime, child)


async def test_closing_is_for_good_and_can_be_said_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await agent.close()
        await agent.close()
        for say in (agent.ask, agent.prompt, agent.inject):
            with pytest.raises(refold.ActorStopped):
                await say("anyone there?")
        with pytest.raises(refold.ActorStopped):
            await agent.wait_idle()
        await agent.cancel()


async def test_the_session_prefix_is_composed_once_an_instance_and_comes_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two"), Say("three")])
    composed: list[int] = []

    async def prefix(log: SeamLog) -> list[Message]:
        composed.append(len([event async for event in log.events()]))
        return [Message("user", (TextBlock(f"life {len(composed)}"),))]

    seams = Seams(session_prefix=(prefix,))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=seams)
        await agent.ask("first")
        await agent.ask("second")
        assert len(composed) == 1
        assert sent(script) == ["life 1", "first", "one", "second"]
        assert text_of(agent.messages()[0].content) == "first"
        await agent.close()
        again = await runtime.resume(agent.session_id, seams=seams)
        await again.ask("third")
        assert sent(script)[:2] == ["life 2", "first"]
        assert_sound(runtime, again)


async def test_a_session_prefix_that_was_cancelled_is_composed_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one")])
    composed: list[int] = []

    async def prefix(_log: SeamLog) -> list[Message]:
        composed.append(1)
        if len(composed) == 1:
            await trio.sleep_forever()
        return [Message("user", (TextBlock("at last"),))]

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(session_prefix=(prefix,)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "first")
            await trio.testing.wait_all_tasks_blocked()
            await agent.cancel()
        await agent.ask("second")
        assert sent(script) == ["at last", "second"]
        assert_sound(runtime, agent)


async def test_context_that_pre_step_appends_is_in_the_request_of_that_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Call("count", {"upto": 2}), Say("done")])
    views: list[refold.StepView] = []

    async def pre_step(view: refold.StepView) -> None:
        views.append(view)
        text = (TextBlock(f"step {len(views)}"),)
        await view.log.append(draft(ContextMessage(text, PLUGIN, envelope="raw")))

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", system="S", tools=[count], seams=Seams(pre_step=(pre_step,))
        )
        await agent.ask("hello")
        assert sent(script, 0) == ["step 1", "hello"]
        assert sent(script, 1)[-1] == "step 2"
        assert [len(view.claims) for view in views] == [1, 0]
        assert (views[0].system, views[0].turn) == ("S", 1)
        assert [tool.name for tool in views[0].tools] == ["count"]
        assert_sound(runtime, agent)


async def test_what_the_request_seam_changes_is_logged_as_a_change_and_stays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two"), Say("three")])
    seen: list[int | None] = []

    async def request(config: LlmCallConfig) -> LlmCallConfig:
        seen.append(config.max_tokens)
        return attrs.evolve(config, max_tokens=5) if len(seen) == 2 else config

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(request=(request,)))
        for text in ("first", "second", "third"):
            await agent.ask(text)
        assert seen == [None, None, 5]
        found = headers(assert_sound(runtime, agent))
        assert [header.reason for header in found] == ["initial", "change"]
        assert found[1].header.config.max_tokens == 5
        assert b'"max_tokens":5' in script.bodies[2]


async def test_a_denied_call_never_starts_and_the_model_is_told_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Call("count", {"upto": 2}), Call("read_file", {"path": "a"})], Say("done")])

    async def deny_files(call: refold.CallView) -> Deny | None:
        return Deny("files are closed today") if call.name == "read_file" else None

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count, read_file], seams=Seams(pre_tool=(deny_files,))
        )
        assert (await agent.ask("hello")).text == "done"
        events = assert_sound(runtime, agent)
        assert [call.name for call in of_type(events, "tool/call")] == ["count"]
        allowed, denied = of_type(events, "tool/result")
        assert allowed.error is None
        assert (denied.is_error, denied.error.code) == (True, "DENIED")
        assert "files are closed today" in sent(script)[-1]


async def test_context_of_post_tool_stands_after_all_results(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Call("count", {"upto": 2}), Call("count", {"upto": 3})], Say("done")])

    async def post_tool(call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        content = (TextBlock(text_of(outcome.content).upper() + "!"),)
        context = (TextBlock(f"about {call.arguments}"),)
        return attrs.evolve(outcome, content=content, context=context)

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], seams=Seams(post_tool=(post_tool,))
        )
        await agent.ask("hello")
        events = assert_sound(runtime, agent)
        surface = [event for event in events if event.surface_op is not None]
        assert kinds(surface) == [
            "user/message",
            "assistant/message",
            "tool/result",
            "tool/result",
            "context/message",
            "context/message",
            "assistant/message",
        ]
        texts = [text_of(event.data.content) for event in surface[2:6]]
        assert texts == ["0 1!", "0 1 2!", 'about {"upto":2}', 'about {"upto":3}']


async def test_a_turn_ends_when_its_steps_are_used_up_and_the_next_one_has_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def reply(body: Any) -> Any:
        return (
            Say("fine") if "and now?" in str(body["messages"][-1]) else Call("count", {"upto": 1})
        )

    script = Script(reply)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], budgets=refold.Budgets(max_steps=3)
        )
        turn = await agent.ask("hello")
        assert turn.reason == EndReason("budget", limit="steps")
        assert len(script.bodies) == 3
        assert (await agent.ask("and now?")).text == "fine"
        events = assert_sound(runtime, agent)
        assert len([e for e in events if isinstance(e.data, ToolResult)]) == 3


async def test_an_answer_cut_by_max_tokens_loses_its_calls_and_marks_the_whole_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cut: list[Piece] = [Say("I will co"), Call("count", {"upto": 2}), Delay(10), End("max-tokens")]
    script = Script([cut, Say("done"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count])
        turns: list[refold.Turn] = []

        async def ask() -> None:
            turns.append(await agent.ask("hello"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            await agent.inject("go on")
        assert turns[0].reason == EndReason("max-tokens")
        assert turns[0].text == "done"
        events = assert_sound(runtime, agent)
        message = of_type(events, "assistant/message")[0]
        assert (text_of(message.content), tool_calls(message.content)) == ("I will co", ())
        assert of_type(events, "tool/call") == []
        assert (await agent.ask("and now?")).reason == EndReason("completed")


async def test_a_withheld_answer_ends_the_turn_with_its_code(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Say("I must not"), End("content-filter")], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        assert (turn.reason.kind, turn.reason.code) == ("error", "CONTENT_FILTER")
        assert (await agent.ask("and now?")).text == "fine"
        assert_sound(runtime, agent)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, every sync of every log fails."""
    broken, fdatasync = threading.Event(), MemoryPort.fdatasync

    def sync_or_fail(port: MemoryPort, fd: int) -> None:
        if broken.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fdatasync(port, fd)

    monkeypatch.setattr(MemoryPort, "fdatasync", sync_or_fail)
    return broken


async def assert_ended(agent: refold.Agent) -> None:
    """Every method says what happened, with the failure of the disk as the cause."""
    await agent.stopped.wait()
    for say in (agent.ask, agent.prompt, agent.inject):
        with pytest.raises(refold.ActorCrashed) as crashed:
            await say("anyone there?")
        cause: BaseException | None = crashed.value
        while isinstance(cause, refold.ActorCrashed):
            cause = cause.__cause__
        assert isinstance(cause, LogFailed)
        assert "Input/output error" in str(crashed.value)
        assert "\n" not in str(crashed.value)
    with pytest.raises(refold.ActorCrashed):
        await agent.wait_idle()
    await agent.cancel()
    await agent.close()


async def test_a_disk_that_fails_in_a_turn_ends_the_session_and_every_ask_says_so(
    disk: threading.Event, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Call("count", {"upto": 2}), Say("never sent"), Say("fine")])

    @refold.tool
    async def breaking(upto: int) -> str:
        """Break the disk."""
        disk.set()
        return str(upto)

    breaking = attrs.evolve(breaking, schema=attrs.evolve(breaking.schema, name="count"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[breaking])
        with pytest.raises(refold.RefoldError) as failed:
            await agent.ask("hello")
        assert "Input/output error" in str(failed.value)
        assert len(script.bodies) == 1, "nothing is sent after a failed sync"
        await assert_ended(agent)


async def test_a_disk_that_fails_while_idle_ends_the_session_and_no_other(
    disk: threading.Event, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("one"), Say("two"), Say("three")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        other = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        disk.set()
        with pytest.raises(LogFailed):
            await agent.inject("more")
        await assert_ended(agent)
        disk.clear()
        assert (await other.ask("hello")).text == "two"
        assert_sound(runtime, other)
        again = await runtime.resume(agent.session_id)
        assert (await again.ask("and now?")).text == "three"
        assert_sound(runtime, again)


async def test_agents_of_one_runtime_do_not_see_each_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def reply(body: Any) -> Any:
        return [Delay(5), Say(f"echo {body['messages'][-1]['content']}")]

    async with refold.open("memory:", providers=[Script(reply)]) as runtime:
        turns: dict[str, str] = {}

        async def converse(name: str) -> None:
            agent = await runtime.start_agent(model="script/m", name=name)
            for _ in range(3):
                turns[name] = (await agent.ask(name)).text
            assert len(agent.messages()) == 6
            assert_sound(runtime, agent)

        async with trio.open_nursery() as nursery:
            for name in "abcde":
                nursery.start_soon(converse, name)
        assert turns == {name: f"echo {name}" for name in "abcde"}
        assert trio.current_time() == 15
        assert len(await runtime.list()) == 5


async def test_steering_that_no_turn_gets_to_claim_starts_one_turn_and_not_one_after_the_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def broken(_view: refold.StepView) -> None:
        if len(script.bodies) > 0:
            raise LookupError("on purpose")

    script = Script([[Say("thinking"), Hang()]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(broken,)))
        await agent.prompt("hello")
        await trio.sleep(1)
        await agent.steer("faster")
        await agent.cancel()
        await agent.wait_idle()
        events = stored_events(runtime, agent.session_id)
    starts = [event for event in events if event.type == "turn/start"]
    assert len(starts) == 2
    assert next(iter(agent.log.live.rules.inbox.pending.values())).kind == "steer"


@pytest.mark.parametrize("how", ["start_agent", "resume", "fork"])
async def test_a_caller_cancelled_while_a_session_opens_hangs_nobody(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script(lambda _: Say("yes"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="first")
        await agent.ask("hello")
        await agent.close()
        for checkpoints in range(12):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    match how:
                        case "start_agent":
                            nursery.start_soon(partial(runtime.start_agent, model="script/m"))
                        case "resume":
                            nursery.start_soon(runtime.resume, "first")
                        case _:
                            nursery.start_soon(runtime.fork, "first")
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel(reason="test")
            for opened in list(runtime._agents):
                await opened.close()
        again = await runtime.resume("first")
        assert (await again.ask("still there?")).text == "yes"


async def test_an_agent_can_be_parked_right_after_it_answered() -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        for _ in range(5):
            assert (await agent.ask("hello")).text == "yes"
            await agent.park()
            assert agent.parked


async def test_an_agent_whose_log_is_empty_yet_is_not_parked(tmp_path: Path) -> None:
    async with refold.open(tmp_path, providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.park()
        assert not agent.parked
        assert (await agent.ask("hello")).text == "hi"


async def test_an_observer_outlives_parking_and_its_tasks_wait_for_nobody() -> None:
    seen: list[str] = []
    answers: list[str] = []
    async with refold.open(
        "memory:", providers=[Script([Say("a"), Say("b"), Say("c")])]
    ) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def ask_back() -> None:
            answers.append((await agent.ask("from an observer")).text)

        def observer(event: Event) -> None:
            seen.append(event.type)
            if seen.count("turn/end") == 1 and event.type == "turn/end":
                nursery.start_soon(ask_back)

        async with trio.open_nursery() as nursery:
            agent.log.observe(observer)
            await agent.ask("one")
        await agent.park()
        await agent.ask("two")
    assert answers == ["b"]
    assert seen.count("turn/end") == 3


async def test_a_cancelled_sender_does_not_leave_a_prompt_unstarted() -> None:
    async with refold.open("memory:", providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        with trio.CancelScope() as scope:
            agent.log.observe(lambda _event: scope.cancel())
            await agent.prompt("hello")
        assert scope.cancelled_caught
        with trio.fail_after(5):
            async for event in agent.events():
                if event.type == "turn/end":
                    break


async def test_waiting_for_a_prompt_that_nobody_queued_is_refused() -> None:
    async with refold.open("memory:", providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        with pytest.raises(refold.NoSuchPrompt, match="seq 99"):
            await agent.answer(99)


async def test_what_cannot_be_asked_is_refused_before_anything_is_written() -> None:
    async with refold.open("memory:", providers=[Script([Say("hi")])]) as runtime:
        with pytest.raises(ExtraRefused):
            await runtime.start_agent(model="script/m", extra={"messages": []})
        assert await runtime.list() == []
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await agent.close()
        before = stored_events(runtime, agent.session_id)
        for attempt in (runtime.resume, runtime.fork):
            with pytest.raises(UnknownProvider):
                await attempt(agent.session_id, model="nobody/m")
        assert await runtime.list() == [agent.session_id]
        assert stored_events(runtime, agent.session_id) == before


async def test_a_header_that_no_request_can_hold_is_not_logged() -> None:
    """It would be the log's word for what every later request begins with."""
    config = []

    async def spoil(given: Any) -> Any:
        config.append(given)
        extra = Json.of({"messages": []}) if len(config) == 1 else given.extra
        return attrs.evolve(given, extra=extra)

    async with refold.open("memory:", providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(request=(spoil,)))
        turn = await agent.ask("hello")
        assert turn.reason.kind == "error"
        assert "messages" in str(turn.reason.message)
        assert of_type(stored_events(runtime, agent.session_id), "request/header") == []
        assert (await agent.ask("and now?")).text == "hi"


async def test_events_from_far_inside_a_long_log_come_at_once(tmp_path: Path) -> None:
    script = Script(lambda _body: Say("go on"))
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turns = [await agent.ask("a long story " * 4_000) for _ in range(6)]  # more than one read
        turn = turns[-1]
        with trio.fail_after(5):
            event = await anext(agent.events(turn.end_seq))
        assert (event.seq, event.type) == (turn.end_seq, "turn/end")
