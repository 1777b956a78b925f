"""What the log and the model are told of parallel calls is what became of each.

A call is logged as started when its body is about to start; a body that ended has its result; and
whatever order the results came in, the model reads them in the order of the calls.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

import refold
from refold import Call, Say, Script, Seams
from refold.actors.stores.committer import LocalGrant
from refold.actors.tools import Tool
from refold.runtime.closing import NOT_STARTED, UNKNOWN_OUTCOME
from refold.runtime.envelope import Event
from refold.runtime.events import EndReason
from refold.runtime.messages import text_of
from tests.agents import assert_sound, of_type, stored_events


@attrs.define
class Bodies:
    """A tool whose calls take as long as they are told; notes which began and which ended."""

    began: list[str] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)

    @property
    def tools(self) -> list[Tool]:
        @refold.tool(parallel=True)
        async def work(name: str, seconds: float) -> str:
            """Work."""
            self.began.append(name)
            await trio.sleep(seconds)
            self.ended.append(name)
            return f"result of {name}"

        @refold.tool(parallel=True, effects=False)
        async def look(name: str, seconds: float) -> str:
            """Look."""
            return await work.body(name, seconds)  # type: ignore[no-any-return]  # it is text

        return [work, look]


def work(name: str, seconds: float, tool: str = "work") -> Call:
    return Call(tool, {"name": name, "seconds": seconds}, id=name)


def answers(calls: list[Call]) -> Script:
    """A model that asks for the calls, once, and then only talks."""

    def reply(body: Any) -> Any:
        asked = any("tool_calls" in message for message in body["messages"])
        return Say("done") if asked else calls

    return Script(reply)


def told(events: list[Event]) -> dict[str, str]:
    """The code of each call's one result, `ok` for one that is no error."""
    results = of_type(events, "tool/result")
    assert len({result.call_id for result in results}) == len(results)
    return {result.call_id: result.error.code if result.error else "ok" for result in results}


def on_the_wire(script: Script, request: int = -1) -> list[str]:
    """The ids of the results in a request, in the order in which the model reads them."""
    messages = orjson.loads(script.bodies[request])["messages"]
    return [message["tool_call_id"] for message in messages if message["role"] == "tool"]


async def cut_at(
    seconds: float, calls: list[Call], **options: Any
) -> tuple[Bodies, Script, list[Event]]:
    """Ask for the calls, cancel after some seconds, ask again; the log is sound in the end."""
    bodies, script = Bodies(), answers(calls)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=bodies.tools, **options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "go")
            await trio.sleep(seconds)
            await agent.cancel("enough")
        assert (await agent.ask("and now?")).text == "done"
        return bodies, script, assert_sound(runtime, agent)


@pytest.mark.parametrize("tool", ["work", "look"])
async def test_of_twelve_calls_at_a_cancel_eight_are_told_to_have_run(
    tool: str, autojump_clock: trio.testing.MockClock
) -> None:
    calls = [work(f"n{number:02}", 100, tool) for number in range(12)]
    bodies, script, events = await cut_at(5, calls)
    ran = {name for name, code in told(events).items() if code == "ABORTED"}
    assert ran == set(bodies.began)
    assert len(ran) == 8
    assert {call.call_id for call in of_type(events, "tool/call")} == ran
    assert set(told(events).values()) == {"ABORTED", "NOT_STARTED"}
    assert on_the_wire(script) == [call.id for call in calls]


async def test_a_place_that_falls_free_starts_the_next_call_and_not_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls = [work("short", 1), *(work(f"long{n}", 100) for n in range(7)), work("ninth", 100)]
    bodies, _, events = await cut_at(0.5, [*calls, work("tenth", 100)])
    assert "ninth" not in bodies.began
    bodies, _, events = await cut_at(2, [*calls, work("tenth", 100)])
    assert "ninth" in bodies.began
    assert told(events)["tenth"] == "NOT_STARTED"
    assert told(events)["short"] == "ok"


async def test_after_a_cancel_the_closing_results_are_shown_in_call_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls = [work("a", 100), work("b", 1), work("c", 100), work("d", 2)]
    _, script, events = await cut_at(5, calls)
    assert [result.call_id for result in of_type(events, "tool/result")] == ["b", "d", "a", "c"]
    assert on_the_wire(script) == ["a", "b", "c", "d"]
    assert told(events) == {"a": "ABORTED", "b": "ok", "c": "ABORTED", "d": "ok"}


