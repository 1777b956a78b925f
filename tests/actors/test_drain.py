"""A polite end loses nothing: turns finish first, or are owed to the next life."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import refold
from refold import Call, Delay, Hang, Say, Script
from refold.actors.leaving import Draining
from refold.actors.turn.agent_loop import CUT_OFF
from refold.actors.turn.prompt_wait import NothingToRetry
from refold.runtime.events import EndReason, TurnEnd, TurnStart
from tests.agents import assert_sound, count, stored_events


def turns(events: list[Any]) -> list[tuple[str, str]]:
    """What set each turn off and why it ended."""
    starts = [event.data for event in events if isinstance(event.data, TurnStart)]
    ends = [event.data for event in events if isinstance(event.data, TurnEnd)]
    pairs = zip(starts, ends, strict=True)
    return [(start.trigger.kind, end.reason.kind) for start, end in pairs]


# What a polite end cut is owed


@pytest.mark.parametrize("first", [[Delay(9), Say("late")], Call("wait"), [Say("half a"), Hang()]])
async def test_a_turn_that_its_agent_s_end_cut_is_answered_in_the_next_life(
    first: Any, autojump_clock: trio.testing.MockClock
) -> None:
    @refold.tool
    async def wait() -> str:
        """Wait."""
        await trio.sleep(3600)
        return "waited"

    script = Script([first, Say("42"), Say("more")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[wait])
        seq = await agent.prompt("the question", idempotency_key="q")
        await trio.sleep(1)
        await agent.close()
        again = await runtime.resume(agent.session_id, continue_=True, tools=[wait])
        turn = await again.ask("the question", idempotency_key="q")
        assert (turn.text, turn.prompts) == ("42", (seq,))
        events = assert_sound(runtime, again)
        assert turns(events) == [("message", "disposed"), ("recovery", "completed")]
        assert script.bodies[1].count(b"the question") == 1
        # The model is never shown its own last word as the last one.
        cut_off = sum(CUT_OFF in str(event.data) for event in events)
        assert cut_off == (isinstance(first, list) and isinstance(first[0], Say))
        assert (await again.ask("and?")).text == "more"


async def test_a_turn_that_had_answered_when_it_was_cut_is_owed_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def linger(_: refold.TurnView) -> None:
        await trio.sleep(3600)

    seams = refold.Seams(turn_continuation=(linger,))
    async with refold.open("memory:", providers=[Script([Say("whole")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=seams)
        seq = await agent.prompt("hello")
        await trio.sleep(1)
        await agent.close()
        again = await runtime.resume(agent.session_id, continue_=True)
        turn = await again.answer(seq)
        assert (turn.text, turn.reason.kind) == ("whole", "disposed")


async def test_polite_ends_in_a_row_burn_no_fuse(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([*[Hang()] * 6, Say("at last")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        for _ in range(6):
            await trio.sleep(1)
            await agent.close()
            agent = await runtime.resume(agent.session_id, continue_=True)
        assert (await agent.answer(seq)).text == "at last"
        assert_sound(runtime, agent)


# How often


async def killed(store: Path, copy: Path, script: Script, **options: Any) -> tuple[str, int]:
    """A life in which a turn begins, and the copy that a kill would leave of it."""
    async with refold.open(store, providers=[script]) as runtime:
        if await runtime.list():
            (session,) = await runtime.list()
            agent = await runtime.resume(session, continue_=True, **options)
        else:
            agent = await runtime.start_agent(model="script/m", **options)
        seq = await agent.prompt("hello", idempotency_key="k")
        before = len(script.bodies)
        with trio.move_on_after(1):
            while len(script.bodies) == before:  # noqa: ASYNC110 - seen from outside
                await trio.sleep(0.01)
        shutil.copytree(store, copy)
        return agent.session_id, seq


@pytest.mark.parametrize("recoveries", [0, 1, 2])
async def test_an_agent_gives_up_after_as_many_recoveries_as_it_is_told_and_may_be_told_to_retry(
    recoveries: int, tmp_path: Path
) -> None:
    hanging = Script(lambda _: Hang())
    places = [(tmp_path / str(life), tmp_path / str(life + 1)) for life in range(recoveries + 1)]
    lives = [await killed(*place, hanging, recoveries=recoveries) for place in places]
    session, seq = lives[-1]
    script = Script([Say("the answer"), Say("fine")])
    async with refold.open(tmp_path / str(recoveries + 1), providers=[script]) as runtime:
        agent = await runtime.resume(session, continue_=True, recoveries=recoveries)
        turn = await agent.ask("hello", idempotency_key="k")
        assert (turn.reason, turn.prompts) == (EndReason("gave-up"), (seq,))
        assert "gave-up" not in str([event.data for event in stored_events(runtime, session)])
        assert (await agent.retry(seq)).text == "the answer"
        assert (await agent.answer(seq)).text == "the answer"
        with pytest.raises(NothingToRetry, match=f"seq {seq} can be retried"):
            await agent.retry(seq)
        assert (await agent.ask("and?")).text == "fine"
        assert turns(assert_sound(runtime, agent))[-2:] == [
            ("recovery", "completed"),
            ("message", "completed"),
        ]


async def test_what_was_given_up_stays_so_after_other_turns(tmp_path: Path) -> None:
    session, seq = await killed(tmp_path / "a", tmp_path / "b", Script([Hang()]), recoveries=0)
    async with refold.open(tmp_path / "b", providers=[Script([Say("fine")])]) as runtime:
        agent = await runtime.resume(session, continue_=True, recoveries=0)
        assert (await agent.ask("another")).text == "fine"
        assert (await agent.answer(seq)).reason.kind == "gave-up"
        with pytest.raises(NothingToRetry):
            await agent.retry(seq)


async def test_only_what_was_cut_can_be_retried(autojump_clock: trio.testing.MockClock) -> None:
    async with refold.open("memory:", providers=[Script([[Delay(5), Say("a")]])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        with pytest.raises(refold.NoSuchPrompt):
            await agent.retry(seq + 100)
        for _ in range(2):
            with pytest.raises(NothingToRetry):
                await agent.retry(seq)
            await agent.wait_idle()


@pytest.mark.parametrize("given", [-1, 1.0, True, "3", None])
async def test_the_number_of_recoveries_is_a_whole_number(given: Any) -> None:
    async with refold.open("memory:", providers=[Script([])]) as runtime:
        with pytest.raises(refold.InvalidOption, match="'recoveries'"):
            await runtime.start_agent(model="script/m", recoveries=given)


# Draining


async def test_leaving_in_peace_lets_turns_finish_and_keeps_what_waits(tmp_path: Path) -> None:
    slow = [[Delay(0.3), Call("count", {"upto": 2})], [Delay(0.3), Say("done")]]
    script = Script([*slow, Say("next")])
    async with refold.open(tmp_path, providers=[script], drain=60) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count])
        idle = await runtime.start_agent(model="script/m")
        first = await agent.prompt("first")
        while not agent.snapshot().running:  # noqa: ASYNC110 - seen from outside
            await trio.sleep(0.01)
        second = await agent.prompt("second")
    async with refold.open(tmp_path, providers=[script]) as runtime:
        again = await runtime.resume(agent.session_id, tools=[count])
        assert (await again.answer(first)).text == "done"
        assert [one.seq for one in again.pending()] == [second]
        await again.release()
        assert (await again.answer(second)).text == "next"
        assert turns(assert_sound(runtime, again)) == [("message", "completed")] * 2
        assert idle.closed


async def test_nothing_new_is_taken_while_it_drains(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([[Delay(9), Say("done")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        other = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("first")
        await trio.sleep(1)
        waiting = await agent.prompt("second")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.drain, 60)
            await trio.testing.wait_all_tasks_blocked()
            refused: list[Callable[[], Awaitable[object]]] = [
                lambda: agent.ask("a"),
                lambda: agent.prompt("a"),
                lambda: agent.steer("a"),
                lambda: agent.inject("a"),
                lambda: agent.edit(waiting, "a"),
                lambda: other.prompt("a"),
                lambda: other.send(agent, "a"),
                lambda: runtime.start_agent(model="script/m"),
                lambda: runtime.fork(other.session_id),
                lambda: runtime.resume("x"),
            ]
            for call in refused:
                with pytest.raises(Draining, match="takes nothing new"):
                    await call()
            await agent.remove(waiting)
        assert (await agent.answer(seq)).text == "done"
        assert await runtime.drain(0) == ()
        assert [event.type for event in stored_events(runtime, agent.session_id)].count(
            "inbox/queued"
        ) == 2


async def test_who_does_not_finish_is_named_and_owed_a_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with refold.open(tmp_path, providers=[Script([Hang()])], drain=0.2) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="slow")
        seq = await agent.prompt("hello")
        while not agent.snapshot().running:  # noqa: ASYNC110 - seen from outside
            await trio.sleep(0.01)
    assert "session slow did not finish within 0.2 s" in caplog.text
    async with refold.open(tmp_path, providers=[Script([Say("there")])]) as runtime:
        again = await runtime.resume("slow", continue_=True)
        assert (await again.answer(seq)).text == "there"


class Boom(Exception):
    pass


@pytest.mark.parametrize("end", [Boom(), KeyboardInterrupt(), "cancelled"])
async def test_only_peace_is_drained(end: Any, autojump_clock: trio.testing.MockClock) -> None:
    async def live() -> None:
        async with refold.open("memory:", providers=[Script([Hang()])], drain=60) as runtime:
            agent = await runtime.start_agent(model="script/m")
            await agent.prompt("hello")
            await trio.sleep(1)
            if isinstance(end, BaseException):
                raise end
            scope.cancel()
            await trio.sleep_forever()

    started, scope = trio.current_time(), trio.CancelScope()
    with scope:
        if isinstance(end, str):
            await live()
        else:
            with pytest.raises(type(end)) as raised:
                await live()
            assert raised.value is end
    assert trio.current_time() - started == pytest.approx(1, abs=0.1)


async def test_a_drain_that_is_cancelled_ends_and_the_block_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agents: list[refold.Agent] = []
    with trio.move_on_after(5):
        async with refold.open("memory:", providers=[Script([Hang()])], drain=60) as runtime:
            agents.append(await runtime.start_agent(model="script/m"))
            await agents[0].prompt("hello")
            await trio.sleep(1)  # a turn is in hand then
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert agents[0].closed


@pytest.mark.parametrize("given", [-1, True, "30", float("nan")])
async def test_how_long_it_drains_is_a_number_of_seconds(given: Any) -> None:
    with pytest.raises(refold.InvalidArgument, match="drain"):
        async with refold.open("memory:", drain=given):
            pass
    async with refold.open("memory:") as runtime:
        with pytest.raises(refold.InvalidArgument, match="seconds"):
            await runtime.drain(given)


# SIGTERM


async def test_sigterm_drains_and_ends_the_block_as_if_it_had_returned(tmp_path: Path) -> None:
    script = Script([[Delay(0.3), Say("done")], Say("no")])
    async with refold.open(tmp_path, providers=[script], drain=60) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGTERM)
        while True:
            await trio.sleep(0.01)
            try:
                await agent.prompt("more")
            except Draining:
                break
        assert (await agent.answer(seq)).text == "done"
        with trio.fail_after(60):
            await trio.sleep(61)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert agent.closed


async def test_a_second_sigterm_cuts_the_waiting_short(tmp_path: Path) -> None:
    async with refold.open(tmp_path, providers=[Script([Hang()])], drain=60) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("hello")
        for _ in range(2):
            await trio.sleep(0.2)
            signal.raise_signal(signal.SIGTERM)
        with trio.fail_after(20):
            await trio.sleep_forever()


async def test_a_handler_of_the_program_s_own_stays(tmp_path: Path) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        mine = signal.getsignal(signal.SIGTERM)
        async with refold.open(tmp_path, drain=1):
            await trio.testing.wait_all_tasks_blocked()
            assert signal.getsignal(signal.SIGTERM) is mine
            signal.raise_signal(signal.SIGTERM)
            with trio.fail_after(5):
                await anext(signals)


async def test_outside_of_the_main_thread_no_signal_is_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with refold.open(tmp_path, drain=1):
            await trio.testing.wait_all_tasks_blocked()

    await trio.to_thread.run_sync(trio.run, run)
