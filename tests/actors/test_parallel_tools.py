"""Tool calls side by side, in threads, cut short, and in circles."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Call, Deny, Say, Script, Seams
from refold.actors.tools import Tool
from refold.actors.turn.tool_calls import SIDE_BY_SIDE
from refold.runtime.envelope import Event
from refold.runtime.events import EndReason
from refold.runtime.messages import TextBlock, text_of
from tests.agents import assert_sound, kinds, of_type, sent


@attrs.define
class Bench:
    """Tools that note on the virtual clock when each call begins and ends."""

    began: dict[str, float] = attrs.field(factory=dict)
    ended: dict[str, float] = attrs.field(factory=dict)
    durable: dict[str, int] = attrs.field(factory=dict)
    agent: refold.Agent | None = None

    async def spend(self, name: str, seconds: float) -> str:
        assert self.agent is not None
        self.began[name] = trio.current_time()
        self.durable[name] = self.agent.log.live.durable_seq
        await trio.sleep(seconds)
        self.ended[name] = trio.current_time()
        return f"{name} is done"

    @property
    def tools(self) -> list[Tool]:
        @refold.tool(parallel=True)
        async def side(name: str, seconds: float = 10) -> str:
            """Run beside others."""
            return await self.spend(name, seconds)

        @refold.tool
        async def alone(name: str, seconds: float = 10) -> str:
            """Run alone."""
            return await self.spend(name, seconds)

        @refold.tool(parallel=True, effects=False)
        async def fail(name: str) -> str:
            """Fail."""
            raise LookupError(f"{name} is not there")

        return [side, alone, fail]


def side(name: str, seconds: float = 10) -> Call:
    return Call("side", {"name": name, "seconds": seconds}, id=name)


def alone(name: str) -> Call:
    return Call("alone", {"name": name}, id=name)


async def run_calls(
    bench: Bench, *calls: Call, during: Callable[[], Awaitable[None]] | None = None, **options: Any
) -> tuple[refold.Turn, list[Event]]:
    """The turn of one answer with these calls, and the log after the next prompt worked too."""

    def reply(body: Any) -> Any:
        last = body["messages"][-1]
        if "and now?" in str(last["content"]):
            return Say("fine")
        return Say("done") if last["role"] == "tool" else list(calls)

    turns: list[refold.Turn] = []

    async def ask() -> None:
        assert bench.agent is not None
        turns.append(await bench.agent.ask("go"))

    async with refold.open("memory:", providers=[Script(reply)]) as runtime:
        bench.agent = await runtime.start_agent(model="script/m", tools=bench.tools, **options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            if during is not None:
                await during()
        assert (await bench.agent.ask("and now?")).text == "fine"
        return turns[0], assert_sound(runtime, bench.agent)


def outcomes(events: list[Event], calls: tuple[Call, ...]) -> dict[str, str]:
    """The code of the one result of each call, `ok` for one that is no error."""
    results = of_type(events, "tool/result")
    times = Counter(result.call_id for result in results)
    assert times == Counter(call.id for call in calls)
    return {result.call_id: result.error.code if result.error else "ok" for result in results}


async def test_neighbours_overlap_and_exclusive_calls_are_barriers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    calls = (side("a"), side("b", 5), alone("c"), alone("d"), side("e"), side("f"))
    turn, events = await run_calls(bench, *calls)
    assert bench.began == {"a": 0, "b": 0, "c": 10, "d": 20, "e": 30, "f": 30}
    assert set(outcomes(events, calls).values()) == {"ok"}
    assert turn.text == "done"


async def test_a_slow_first_call_does_not_hold_back_a_fast_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench, seen = Bench(), list[str]()

    async def look_at_five() -> None:
        await trio.sleep(5)
        assert bench.agent is not None
        seen.extend(text_of(m.content[0].content) for m in results_so_far(bench.agent))

    calls = (side("slow", 10), side("fast", 1), side("faster", 0.5))
    _, events = await run_calls(bench, *calls, during=look_at_five)
    assert seen == ["faster is done", "fast is done"], "in the log as soon as they are there"
    order = [result.call_id for result in of_type(events, "tool/result")]
    assert order == ["faster", "fast", "slow"]


def results_so_far(agent: refold.Agent) -> list[Any]:
    """The messages of the live log that hold a tool's result."""
    return [m for m in agent.messages() if type(m.content[0]).__name__ == "ToolResultBlock"]


