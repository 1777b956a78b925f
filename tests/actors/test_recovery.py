"""What a crash interrupts is answered once, by a turn of recovery; parked agents come back.

The loop is crashed on purpose on a virtual clock; a crash of the whole program is a copy of its
store, made in the middle of a turn and resumed elsewhere.
"""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

import refold
from refold import Call, Delay, Hang, Say, Script, Seams
from refold.actors.kernel.errors import RestartLimit
from refold.actors.request.invariants import InvariantViolation
from refold.actors.turn import agent_loop
from refold.actors.turn.step import LoopInstance
from refold.actors.turn.turn import Cancel, TurnNotes, run_turn
from refold.runtime.envelope import Event
from refold.runtime.events import EndReason, TurnEnd, TurnStart
from refold.runtime.messages import USER, Source
from refold.runtime.storage.errors import LogFailed
from tests.agents import (
    assert_sound,
    count,
    dispatch_of,
    stored_events,
)

RECOVERIES = 3
"""The default."""

INTERRUPTED, COMPLETED = EndReason("interrupted"), EndReason("completed")
GAVE_UP = EndReason("gave-up")

Crash: TypeAlias = Callable[[LoopInstance, Cancel], Awaitable[None]]


class Tripped(Exception):
    """A bug in the loop."""


async def step_of(instance: LoopInstance) -> None:
    tally = instance.log.live.answers.current
    assert tally is not None
    await instance.step(tally.turn, [], None if tally.trigger.kind == "recovery" else tally.offered)


async def at_once(_instance: LoopInstance, _cancel: Cancel) -> None:
    raise Tripped


async def after_a_step(instance: LoopInstance, _cancel: Cancel) -> None:
    await step_of(instance)
    raise Tripped


async def after_five_seconds(instance: LoopInstance, _cancel: Cancel) -> None:
    with trio.move_on_after(5):
        await step_of(instance)
    raise Tripped


def crash_turns(patch: pytest.MonkeyPatch, *crashes: Crash) -> None:
    """Crash the loop in its next turns, each in its own way."""
    left = iter(crashes)

    async def run_or_crash(
        instance: LoopInstance, cancel: Cancel, mine: frozenset[int] | None
    ) -> TurnNotes:
        crash = next(left, None)
        if crash is not None:
            await crash(instance, cancel)
        return await run_turn(instance, cancel, mine)

    patch.setattr(agent_loop, "run_turn", run_or_crash)


def turns(events: list[Event]) -> list[tuple[str, str]]:
    """What set each turn off and why it ended."""
    starts = [event.data for event in events if isinstance(event.data, TurnStart)]
    ends = [event.data for event in events if isinstance(event.data, TurnEnd)]
    pairs = zip(starts, ends, strict=True)
    return [(start.trigger.kind, end.reason.kind) for start, end in pairs]


def sources(events: list[Event]) -> list[Source]:
    return [event.data.trigger.source for event in events if isinstance(event.data, TurnStart)]


