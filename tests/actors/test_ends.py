"""Always an end: bodies that do not stop, what they raise, and closing from anywhere."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import refold
from refold import Call, Say, Script, Seams
from refold.actors.bodies import STOP_SECONDS, BrokenOff
from refold.actors.kernel import AskCycle
from refold.actors.leaving import NotClosed
from refold.actors.log.live_log import LogProgress
from refold.actors.stores.local import EmbeddedStore
from refold.runtime.events import EndReason
from refold.runtime.messages import text_of
from tests.agents import assert_sound, of_type, stored_events

CALL_IT: list[Any] = [[Call("it", {})], Say("fine"), Say("fine")]
Body = Callable[[], Awaitable[str]]


async def shielded() -> str:
    with trio.CancelScope(shield=True):
        await trio.sleep(1000)
    return "late"


async def swallows() -> str:
    until = trio.current_time() + 1000
    while trio.current_time() < until:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            await trio.lowlevel.cancel_shielded_checkpoint()
    return "late"


def tool_of(body: Body, **options: Any) -> refold.Tool:
    return refold.tool(name="it", **options)(body)


def results(runtime: refold.Runtime, agent: refold.Agent) -> list[Any]:
    return of_type(stored_events(runtime, agent.session_id), "tool/result")


async def in_the_tool(runtime: refold.Runtime, nursery: trio.Nursery, body: Body) -> refold.Agent:
    """An agent whose tool runs."""
    agent = await runtime.start_agent(model="script/m", tools=[tool_of(body, timeout=5000)])
    nursery.start_soon(agent.ask, "go")
    await trio.sleep(1)
    return agent


async def test_a_tool_that_does_not_stop_holds_no_cancel_and_its_result_says_so(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        refold.open("memory:", providers=[Script(CALL_IT)]) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await in_the_tool(runtime, nursery, shielded)
        before = trio.current_time()
        await agent.cancel()
        assert trio.current_time() - before == STOP_SECONDS
        (result,) = results(runtime, agent)
        assert result.error.code == "ABORTED"
        assert "did not stop within 5.0 s: it may still be running" in text_of(result.content)
        turns = of_type(stored_events(runtime, agent.session_id), "turn/end")
        assert turns[0].reason == EndReason("aborted", reason="user")
        assert f"tool 'it' of session {agent.session_id} did not stop" in caplog.text
        assert (await agent.ask("and now?")).text == "fine"
        assert_sound(runtime, agent)


async def test_its_own_timeout_does_not_wait_for_a_tool_that_does_not_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[tool_of(shielded, timeout=10)])
        turn = await agent.ask("go")
        assert (turn.text, trio.current_time()) == ("fine", 10 + STOP_SECONDS)
        (result,) = results(runtime, agent)
        assert result.error.code == "TOOL_TIMEOUT"
        assert "may still be running" in text_of(result.content)


async def test_the_late_end_of_a_tool_that_was_left_behind_is_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        refold.open("memory:", providers=[Script(CALL_IT)]) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await in_the_tool(runtime, nursery, shielded)
        await agent.cancel()
        assert agent.snapshot().abandoned_threads == 0
        await trio.sleep(2000)
        assert agent.snapshot().abandoned_threads == 1
        assert len(results(runtime, agent)) == 1


async def test_max_seconds_end_a_turn_whose_tool_does_not_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        agent = await runtime.start_agent(
            model="script/m",
            tools=[tool_of(shielded, timeout=500)],
            budgets=refold.Budgets(max_seconds=20),
        )
        turn = await agent.ask("go")
        assert turn.reason == EndReason("budget", limit="seconds")
        assert trio.current_time() == 20 + STOP_SECONDS


async def test_a_tool_that_swallows_its_cancellation_is_left_and_broken_off() -> None:
    """In real time: such a body lets no virtual clock go on."""
    async with (
        refold.open("memory:", providers=[Script(CALL_IT)]) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start_agent(model="script/m", tools=[tool_of(swallows)])
        agent._opening.patience.shorten(0.1)
        nursery.start_soon(agent.ask, "go")
        await trio.sleep(0.1)
        with trio.fail_after(5):
            await agent.cancel()
            assert "may still be running" in text_of(results(runtime, agent)[0].content)
            while agent.snapshot().abandoned_threads == 0:
                await trio.lowlevel.checkpoint()


async def test_a_waiting_thread_holds_up_neither_its_timeout_nor_the_turn() -> None:
    let_go = threading.Event()

    async def wait_for_a_thread() -> str:
        await trio.to_thread.run_sync(let_go.wait, 60)
        return "late"

    try:
        async with (
            refold.open("memory:", providers=[Script(CALL_IT)]) as runtime,
            trio.open_nursery() as nursery,
        ):
            tools = [tool_of(wait_for_a_thread)]
            agent = await runtime.start_agent(model="script/m", tools=tools)
            agent._opening.patience.shorten(0.1)
            nursery.start_soon(agent.ask, "go")
            await trio.sleep(0.2)
            with trio.fail_after(5):
                await agent.cancel()
            assert "may still be running" in text_of(results(runtime, agent)[0].content)
    finally:
        let_go.set()


async def test_leaving_the_runtime_does_not_wait_for_a_tool_and_other_sessions_are_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(lambda body: Call("it", {}) if "go" in str(body["messages"][-1]) else Say("hi"))
    before, sessions = time.monotonic(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        async with (
            refold.open(tmp_path, providers=[script]) as runtime,
            trio.open_nursery() as nursery,
        ):
            other = await runtime.start_agent(model="script/m")
            await other.ask("hello")
            agent = await in_the_tool(runtime, nursery, shielded)
            sessions += [agent.session_id, other.session_id]
            raise KeyboardInterrupt
    assert time.monotonic() - before < 5
    assert "did not stop" in caplog.text
    async with refold.open(tmp_path, providers=[script]) as again:
        assert len(sessions) == 2
        for session in sessions:
            await (await again.resume(session, tools=())).close()
            kinds = [event.type for event in stored_events(again, session)]
            assert kinds.count("turn/start") == kinds.count("turn/end")


@pytest.mark.parametrize("body", [shielded, swallows])
def test_a_program_that_ends_breaks_off_what_it_left_behind(body: Body) -> None:
    """The canary of the private names of Trio that this takes."""
    ended = []

    async def watched() -> str:
        try:
            return await body()
        except BaseException as error:
            ended.append(type(error))
            raise

    async def program() -> None:
        async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
            agent = await runtime.start_agent(
                model="script/m", tools=[tool_of(watched, timeout=0.1)]
            )
            agent._opening.patience.shorten(0.1)
            await agent.ask("go")

    before = time.monotonic()
    trio.run(program)
    assert time.monotonic() - before < 5
    assert ended == [BrokenOff]


@pytest.mark.parametrize("kind", ["session_start", "pre_step", "turn_stop", "prompt_submit"])
async def test_a_seam_that_does_not_stop_holds_no_cancel(
    kind: str, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def hold(*_given: object) -> Any:
        await shielded()

    async with (
        refold.open("memory:", providers=[Script([Say("fine")])]) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start_agent(model="script/m", seams=Seams(**{kind: (hold,)}))
        nursery.start_soon(agent.ask, "go")
        await trio.sleep(1)
        await agent.cancel()
        assert trio.current_time() == 1 + STOP_SECONDS
        turns = of_type(stored_events(runtime, agent.session_id), "turn/end")
        assert turns[0].reason == EndReason("aborted", reason="user")
        assert f"{kind} of session {agent.session_id} did not stop" in caplog.text


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_shielded_tool_is_told_at_once_that_it_would_wait_for_itself(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    told: list[AskCycle] = []

    async def end_myself() -> str:
        with trio.CancelScope(shield=True):
            try:
                await getattr(agents[0], how)()
            except AskCycle as cycle:
                told.append(cycle)
        return "told"

    agents = []
    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        agents.append(await runtime.start_agent(model="script/m", tools=[tool_of(end_myself)]))
        turn = await agents[0].ask("go")
        assert (turn.text, turn.reason.kind) == ("fine", "completed"), "nothing was cancelled"
    assert trio.current_time() == 0
    assert "would wait for itself" in str(told[0])


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_tool_may_end_its_own_turn_where_it_can_be_cancelled(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def end_myself() -> str:
        await getattr(agents[0], how)()
        return "never"

    agents = []
    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        agents.append(await runtime.start_agent(model="script/m", tools=[tool_of(end_myself)]))
        turn = await agents[0].ask("go")
        assert turn.reason.kind == {"cancel": "aborted", "close": "disposed"}[how]
        async for _ in agents[0].events():
            if how == "cancel":
                await agents[0].close()
    assert trio.current_time() == 0


class Stale:
    """A cancellation of a scope that is over, raised once more."""

    error: BaseException | None = None

    @classmethod
    def get(cls) -> BaseException:
        assert cls.error is not None
        return cls.error


async def make_stale() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            Stale.error = cancelled
            raise


ESCAPES: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "asyncio.CancelledError": asyncio.CancelledError,
    "stale Cancelled": Stale.get,
    "a group": lambda: BaseExceptionGroup("both", [SystemExit(3), OSError("disk")]),
}


@pytest.mark.parametrize("where", ["async", "plain", "thread"])
@pytest.mark.parametrize("escape", ESCAPES)
async def test_what_is_no_exception_ends_a_call_of_a_tool_and_nothing_else(
    where: str, escape: str
) -> None:
    await make_stale()
    make = ESCAPES[escape]

    async def body() -> str:
        await trio.lowlevel.checkpoint()
        raise make()

    def plain() -> str:
        raise make()

    made = {
        "async": lambda: tool_of(body),
        "plain": lambda: refold.tool(name="it")(plain),
        "thread": lambda: refold.tool(name="it", isolation="thread")(plain),
    }
    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        other = await runtime.start_agent(model="script/m")
        agent = await runtime.start_agent(model="script/m", tools=[made[where]()])
        with trio.fail_after(5):
            assert (await agent.ask("go")).text == "fine"
        (result,) = results(runtime, agent)
        assert result.error.code == "TOOL_FAILED"
        named = escape.removeprefix("stale ").removeprefix("asyncio.")
        assert ("SystemExit" if escape == "a group" else named) in text_of(result.content)
        assert not other.stopped.is_set()


@pytest.mark.parametrize("escape", ESCAPES)
async def test_what_is_no_exception_ends_the_turn_of_a_seam_and_nothing_else(escape: str) -> None:
    await make_stale()
    make = ESCAPES[escape]

    async def seam(_view: object) -> None:
        raise make()

    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(seam,)))
        with trio.fail_after(5):
            turn = await agent.ask("go")
        assert (turn.reason.kind, turn.reason.code) == ("error", "UNKNOWN")
        assert not agent.stopped.is_set()


@pytest.mark.parametrize("escape", ESCAPES)
async def test_what_is_no_exception_in_an_observer_or_listener_concerns_nobody(
    escape: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make_stale()
    make = ESCAPES[escape]

    def fail(_given: object) -> None:
        raise make()

    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        agent.log.observe(fail)
        agent.listen(fail)
        with trio.fail_after(5), caplog.at_level(logging.CRITICAL):
            assert (await agent.ask("go")).text == "fine"
        assert agent.snapshot().observer_errors > 0


def strike(*_given: object) -> Any:
    raise KeyboardInterrupt


async def strike_later(*_given: object) -> Any:
    await trio.lowlevel.checkpoint()
    raise KeyboardInterrupt


async def strike_in_a_body() -> str:
    return str(await strike_later())


async def strike_in_a_nursery() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strike_later)
        await trio.sleep(10)
    return "never"


async def strike_in_an_open_scope() -> str:
    trio.CancelScope().__enter__()
    return str(await strike_later())


def strike_plainly() -> str:
    return str(strike())


STRUCK: dict[str, Callable[[], refold.Tool]] = {
    "nursery": lambda: tool_of(strike_in_a_nursery),
    "open scope": lambda: tool_of(strike_in_an_open_scope),
    "plain": lambda: refold.tool(name="it")(strike_plainly),
    "thread": lambda: refold.tool(name="it", isolation="thread")(strike_plainly),
    "tool": lambda: tool_of(strike_in_a_body),
}


@pytest.mark.parametrize("where", [*STRUCK, "seam", "observer", "listener"])
def test_a_keyboard_interrupt_in_code_of_users_leaves_as_itself(where: str, tmp_path: Path) -> None:
    tools = [STRUCK[where]()] if where in STRUCK else []
    sessions = []

    async def program() -> None:
        async with refold.open(tmp_path, providers=[Script(CALL_IT)]) as runtime:
            other = await runtime.start_agent(model="script/m")
            seams = Seams(pre_step=(strike_later,)) if where == "seam" else Seams()
            agent = await runtime.start_agent(model="script/m", tools=tools, seams=seams)
            if where == "observer":
                agent.log.observe(strike)
            if where == "listener":
                agent.listen(strike)
            sessions.append(agent.session_id)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.wait_idle)
                await agent.ask("go")
                await trio.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        trio.run(program)

    async def look() -> None:
        async with refold.open(tmp_path, providers=[Script(CALL_IT)]) as runtime:
            kinds = [event.type for event in stored_events(runtime, sessions[0])]
            assert kinds.count("turn/start") == kinds.count("turn/end")
            assert kinds[-1] == "session/released"
            await runtime.resume(sessions[0], model="script/m", tools=())

    trio.run(look)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_keyboard_interrupt_in_a_body_that_was_left_behind_leaves_as_itself(
    grouped: bool,
) -> None:
    """Nobody waits for such a body any more, but the program does hear of it."""

    was_left = trio.Event()

    async def late() -> str:
        with trio.CancelScope(shield=True):
            await was_left.wait()
        if grouped:
            raise BaseExceptionGroup("beside others", [KeyboardInterrupt(), ValueError()])
        raise KeyboardInterrupt

    async def program() -> None:
        async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
            agent = await runtime.start_agent(model="script/m", tools=[tool_of(late, timeout=0.1)])
            agent._opening.patience.shorten(0.1)
            await agent.ask("go")
            was_left.set()
            await trio.sleep(10)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(program)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_system_exit_of_the_program_leaves_as_itself() -> None:
    async def program() -> None:
        async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
            await runtime.start_agent(model="script/m")
            async with trio.open_nursery():
                raise SystemExit(3)

    with pytest.raises(SystemExit):
        trio.run(program)


async def test_what_a_seam_sets_in_its_context_a_tool_sees() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    async def name(_log: object, _source: object) -> None:
        who.set("the seam")

    async def tell() -> str:
        await trio.lowlevel.checkpoint()
        return who.get()

    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[tool_of(tell)], seams=Seams(session_start=(name,))
        )
        await agent.ask("go")
        assert text_of(results(runtime, agent)[0].content) == "the seam"
    assert who.get() == "nobody"


async def test_followers_end_after_a_close_that_was_cancelled() -> None:
    async with refold.open("memory:", providers=[Script(CALL_IT)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("go")
        with trio.CancelScope() as scope:
            scope.cancel()
            await agent.close()
        with trio.fail_after(5):
            assert [event.type async for event in agent.events()][-1] == "session/released"
        with pytest.raises(refold.ActorStopped):
            await agent.ask("anyone there?")


async def test_followers_of_a_parked_agent_end_when_it_is_closed() -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("go")
        await agent.park()
        with trio.CancelScope() as scope:
            scope.cancel()
            await agent.close()
        with trio.fail_after(5):
            assert [event.type async for event in agent.events()][-1] == "session/released"


async def test_the_first_reason_of_an_end_stands_and_a_log_says_why_it_was_given_back() -> None:
    progress, first = LogProgress(), ValueError("first")
    progress.end(first)
    progress.end(ValueError("later"))
    assert progress.ended is first
    async with refold.open("memory:", providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await agent.park()
        await agent.close()
        released = of_type(stored_events(runtime, agent.session_id), "session/released")
        assert [one.reason for one in released] == ["parked"]


async def test_a_runtime_that_was_left_opens_nothing_and_locks_nothing(tmp_path: Path) -> None:
    async with refold.open(tmp_path, providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("go")
    for call in (
        lambda: runtime.start_agent(model="script/m", session_id="new"),
        lambda: runtime.resume("s"),
        lambda: runtime.fork("s"),
        lambda: runtime.delete("s"),
    ):
        with pytest.raises(refold.RefoldError, match="this runtime is closed"):
            await call()
    async with refold.open(tmp_path, providers=[Script(lambda _: Say("fine"))]) as again:
        await again.resume("s")
        await again.start_agent(model="script/m", session_id="new")


async def test_an_agent_cannot_be_used_from_another_trio_run() -> None:
    refused: list[refold.RefoldError] = []

    def use(agent: refold.Agent, runtime: refold.Runtime) -> None:
        async def follow() -> None:
            async for _ in agent.events():
                pass

        async def all_ways() -> None:
            for call in (
                lambda: agent.ask("hello"),
                lambda: agent.prompt("hello"),
                agent.cancel,
                agent.close,
                agent.park,
                agent.wait_idle,
                follow,
                lambda: runtime.resume("s"),
                runtime.close,
                runtime.list,
            ):
                with pytest.raises(refold.RefoldError, match="another Trio run") as error:
                    await call()
                refused.append(error.value)

        trio.run(all_ways)
        asyncio.run(all_ways())

    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        with trio.fail_after(20):
            await trio.to_thread.run_sync(use, agent, runtime)
            assert (await agent.ask("still there?")).text == "fine"
    assert len(refused) == 20


@pytest.mark.parametrize("where", ["folder", "sqlite:///{}/file.db"])
async def test_200_idle_agents_are_closed_side_by_side(where: str, tmp_path: Path) -> None:
    address = where.format(tmp_path) if "{" in where else tmp_path / where
    async with refold.open(address, providers=[Script(lambda _: Say("fine"))]) as runtime:
        agents = [await runtime.start_agent(model="script/m") for _ in range(200)]
        async with trio.open_nursery() as nursery:
            for agent in agents:
                nursery.start_soon(agent.ask, "hello")
        assert isinstance(runtime.store, EmbeddedStore)
        before = runtime.store.statistics.syncs
        await runtime.close()
        assert runtime.store.statistics.syncs - before <= 20, "one by one it is 200"


async def test_a_cancelled_opening_is_undone_and_can_be_done_again(tmp_path: Path) -> None:
    async with refold.open(tmp_path, providers=[Script(lambda _: Say("fine"))]) as runtime:
        first = await runtime.start_agent(model="script/m", session_id="s")
        await first.ask("hello")
        await first.close()
        for call in (runtime.resume, runtime.fork):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call("s")
            assert scope.cancelled_caught
        assert await runtime.list() == ["s"], "no fork is left that nobody knows of"
        assert (await (await runtime.resume("s", tools=())).ask("again")).text == "fine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
async def test_what_ends_the_block_leaves_as_itself_also_where_there_is_no_time_to_close(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    for name in ("INTERRUPTED_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(f"refold.actors.leaving.{name}", 0.0)
    with pytest.raises(error):
        async with refold.open("memory:", providers=[Script([])]) as runtime:
            await runtime.start_agent(model="script/m")
            raise error


async def test_sessions_that_are_not_closed_in_time_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.actors.leaving.CLOSE_SECONDS", 0.0)
    with pytest.raises(NotClosed, match="not closed in time: 'late'; their logs end as after a"):
        async with refold.open("memory:", providers=[Script([])]) as runtime:
            await runtime.start_agent(model="script/m", session_id="late")