async def test_the_model_sees_results_in_the_order_of_the_calls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[side("slow", 10), side("fast", 1)], Say("done")])
    bench = Bench()
    async with refold.open("memory:", providers=[script]) as runtime:
        bench.agent = await runtime.start_agent(model="script/m", tools=bench.tools)
        await bench.agent.ask("go")
        assert sent(script)[-2:] == ["slow is done", "fast is done"]
        results = of_type(assert_sound(runtime, bench.agent), "tool/result")
        assert [result.call_id for result in results] == ["fast", "slow"], "as they came"


async def test_no_more_than_eight_run_at_once_and_the_rest_follows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    calls = tuple(side(f"n{number}") for number in range(2 * SIDE_BY_SIDE + 1))
    _, events = await run_calls(bench, *calls)
    assert SIDE_BY_SIDE == 8
    assert Counter(bench.began.values()) == {0: 8, 10: 8, 20: 1}
    assert set(outcomes(events, calls).values()) == {"ok"}


async def test_each_tool_call_is_durable_before_its_body_with_effects_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    calls = (side("a"), side("b"), side("c"), alone("d"))
    _, events = await run_calls(bench, *calls)
    started = {e.data.call_id: e.seq for e in events if e.type == "tool/call"}
    assert all(bench.durable[name] >= started[name] for name in "abcd")