@attrs.define
class Crash:
    """A program that dies once so many events of a type are durable, and what its heir finds."""

    scheme: str
    folder: Path

    async def at(
        self, type_: str, count: int, calls: list[Call]
    ) -> tuple[Bodies, Script, list[Event]]:
        store, copy = self.folder / "store", self.folder / "copy"
        store.mkdir()
        bodies, script = Bodies(), answers(calls)
        async with refold.open(self.scheme.format(store), providers=[script]) as runtime:
            agent = await runtime.start_agent(model="script/m", tools=bodies.tools, session_id="s")
            await agent.prompt("go")
            with trio.fail_after(30):
                async for event in agent.events():
                    count -= event.type == type_
                    if not count:
                        break
            await trio.to_thread.run_sync(shutil.copytree, store, copy)
            await agent.cancel()
        again = answers([])
        async with refold.open(self.scheme.format(copy), providers=[again]) as runtime:
            agent = await runtime.resume("s", model="script/m", tools=bodies.tools)
            assert (await agent.ask("and now?")).text == "done"
            return bodies, again, assert_sound(runtime, agent)


@pytest.fixture(params=["{}", "sqlite:///{}/sessions.db"])
def crash(request: pytest.FixtureRequest, tmp_path: Path) -> Crash:
    return Crash(request.param, tmp_path)


async def test_a_fast_result_is_durable_while_a_slow_sibling_runs(crash: Crash) -> None:
    """And after a crash the model is told both in call order."""
    calls = [work("slow", 1000), work("fast", 0)]
    bodies, script, events = await crash.at("tool/result", 1, calls)
    assert bodies.ended == ["fast"]
    assert told(events) == {"slow": "interrupted", "fast": "ok"}
    assert on_the_wire(script) == ["slow", "fast"]


async def test_of_twelve_calls_at_a_kill_eight_are_told_to_have_an_unknown_outcome(
    crash: Crash,
) -> None:
    calls = [work(f"n{number:02}", 1000) for number in range(12)]
    bodies, script, events = await crash.at("tool/call", 8, calls)
    texts = {result.call_id: text_of(result.content) for result in of_type(events, "tool/result")}
    ran = {name for name, text in texts.items() if text == UNKNOWN_OUTCOME}
    assert ran == {call.id for call in calls[:8]}
    assert set(bodies.began) <= ran
    assert {texts[call.id] for call in calls[8:]} == {NOT_STARTED}
    assert on_the_wire(script) == [call.id for call in calls]


async def no_outcome(_call: refold.CallView, _outcome: refold.Outcome) -> Any:
    return None


async def no_content(_call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
    unloggable: Any = ({"text": object()},)
    return attrs.evolve(outcome, content=unloggable)


async def trips(_call: refold.CallView, _outcome: refold.Outcome) -> refold.Outcome:
    raise LookupError("tripped")


@pytest.mark.parametrize("seam", [no_outcome, no_content, trips])
@pytest.mark.parametrize("names", ["b", "abc"])
async def test_a_finished_result_stands_whatever_a_seam_makes_of_it(
    seam: Callable[..., Awaitable[Any]], names: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def at_b(call: refold.CallView, outcome: refold.Outcome) -> Any:
        return await seam(call, outcome) if call.call_id == "b" else outcome

    bodies = Bodies()
    script = answers([work(name, place) for place, name in enumerate(names)])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=bodies.tools, seams=Seams(post_tool=(at_b,))
        )
        turn = await agent.ask("go")
        assert turn.reason.kind == "error"
        assert bodies.ended == list(names), "the neighbours finish"
        assert (await agent.ask("and now?")).text == "done"
        events = assert_sound(runtime, agent)
    assert told(events) == dict.fromkeys(names, "ok")
    texts = {result.call_id: text_of(result.content) for result in of_type(events, "tool/result")}
    assert texts == {name: f"result of {name}" for name in names}


async def test_after_a_seam_failed_no_further_call_of_the_group_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def fails_at_the_short_one(call: refold.CallView, outcome: Any) -> Any:
        return outcome if call.call_id != "n0" else no_such_name  # type: ignore[name-defined]  # noqa: F821 - a typo in a seam

    asked: list[str] = []

    async def note(call: refold.CallView) -> None:
        asked.append(call.call_id)

    bodies = Bodies()
    calls = [work(f"n{number}", 1 + 9 * bool(number)) for number in range(10)]
    script = answers(calls)
    seams = Seams(pre_tool=(note,), post_tool=(fails_at_the_short_one,))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=bodies.tools, seams=seams)
        turn = await agent.ask("go")
        assert turn.reason.message is not None
        assert "no_such_name" in turn.reason.message
        assert len(bodies.ended) == 8
        assert asked == [f"n{number}" for number in range(8)], "nobody is asked in vain"
        assert (await agent.ask("and now?")).text == "done"
        codes = told(assert_sound(runtime, agent))
    assert [name for name, code in codes.items() if code == "NOT_STARTED"] == ["n8", "n9"]
    assert sorted(name for name, code in codes.items() if code == "ok") == sorted(bodies.ended)


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_a_cancel_as_the_body_ends_leaves_its_result(
    names: str, autojump_clock: trio.testing.MockClock
) -> None:
    @refold.tool(parallel=True)
    async def last_act(name: str) -> str:
        """Cancel the turn, and end."""
        cancel = agent._opened.loop._cancel
        assert cancel is not None
        cancel(EndReason("aborted"))
        return f"{name} is done"

    script = answers([Call("last_act", {"name": name}, id=name) for name in names])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[last_act])
        assert (await agent.ask("go")).reason.kind == "aborted"
        assert (await agent.ask("and now?")).text == "done"
        codes = told(assert_sound(runtime, agent))
    began_after = {"NOT_STARTED"} if len(names) > 1 else set()
    assert "ok" in codes.values()
    assert set(codes.values()) <= {"ok"} | began_after