@pytest.mark.parametrize(
    ("first", "crash"),
    [
        ([Say("lost"), Hang()], after_five_seconds),
        (Call("count", {"upto": 2}), after_a_step),
        (Call("wait"), after_five_seconds),
    ],
    ids=["in a stream", "after a tool", "in a tool"],
)
async def test_a_crashed_loop_is_restarted_and_a_recovery_turn_answers_the_waiting_ask(
    first: Any,
    crash: Crash,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    @refold.tool
    async def wait() -> str:
        """Wait."""
        await trio.sleep(3600)
        return "waited"

    crash_turns(monkeypatch, crash)
    script = Script([first, Say("recovered"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        boss = await runtime.start_agent(model="script/m")
        agent = await runtime.start_agent(model="script/m", tools=[count, wait])
        seq = await boss.send(agent, "the question")
        turn = await agent.answer(seq)
        backoff = trio.current_time() - (5 if crash is after_five_seconds else 0)
        assert 0.5 <= backoff <= 1
        assert (turn.turn, turn.text, turn.reason) == (2, "recovered", COMPLETED)
        events = assert_sound(runtime, agent)
        assert turns(events) == [("message", "interrupted"), ("recovery", "completed")]
        assert sources(events) == [Source("agent", session=boss.session_id)] * 2
        assert script.bodies[1].count(b"the question") == 1
        (loop,) = [one for one in agent.snapshot().actors if "agent loop" in one.name]
        assert (loop.state, loop.restarts) == ("running", 1)
        assert (await agent.ask("and now?")).text == "fine"
        assert_sound(runtime, agent)


async def test_a_turn_that_had_answered_needs_no_recovery(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    crash_turns(monkeypatch, after_a_step)
    script = Script([Say("the answer"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("the question")
        assert (turn.turn, turn.text, turn.reason) == (1, "the answer", INTERRUPTED)
        assert (await agent.ask("and now?")).text == "fine"
        kinds = [kind for kind, _ in turns(assert_sound(runtime, agent))]
        assert kinds == ["message", "message"]


async def test_a_turn_that_had_claimed_nothing_needs_no_recovery(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    crash_turns(monkeypatch, at_once)
    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        assert (turn.turn, turn.text) == (2, "fine")
        events = assert_sound(runtime, agent)
        assert turns(events) == [("message", "interrupted"), ("message", "completed")]


async def test_what_comes_while_the_loop_is_down_has_a_turn_of_its_own_after_the_recovery(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    crash_turns(monkeypatch, after_a_step)
    script = Script([Call("gone"), Say("recovered"), Say("fine")])
    answered: dict[str, refold.Turn] = {}
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def ask(text: str) -> None:
            answered[text] = await agent.ask(text, join=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "first")
            await trio.sleep(0.25)
            nursery.start_soon(ask, "second")
            await agent.prompt("third")
        events = assert_sound(runtime, agent)
        assert [kind for kind, _ in turns(events)] == ["message", "recovery", "message"]
        assert {text: turn.turn for text, turn in answered.items()} == {"first": 2, "second": 3}
        assert b"second" not in script.bodies[1]
        assert script.bodies[2].count(b"second") == script.bodies[2].count(b"third") == 1


async def test_whoever_waits_for_an_idle_agent_waits_through_a_crash(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    crash_turns(monkeypatch, after_five_seconds)
    script = Script([Hang(), Say("recovered")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.wait_idle)
            nursery.start_soon(agent.ask, "hello")
            nursery.start_soon(agent.wait_idle)
            await trio.sleep(1)
            nursery.start_soon(agent.wait_idle)
        assert turns(assert_sound(runtime, agent))[-1] == ("recovery", "completed")


async def test_a_prompt_whose_turn_was_not_open_when_the_loop_crashed_has_it_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    calls: list[object] = []

    def trip_once(*arguments: Any) -> TurnStart:
        calls.append(arguments)
        if len(calls) == 1:
            raise Tripped
        return TurnStart(*arguments)

    monkeypatch.setattr(agent_loop, "TurnStart", trip_once)
    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        assert (await agent.ask("hello")).text == "fine"
        events = assert_sound(runtime, agent)
        assert [event.type for event in events].count("inbox/queued") == 1


async def test_recovery_turns_that_fail_are_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def after_a_step_and_a_while(instance: LoopInstance, _cancel: Cancel) -> None:
        await step_of(instance)
        await trio.sleep(30)
        raise Tripped

    crash_turns(monkeypatch, *[after_a_step_and_a_while] * (RECOVERIES + 1))
    script = Script([*[Call("gone")] * (RECOVERIES + 1), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")

        async def wait_for_the_answer() -> None:
            turn = await agent.answer(seq)
            assert (turn.turn, turn.reason) == (RECOVERIES + 1, GAVE_UP)

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(wait_for_the_answer)
        recovered = [("recovery", "interrupted")] * RECOVERIES
        assert turns(assert_sound(runtime, agent)) == [("message", "interrupted"), *recovered]
        assert (await agent.ask("and now?")).text == "fine"
        assert_sound(runtime, agent)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


async def test_too_many_crashes_end_the_session_and_every_ask_says_so(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    crash_turns(monkeypatch, *[after_a_step] * 4)
    script = Script([*[Call("gone")] * 4, Say("fine"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        other = await runtime.start_agent(model="script/m")
        for text in ("hello", "anyone there?"):
            with pytest.raises(refold.ActorCrashed) as crashed:
                await agent.ask(text)
            kinds = [type(cause) for cause in causes(crashed.value)]
            assert kinds[-2:] == [RestartLimit, Tripped]
        assert (await other.ask("hello")).text == "fine"
        again = await runtime.resume(agent.session_id)
        assert (await again.ask("and now?")).text == "fine"
        assert_sound(runtime, again)


def fatal_errors() -> list[Exception]:
    return [
        InvariantViolation("s", 0, "it does not add up", None),
        LogFailed("s", "Input/output error", 0),
    ]


@pytest.mark.parametrize("error", fatal_errors(), ids=lambda error: type(error).__name__)
async def test_a_loop_whose_log_or_checks_failed_is_not_restarted(
    error: Exception, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def fail(_instance: LoopInstance, _cancel: Cancel) -> None:
        raise error

    crash_turns(monkeypatch, fail)
    script = Script([Say("never said")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        with pytest.raises(refold.ActorCrashed) as crashed:
            await agent.ask("hello")
        assert error in causes(crashed.value)
        assert trio.current_time() == 0
        assert script.bodies == []


async def test_closing_while_the_loop_is_down_leaves_a_log_that_can_be_continued(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    crash_turns(monkeypatch, after_a_step)
    script = Script([Call("gone"), Say("recovered")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        await trio.sleep(0.25)
        await agent.close()
        assert (await agent.answer(seq)).reason == INTERRUPTED
        again = await runtime.resume(agent.session_id, continue_=True)
        assert (await again.answer(seq)).text == "recovered"
        assert_sound(runtime, again)


@asynccontextmanager
async def crashed_copy(folder: Path, script: Script, *prompts: str) -> AsyncIterator[str]:
    """A store at `folder / copy` as a program leaves it that dies while its model answers.

    The first prompt is claimed, the others are pending. Gives the session's id.
    """
    async with refold.open(folder / "first", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt(prompts[0], idempotency_key=prompts[0])
        await reached(agent, "request/sealed")
        for text in prompts[1:]:
            await agent.prompt(text, idempotency_key=text)
        shutil.copytree(folder / "first", folder / "copy")
    yield agent.session_id


async def reached(agent: refold.Agent, type_: str) -> None:
    async for event in agent.events():
        if event.type == type_:
            return


async def test_a_continued_session_recovers_and_starts_what_was_pending(tmp_path: Path) -> None:
    script = Script([Hang(), Say("recovered"), Say("fine")])
    async with (
        crashed_copy(tmp_path, script, "first", "second", "third") as session,
        refold.open(tmp_path / "copy", providers=[script]) as runtime,
    ):
        agent = await runtime.resume(session, continue_=True)
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        assert turns(events) == [
            ("message", "interrupted"),
            ("recovery", "completed"),
            ("message", "completed"),
        ]
        assert sources(events) == [USER] * 3
        assert b"second" not in script.bodies[1]
        assert [script.bodies[2].count(text) for text in (b"first", b"second", b"third")] == [1] * 3
        found = {text: await agent.ask(text, idempotency_key=text) for text in ("first", "third")}
        assert {text: turn.text for text, turn in found.items()} == {
            "first": "recovered",
            "third": "fine",
        }
        assert stored_events(runtime, session) == events


async def test_a_session_that_is_not_continued_leaves_what_is_pending_until_it_is_asked_for(
    tmp_path: Path,
) -> None:
    script = Script([Hang(), Say("fine"), Say("at last")])
    async with (
        crashed_copy(tmp_path, script, "first", "second") as session,
        refold.open(tmp_path / "copy", providers=[script]) as runtime,
    ):
        agent = await runtime.resume(session)
        await agent.wait_idle()
        assert len(script.bodies) == 1
        assert (await agent.ask("first", idempotency_key="first")).reason == INTERRUPTED
        assert (await agent.ask("third")).text == "fine"
        events = assert_sound(runtime, agent)
        assert turns(events) == [("message", "interrupted"), ("message", "completed")]
        assert b"second" not in script.bodies[1]
        assert (await agent.ask("second", idempotency_key="second")).text == "at last"


async def test_a_continued_session_that_was_closed_well_starts_what_was_pending(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Hang(), Say("recovered"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("first")
        await trio.sleep(1)
        seq = await agent.prompt("second")
        await agent.close()
        again = await runtime.resume(agent.session_id, continue_=True)
        assert (await again.answer(seq)).text == "fine"
        assert turns(assert_sound(runtime, again)) == [
            ("message", "disposed"),
            ("recovery", "completed"),
            ("message", "completed"),
        ]


async def test_asking_again_for_a_prompt_that_an_earlier_life_left_starts_its_turn(
    tmp_path: Path,
) -> None:
    script = Script([Hang(), Say("fine")])
    async with (
        crashed_copy(tmp_path, script, "first", "second") as session,
        refold.open(tmp_path / "copy", providers=[script]) as runtime,
    ):
        agent = await runtime.resume(session)
        with trio.fail_after(10):
            turn = await agent.ask("second", idempotency_key="second")
        assert (turn.turn, turn.text) == (2, "fine")
        assert_sound(runtime, agent)


async def test_a_program_that_dies_in_every_recovery_is_not_recovered_for_ever(
    tmp_path: Path,
) -> None:
    script = Script(lambda _body: Hang())
    place = tmp_path / "0"
    async with crashed_copy(tmp_path, script, "first") as session:
        shutil.copytree(tmp_path / "copy", place)
    for life in range(1, RECOVERIES + 1):
        place = tmp_path / str(life)
        async with refold.open(tmp_path / str(life - 1), providers=[script]) as runtime:
            agent = await runtime.resume(session, continue_=True)
            seals = 0
            async for event in agent.events():
                seals += event.type == "request/sealed"
                if seals == life + 1:
                    break
            shutil.copytree(tmp_path / str(life - 1), place)
    async with refold.open(place, providers=[script]) as runtime:
        agent = await runtime.resume(session, continue_=True)
        with trio.fail_after(10):
            assert (await agent.ask("first", idempotency_key="first")).reason == GAVE_UP
            await agent.wait_idle()
        kinds = [kind for kind, _ in turns(assert_sound(runtime, agent))]
        assert kinds == ["message", *["recovery"] * RECOVERIES]


async def parked(agent: refold.Agent) -> None:
    """Park an agent that has nothing to do any more."""
    await agent.wait_idle()
    await agent.park()
    assert agent.parked


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_a_parked_agent_lets_go_of_its_history_and_of_its_request() -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("a long story " * 10_000)
        await agent.inject("for later")
        encoder, message = dispatch_of(agent)._encoder, agent.messages()[0]
        held: list[weakref.ref[Any]] = [weakref.ref(encoder), weakref.ref(message)]
        next_seq = agent.log.live.session.next_seq
        del encoder, message
        await parked(agent)
        gc.collect()
        assert [ref() for ref in held] == [None, None]
        assert agent.log.live.session.next_seq == next_seq + 1  # `session/released`
        assert agent.snapshot().pending == 1
        assert len(agent.messages()) == 2
        assert (await agent.ask("and then?")).text == "yes"


async def test_a_parked_agent_has_no_task_and_no_descriptor(tmp_path: Path) -> None:
    script = Script(lambda _body: Say("fine"))
    async with refold.open(tmp_path, providers=[script], park_after=None) as runtime:
        other = await runtime.start_agent(model="script/m")
        await other.ask("hello")
        before = (tasks(), open_files())
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        assert (tasks() > before[0], open_files() > before[1]) == (True, True)
        await parked(agent)
        await reach(lambda: tasks() == before[0])
        assert agent.snapshot().actors == ()
        assert (tasks(), open_files()) == before
        assert (await agent.ask("and now?")).text == "fine"
        assert_sound(runtime, agent)


async def reach(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds."""
    with trio.fail_after(10):
        while not condition():
            await trio.lowlevel.checkpoint()


Use: TypeAlias = Callable[[refold.Agent], Awaitable[object]]

USES: dict[str, Use] = {
    "ask": lambda agent: agent.ask("more"),
    "prompt": lambda agent: agent.prompt("more"),
    "answer": lambda agent: agent.answer(1),
    "steer": lambda agent: agent.steer("more"),
    "inject": lambda agent: agent.inject("more"),
    "wait_idle": lambda agent: agent.wait_idle(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_every_call_wakes_a_parked_agent(
    use: Use, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("one"), Say("two"), Say("three")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await parked(agent)
        await use(agent)
        assert not agent.parked
        await agent.wait_idle()
        assert (await agent.ask("and now?")).reason == COMPLETED
        assert_sound(runtime, agent)


async def test_a_parked_agent_keeps_its_id_messages_keys_answers_and_listeners(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two")])
    heard: list[str] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        agent.listen(lambda chunk: heard.append(type(chunk).__name__))
        first = await agent.ask("hello", idempotency_key="k")
        session, messages, chunks = agent.session_id, agent.messages(), len(heard)
        await parked(agent)
        assert (agent.session_id, agent.messages()) == (session, messages)
        await agent.cancel()
        assert agent.parked, "there was nothing to cancel"
        assert await agent.ask("hello", idempotency_key="k") == first
        assert len(script.bodies) == 1
        assert (await agent.ask("more")).text == "two"
        assert heard[chunks:] == heard[:chunks]
        headers = [e.data for e in assert_sound(runtime, agent) if e.type == "request/header"]
        assert [header.reason for header in headers] == ["initial", "resume"]


@pytest.mark.parametrize("durable", [True, False])
async def test_a_subscription_goes_on_across_parking_without_gap_or_double(
    durable: bool, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script(lambda _body: Say("fine"))
    seen: list[int] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def follow() -> None:
            seen.extend([event.seq async for event in agent.events(durable=durable)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for _ in range(3):
                await agent.ask("hello")
                await parked(agent)
            await agent.close()
        assert seen == list(range(len(assert_sound(runtime, agent))))


async def test_an_agent_with_work_or_users_is_not_parked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(10), Say("one")], [Delay(10), Say("two")]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("hello")
        await agent.park()
        assert not agent.parked, "a prompt is pending"
        await trio.sleep(5)
        await agent.prompt("more")
        await agent.park()
        assert not agent.parked, "a turn runs"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.wait_idle)
            await trio.sleep(1)
            await agent.park()
            assert not agent.parked, "somebody waits"
        await parked(agent)
        assert trio.current_time() == 20


async def test_what_starts_no_turn_does_not_keep_an_agent_awake(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stop(_view: refold.TurnView) -> bool:
        await agent.steer("by the way")
        return True

    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(turn_stop=(stop,)))
        await agent.ask("hello")
        await agent.inject("for later")
        await parked(agent)
        await agent.wait_idle()
        assert len(script.bodies) == 1
        await agent.ask("and now?")
        for text in (b"by the way", b"for later"):
            assert script.bodies[1].count(text) == 1
        assert_sound(runtime, agent)


async def test_an_agent_that_nobody_uses_is_parked_after_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), [Delay(500), Say("two")]])
    async with refold.open("memory:", providers=[script], park_after=100) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await trio.sleep(99)
        assert agent.snapshot().actors != ()
        await trio.sleep(30)
        assert agent.snapshot().actors == ()
        await agent.ask("a long one")
        assert agent.snapshot().actors != ()


async def test_calls_that_come_at_once_wake_an_agent_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda _body: Say("fine"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await parked(agent)
        async with trio.open_nursery() as nursery:
            for use in USES.values():
                nursery.start_soon(use, agent)
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        owners = [event.data.term for event in events if event.type == "session/owner"]
        assert owners == [1, 2]


async def test_closing_an_agent_while_it_wakes_leaves_nothing_running(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda _body: Say("fine"))
    outcomes: list[str] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await parked(agent)
        asleep = tasks()

        async def ask() -> None:
            try:
                outcomes.append((await agent.ask("anyone there?")).reason.kind)
            except refold.ActorStopped:
                outcomes.append("stopped")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while agent._opening.ended:
                await trio.lowlevel.checkpoint()
            await agent.close()
        assert outcomes in (["stopped"], ["disposed"])
        assert tasks() == asleep
        again = await runtime.resume(agent.session_id)
        assert (await again.ask("and now?")).text == "fine"
        assert_sound(runtime, again)


async def test_a_caller_that_is_cancelled_while_it_wakes_an_agent_leaves_it_awake(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await parked(agent)
        acquire = runtime.store.acquire

        async def acquire_and_cancel(session_id: str) -> Any:
            grant = await acquire(session_id)
            nursery.cancel_scope.cancel()
            return grant

        monkeypatch.setattr(runtime.store, "acquire", acquire_and_cancel)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.ask, "never sent")
        assert nursery.cancel_scope.cancelled_caught
        assert (await agent.ask("and now?")).text == "two"
        assert b"never sent" not in script.bodies[1]
        assert_sound(runtime, agent)