async def test_a_failing_a_denied_and_an_unknown_call_do_not_harm_their_neighbours(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def deny(call: refold.CallView) -> Deny | None:
        return Deny("not that one") if "denied" in call.arguments else None

    bench = Bench()
    calls = (
        side("a"),
        side("denied"),
        Call("fail", {"name": "it"}, id="failed"),
        Call("side", {"nam": "x"}, id="misfit"),
        side("b"),
        Call("nowhere", id="unknown"),
        side("c"),
    )
    turn, events = await run_calls(bench, *calls, seams=Seams(pre_tool=(deny,)))
    assert outcomes(events, calls) == {
        "a": "ok",
        "denied": "DENIED",
        "failed": "TOOL_FAILED",
        "misfit": "BAD_ARGUMENTS",
        "b": "ok",
        "unknown": "UNKNOWN_TOOL",
        "c": "ok",
    }
    assert (bench.began["a"], bench.began["b"]) == (0, 0)
    assert turn.text == "done"
    started = {call.call_id for call in of_type(events, "tool/call")}
    assert started == {"a", "failed", "misfit", "b", "c"}


@pytest.mark.parametrize("place", ["pre_tool", "post_tool"])
async def test_a_seam_that_raises_for_one_of_several_leaves_each_with_one_result(
    place: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def trip(*arguments: Any) -> Any:
        if arguments[0].call_id == "b":
            raise LookupError("tripped")
        return arguments[-1] if place == "post_tool" else None

    bench = Bench()
    calls = (side("a", 1), side("b", 5), side("c", 9), alone("d"))
    turn, events = await run_calls(bench, *calls, seams=Seams(**{place: (trip,)}))
    assert (turn.reason.kind, turn.reason.message) == ("error", "LookupError: tripped")
    assert outcomes(events, calls) == {
        "a": "ok",
        "b": "ok" if place == "post_tool" else "NOT_STARTED",
        "c": "ok" if place == "post_tool" else "NOT_STARTED",
        "d": "NOT_STARTED",
    }
    assert sorted(bench.ended) == (["a", "b", "c"] if place == "post_tool" else ["a"])


async def test_cancelled_with_some_done_and_some_not_each_call_has_one_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()

    async def cancel_at_five() -> None:
        await trio.sleep(5)
        assert bench.agent is not None
        await bench.agent.cancel("enough")

    calls = (side("a", 1), side("b", 9), side("c", 2), side("d", 9), alone("e"))
    turn, events = await run_calls(bench, *calls, during=cancel_at_five)
    assert turn.reason == EndReason("aborted", reason="enough")
    assert outcomes(events, calls) == {
        "a": "ok",
        "b": "ABORTED",
        "c": "ok",
        "d": "ABORTED",
        "e": "NOT_STARTED",
    }
    assert sorted(bench.ended) == ["a", "c"]


async def test_context_of_calls_that_overlap_stands_after_all_results_in_call_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def annotate(call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        return attrs.evolve(outcome, context=(TextBlock(f"about {call.call_id}"),))

    calls = (side("slow", 5), side("fast", 1))
    _, events = await run_calls(Bench(), *calls, seams=Seams(post_tool=(annotate,)))
    surface = [event for event in events if event.surface_op is not None]
    assert kinds(surface)[2:6] == ["tool/result"] * 2 + ["context/message"] * 2
    assert [text_of(e.data.content) for e in surface[4:6]] == ["about slow", "about fast"]


async def test_a_thread_tool_runs_off_the_trio_thread_and_beside_others(tmp_path: Path) -> None:
    both, threads = threading.Barrier(2, timeout=30), list[int]()

    @refold.tool(isolation="thread", parallel=True)
    def meet(name: str) -> str:
        """Meet the other one."""
        threads.append(threading.get_ident())
        both.wait()
        return f"{name} met"

    calls = [Call("meet", {"name": name}) for name in ("a", "b")]
    script = Script([calls, Say("done")])
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[meet])
        assert (await agent.ask("go")).text == "done"
        assert sorted(sent(script)[-2:]) == ["a met", "b met"]
        assert len({*threads, threading.get_ident()}) == 3
        assert agent.snapshot().abandoned_threads == 0
        assert_sound(runtime, agent)


@attrs.define
class Stuck:
    """A thread tool that does not return until it is let go."""

    timeout: float
    started: threading.Event = attrs.field(factory=threading.Event)
    let_go: threading.Event = attrs.field(factory=threading.Event)
    gone: threading.Event = attrs.field(factory=threading.Event)

    @property
    def tool(self) -> Tool:
        @refold.tool(isolation="thread", timeout=self.timeout)
        def hang() -> str:
            """Hang."""
            self.started.set()
            self.let_go.wait(30)
            self.gone.set()
            return "too late"

        return hang


async def finished(stuck: Stuck, agent: refold.Agent) -> int:
    """How many threads were abandoned, once this one has ended."""
    stuck.let_go.set()
    assert await trio.to_thread.run_sync(stuck.gone.wait, 30)
    with trio.fail_after(30):
        while not agent.snapshot().abandoned_threads:
            await trio.lowlevel.checkpoint()
    return agent.snapshot().abandoned_threads


async def test_a_thread_past_its_timeout_is_abandoned_and_counted(tmp_path: Path) -> None:
    stuck = Stuck(0.05)
    script = Script([Call("hang"), Say("done"), Say("fine")])
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[stuck.tool])
        assert (await agent.ask("go")).text == "done"
        assert not stuck.gone.is_set()
        assert agent.snapshot().abandoned_threads == 0, "counted once its result is thrown away"
        assert await finished(stuck, agent) == 1
        assert (await agent.ask("and now?")).text == "fine"
        (result,) = of_type(assert_sound(runtime, agent), "tool/result")
        assert result.error.code == "TOOL_TIMEOUT"


async def test_a_cancelled_turn_abandons_its_thread_and_counts_it(tmp_path: Path) -> None:
    stuck = Stuck(60)
    script = Script([Call("hang"), Say("fine")])
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[stuck.tool])
        await agent.prompt("go")
        assert await trio.to_thread.run_sync(stuck.started.wait, 30)
        await agent.cancel("enough")
        assert not stuck.gone.is_set()
        assert await finished(stuck, agent) == 1
        assert (await agent.ask("and now?")).text == "fine"
        (result,) = of_type(assert_sound(runtime, agent), "tool/result")
        assert result.error.code == "ABORTED"