async def test_a_call_that_was_cancelled_while_the_disk_took_its_start_never_ran(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = LocalGrant.sync

    async def slow_sync(grant: LocalGrant) -> int:
        await trio.sleep(10)
        return await sync(grant)

    monkeypatch.setattr(LocalGrant, "sync", slow_sync)
    # One sync before the request, then one for the call: at 15 s the call waits for its own.
    for calls in ([work("a", 1)], [work("a", 1), work("b", 2)]):
        bodies, _, events = await cut_at(15, calls)
        assert bodies.began == []
        assert of_type(events, "tool/call")
        assert set(told(events).values()) == {"NOT_STARTED"}


async def test_extra_context_stands_in_call_order_also_after_a_cancel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def annotate(call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        return attrs.evolve(outcome, context=(refold.TextBlock(f"about {call.call_id}"),))

    calls = [work("a", 3), work("b", 100), work("c", 1)]
    _, _, events = await cut_at(5, calls, seams=Seams(post_tool=(annotate,)))
    context = of_type(events, "context/message")
    assert [text_of(one.content) for one in context] == ["about a", "about c"]


async def test_a_result_goes_to_disk_at_once_and_not_with_what_comes_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bodies, script = Bodies(), answers([work("slow", 100), work("fast", 2), work("mid", 4)])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=bodies.tools)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "go")
            for seconds, ended in ((3, ["fast"]), (5, ["fast", "mid"])):
                await trio.sleep(seconds - trio.current_time())
                assert bodies.ended == ended
                last = stored_events(runtime, agent.session_id)[-1]
                assert (last.type, last.data.call_id) == ("tool/result", ended[-1])
                assert agent.log.live.durable_seq == last.seq


@pytest.mark.parametrize(("tool", "syncs"), [("work", 4), ("look", 3)])
@pytest.mark.parametrize("beside", [[], [Call("nowhere", id="z")], [work("denied", 1)]])
async def test_a_result_that_no_neighbour_waits_beside_costs_no_sync_of_its_own(
    tool: str, syncs: int, beside: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each request, before a body with effects, and at the turn's end."""

    async def deny(call: refold.CallView) -> refold.Deny | None:
        return refold.Deny("no") if call.call_id == "denied" else None

    count, sync = 0, LocalGrant.sync

    async def counted(grant: LocalGrant) -> int:
        nonlocal count
        count += 1
        return await sync(grant)

    bodies, script = Bodies(), answers([*beside, work("a", 0, tool)])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=bodies.tools, seams=Seams(pre_tool=(deny,))
        )
        monkeypatch.setattr(LocalGrant, "sync", counted)
        await agent.ask("go")
        assert count == syncs


@pytest.mark.parametrize("tool", ["work", "look"])
@pytest.mark.parametrize("names", ["a", "ab"])
async def test_a_call_that_was_cancelled_as_it_was_logged_never_ran(
    tool: str, names: str, autojump_clock: trio.testing.MockClock
) -> None:
    bodies, script = Bodies(), answers([work(name, 1, tool) for name in names])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=bodies.tools)

        def cancel_at_the_first(event: Event) -> None:
            cancel = agent._opened.loop._cancel
            if event.type == "tool/call" and cancel is not None:
                cancel(EndReason("aborted"))

        agent.log.observe(cancel_at_the_first)
        assert (await agent.ask("go")).reason.kind == "aborted"
        assert (await agent.ask("and now?")).text == "done"
        events = assert_sound(runtime, agent)
    assert bodies.began == []
    assert len(of_type(events, "tool/call")) == 1
    assert set(told(events).values()) == {"NOT_STARTED"}


async def test_a_refused_call_gives_its_place_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def deny(call: refold.CallView) -> refold.Deny | None:
        return None if call.call_id == "last" else refold.Deny("not that one")

    bodies = Bodies()
    script = answers([*(work(f"n{number}", 1) for number in range(9)), work("last", 1)])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=bodies.tools, seams=Seams(pre_tool=(deny,))
        )
        with trio.fail_after(100):
            assert (await agent.ask("go")).text == "done"
        assert bodies.ended == ["last"]


async def test_a_seam_that_returns_no_outcome_is_told_what_to_return(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = answers([work("a", 1)])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=Bodies().tools, seams=Seams(post_tool=(no_outcome,))
        )
        turn = await agent.ask("go")
    assert turn.reason.message is not None
    assert "the post_tool seam no_outcome returned None" in turn.reason.message