async def test_the_runtime_closes_while_a_thread_still_hangs(tmp_path: Path) -> None:
    stuck = Stuck(60)
    with trio.fail_after(30):
        async with refold.open(tmp_path, providers=[Script([Call("hang")])]) as runtime:
            agent = await runtime.start_agent(model="script/m", tools=[stuck.tool])
            await agent.prompt("go")
            assert await trio.to_thread.run_sync(stuck.started.wait, 30)
    assert not stuck.gone.is_set()
    events = assert_sound(runtime, agent)
    assert events[-1].type in ("turn/end", "session/released")
    assert of_type(events, "turn/end")[0].reason == EndReason("disposed")
    assert await finished(stuck, agent) == 1


async def test_output_over_the_limit_is_cut_for_the_model_and_in_the_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @refold.tool(max_output=100)
    async def read() -> str:
        """Read much."""
        return "a" * 500 + "b" * 500

    script = Script([Call("read"), Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[read])
        await agent.ask("go")
        shown = sent(script)[-1]
        assert shown.startswith("a" * 75 + "\n[... 900 of 1000 characters left out")
        assert shown.endswith("\n" + "b" * 25)
        (result,) = of_type(assert_sound(runtime, agent), "tool/result")
        assert text_of(result.content) == shown
        assert not result.is_error


async def test_a_tool_that_asks_its_own_agent_gets_an_error_and_no_deadlock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @refold.tool(timeout=5)
    async def ask_myself() -> str:
        """Ask the agent whose tool this is."""
        return (await agent.ask("what do I think?")).text

    def reply(body: Any) -> Any:
        return Call("ask_myself") if body["messages"][-1]["content"] == "go" else Say("fine")

    script = Script(reply)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[ask_myself])
        turn = await agent.ask("go")
        assert trio.current_time() < 1, "nobody waited for the tool's timeout"
        assert turn.text == "fine"
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        assert len(of_type(events, "turn/start")) == 1, "a refused question is not queued"
        (result,) = of_type(events, "tool/result")
        assert result.error.name == "AskCycle"


@pytest.mark.parametrize("busy", [False, True])
async def test_agents_that_ask_each_other_in_a_circle_get_an_error_and_no_deadlock(
    busy: bool, autojump_clock: trio.testing.MockClock
) -> None:
    agents: dict[str, refold.Agent] = {}

    @refold.tool(timeout=5)
    async def consult(name: str) -> str:
        """Ask another agent."""
        await trio.sleep(1)
        return (await agents[name].ask("what do you think?")).text

    def consulting(name: str) -> Callable[[Any], Any]:
        asked: list[Any] = []

        def reply(body: Any) -> Any:
            asked.append(body)
            return Call("consult", {"name": name}) if len(asked) == 1 else Say("fine")

        return reply

    models = [Script(consulting("b"), name="first"), Script(consulting("a"), name="second")]
    async with refold.open("memory:", providers=models) as runtime:
        agents["a"] = await runtime.start_agent(model="first/m", tools=[consult])
        agents["b"] = await runtime.start_agent(model="second/m", tools=[consult])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agents["a"].ask, "go")
            if busy:
                nursery.start_soon(agents["b"].ask, "go")
        for agent in agents.values():
            await agent.wait_idle()
        assert trio.current_time() < 5, "nobody waited for a tool's timeout"
        found = [assert_sound(runtime, agent) for agent in agents.values()]
        results = [result for events in found for result in of_type(events, "tool/result")]
        assert "AskCycle" in {result.error.name for result in results if result.error}
