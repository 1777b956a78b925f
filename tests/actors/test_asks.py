"""One question, one turn, one answer; and calling off what nobody waits for any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import refold
from refold import Delay, Hang, Say, Script, Seams
from refold.actors.turn.prompt_wait import NoSuchPrompt, PromptRemoved
from refold.runtime.envelope import Event
from refold.runtime.events import EndReason, InboxQueued, UserMessage
from refold.runtime.messages import text_of
from tests.agents import assert_sound, of_type, stored_events

COMPLETED = EndReason("completed")


def echo(body: Any) -> Any:
    """An answer that takes ten seconds and says what the last message asked."""
    return [Delay(10), Say(f"to {body['messages'][-1]['content']}")]


def said(events: list[Event]) -> list[list[str]]:
    """The texts of the user messages, by turn."""
    found: list[list[str]] = []
    for event in events:
        if event.type == "turn/start":
            found.append([])
        elif isinstance(event.data, UserMessage):
            found[-1].append(text_of(event.data.content))
    return found


async def test_each_of_many_asks_at_once_gets_a_turn_and_its_own_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: dict[str, refold.Turn] = {}
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def ask(text: str) -> None:
            answers[text] = await agent.ask(text)

        async with trio.open_nursery() as nursery:
            for n in range(9):
                nursery.start_soon(ask, f"question {n}")
        assert {text: turn.text for text, turn in answers.items()} == {
            text: f"to {text}" for text in answers
        }
        events = assert_sound(runtime, agent)
        queued = {text_of(event.data.content): event.seq for event in queued_in(events)}
        for text, turn in answers.items():
            assert turn.prompts == (queued[text],)
        assert said(events) == [[text] for text in queued], "in the order in which they came"


def queued_in(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event.data, InboxQueued)]


async def test_prompts_join_up_to_an_ask_and_an_ask_that_joins_is_like_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: dict[str, refold.Turn] = {}
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def ask(text: str, join: bool) -> None:
            answers[text] = await agent.ask(text, join=join)

        async with trio.open_nursery() as nursery:
            seqs = [await agent.prompt("now")]
            await trio.sleep(1)
            seqs += [await agent.prompt("one"), await agent.prompt("two")]
            for text, join in (("alone", False), ("three", True), ("four", True)):
                nursery.start_soon(ask, text, join)
                await trio.sleep(1)
            seqs.append(await agent.prompt("five"))
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        assert said(events) == [["now"], ["one", "two"], ["alone"], ["three", "four", "five"]]
        assert answers["alone"].text == "to alone"
        assert answers["three"] == answers["four"] == await agent.answer(seqs[-1])
        assert len(answers["three"].prompts) == 3
        own = [event.data.own_turn for event in queued_in(events)]
        assert own == [None, None, None, True, None, None, None]


async def test_context_joins_any_turn_and_steering_that_is_left_goes_before_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agents = list[refold.Agent]()

    async def steer_late(view: refold.TurnView) -> bool:
        if view.turn == 1:
            await agents[0].steer("too late")
        return False

    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        seams = Seams(turn_stop=(steer_late,))
        agent = await runtime.start_agent(model="script/m", seams=seams)
        agents.append(agent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "first")
            await trio.sleep(1)
            nursery.start_soon(agent.ask, "second")
            await trio.sleep(1)
        await agent.inject("by the way")
        turn = await agent.ask("third")
        assert "by the way" in str(agent.messages()[-3:])
        assert said(assert_sound(runtime, agent)) == [["first"], [], ["second"], ["third"]]
        assert turn.turn == 4
        kinds = [e.type for e in stored_events(runtime, agent.session_id)]
        starts = [i for i, kind in enumerate(kinds) if kind == "turn/start"]
        assert "steering/message" in kinds[starts[1] : starts[2]]


async def test_an_ask_is_in_the_log_at_once_also_where_a_turn_is_opening(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whatever the loop is about, a prompt stands when the task that asked waits for its turn."""
    for moment in range(40):
        async with refold.open("memory:", providers=[Script(echo)]) as runtime:
            agent = await runtime.start_agent(model="script/m")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.ask, "first")
                for _ in range(moment):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(agent.ask, "second")
                await trio.testing.wait_all_tasks_blocked()
                assert trio.current_time() % 20 == 0
                texts = [text_of(e.data.content) for e in queued_in(await written(agent))]
                assert sorted(texts) == ["first", "second"]


async def written(agent: refold.Agent) -> list[Event]:
    found = []
    async for event in agent.events(durable=False):
        found.append(event)
        if event.seq == agent.log.live.session.next_seq - 1:
            break
    return found


async def test_a_used_key_gets_the_turn_that_took_it_whatever_is_wished_the_second_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello", idempotency_key="k")
        for _ in range(2):
            turns = [
                await agent.ask("hello", idempotency_key="k", join=join) for join in (True, False)
            ]
            assert turns == [await agent.answer(seq)] * 2
            assert turns[0].prompts == (seq,)
            await agent.close()
            agent = await runtime.resume(agent.session_id)
        with pytest.raises(refold.KeyConflict):
            await agent.ask("bye", idempotency_key="k")


LEAVE = EndReason("aborted", reason="whoever asked has left")


async def with_asking(agent: refold.Agent, text: str, **how: Any) -> refold.Turn:
    async with agent.asking(text, **how) as asked:
        turn = await asked.answer()
        assert turn.prompts == (asked.seq,)
        return turn


async def with_ask(agent: refold.Agent, text: str, **how: Any) -> refold.Turn:
    return await agent.ask(text, cancel_turn=True, **how)


both = pytest.mark.parametrize("ask", [with_asking, with_ask])


@both
async def test_a_scope_that_is_left_with_the_answer_changes_nothing(
    ask: Callable[..., Awaitable[refold.Turn]], autojump_clock: trio.testing.MockClock
) -> None:
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await ask(agent, "hello")
        assert (turn.text, turn.reason) == ("to hello", COMPLETED)
        assert of_type(assert_sound(runtime, agent), "inbox/removed") == []


@both
async def test_leaving_cancels_the_turn_of_the_prompt_and_no_other(
    ask: Callable[..., Awaitable[refold.Turn]], autojump_clock: trio.testing.MockClock
) -> None:
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "first")
            await trio.sleep(5)
            with trio.move_on_after(10):
                await ask(agent, "second")
            ends = [
                data.reason
                for data in of_type(stored_events(runtime, agent.session_id), "turn/end")
            ]
            assert ends == [COMPLETED, LEAVE], "durable when the scope is left"
            third = await agent.ask("third")
        assert third.text == "to third"
        assert said(assert_sound(runtime, agent)) == [["first"], ["second"], ["third"]]


@both
async def test_leaving_takes_a_pending_prompt_back(
    ask: Callable[..., Awaitable[refold.Turn]], autojump_clock: trio.testing.MockClock
) -> None:
    script = Script(echo)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "first")
            await trio.sleep(5)
            with trio.move_on_after(1):
                await ask(agent, "second")
            assert trio.current_time() == 6
            events = stored_events(runtime, agent.session_id)
            assert [removed.outcome for removed in of_type(events, "inbox/removed")] == [
                "cancelled"
            ]
            assert agent.pending() == ()
        await agent.wait_idle()
        assert_sound(runtime, agent)
        assert not any(b"second" in body for body in script.bodies)


async def test_an_error_in_the_scope_calls_the_prompt_off_and_leaves_as_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Hang())]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seqs: list[int] = []
        with pytest.raises(LookupError, match="mine"):
            async with agent.asking("hello") as failing:
                seqs.append(failing.seq)
                await trio.sleep(1)
                raise LookupError("mine")
        assert (await agent.answer(seqs[0])).reason == LEAVE
        async with agent.asking("again") as asked:
            pass
        with pytest.raises(PromptRemoved):
            await agent.answer(asked.seq)
        assert_sound(runtime, agent)


async def test_of_several_that_wait_under_one_key_the_last_to_leave_calls_it_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Hang())]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def wait(seconds: float) -> None:
            with trio.move_on_after(seconds):
                await agent.ask("hello", idempotency_key="k", cancel_turn=True)
            left.append(trio.current_time())

        left = list[float]()
        async with trio.open_nursery() as nursery:
            for seconds in (1, 3, 2):
                nursery.start_soon(wait, seconds)
            await trio.sleep(2.5)
            assert agent.snapshot().running
        assert left == [1, 2, 3]
        assert not agent.snapshot().running
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "other")
            await trio.sleep(1)
            async with agent.asking("more", idempotency_key="m") as asked:
                nursery.start_soon(agent.answer, asked.seq)
                await trio.sleep(1)
            assert [one.seq for one in agent.pending()] == [asked.seq], "somebody waits for it"
            nursery.cancel_scope.cancel()
        await agent.cancel(drop_pending=True)
        assert_sound(runtime, agent)


async def test_a_prompt_is_cancelled_by_its_seq_wherever_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        with pytest.raises(NoSuchPrompt):
            await agent.cancel(0)
        first = await agent.prompt("first")
        await trio.sleep(1)
        second, third = await agent.prompt("second"), await agent.prompt("third")
        await agent.cancel(second)
        await agent.cancel(first, reason="enough")
        assert (await agent.answer(first)).reason == EndReason("aborted", reason="enough")
        with pytest.raises(PromptRemoved):
            await agent.answer(second)
        turn = await agent.answer(third)
        assert (turn.text, turn.prompts) == ("to third", (third,))
        before = stored_events(runtime, agent.session_id)
        for seq in (first, second, third):
            await agent.cancel(seq)
        assert stored_events(runtime, agent.session_id) == before
        await agent.park()
        await agent.cancel(third)
        with pytest.raises(NoSuchPrompt):
            await agent.cancel(third + 1)
        assert_sound(runtime, agent)


async def test_cancelling_one_prompt_of_a_turn_that_has_not_begun_leaves_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slow(_view: refold.StepView) -> None:
        await trio.sleep(5)

    script = Script(lambda _: Say("fine"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(slow,)))
        await agent.prompt("zero")
        one, two = await agent.prompt("one"), await agent.prompt("two")
        await trio.sleep(7)  # the turn of both is about to take them
        await agent.cancel(one)
        assert (await agent.answer(two)).prompts == (two,)
        alone = await agent.prompt("alone")
        await trio.sleep(1)
        await agent.cancel(alone)
        assert trio.current_time() == 11, "its turn does not wait for the seam"
        assert not agent.snapshot().running
        assert_sound(runtime, agent)
        assert not any(b"one" in body or b"alone" in body for body in script.bodies)


async def test_a_cancel_may_take_everything_back_that_is_pending(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(echo)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        first = await agent.prompt("first")
        await trio.sleep(1)
        await agent.prompt("one", idempotency_key="k")
        await agent.inject("two")
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(PromptRemoved):
                    await agent.ask("three")

            nursery.start_soon(ask)
            await trio.sleep(1)
            waiting = agent.pending()
            assert [(one.kind, one.text, one.own_turn, one.key, one.held) for one in waiting] == [
                ("prompt", "one", False, "k", False),
                ("inject", "two", False, None, False),
                ("prompt", "three", True, None, False),
            ]
            assert [one.source.kind for one in waiting] == ["user", "plugin", "user"]
            await agent.cancel("enough", drop_pending=True)
        assert agent.pending() == ()
        assert (await agent.answer(first)).reason == EndReason("aborted", reason="enough")
        await agent.wait_idle()
        assert len(script.bodies) == 1
        await agent.cancel(drop_pending=True)
        assert (await agent.ask("fourth")).text == "to fourth"
        assert_sound(runtime, agent)


async def test_a_cancel_leaves_what_waits_behind_the_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(echo)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("first")
        await trio.sleep(1)
        second = await agent.prompt("second")
        await agent.steer("and this")
        await agent.cancel()
        turn = await agent.answer(second)
        assert (turn.turn, turn.prompts) == (2, (second,))
        assert "and this" in str(agent.messages()[-3:])
        assert_sound(runtime, agent)


async def test_a_scope_around_an_agent_that_ends_says_so_and_hangs_on_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Hang())]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def ask(text: str) -> None:
            with pytest.raises(refold.ActorStopped):
                async with agent.asking(text) as asked:
                    await asked.answer()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "first")
            await trio.sleep(1)
            nursery.start_soon(ask, "second")
            await trio.sleep(1)
            await agent.close()
        assert [one.text for one in agent.pending()] == ["second"]
        with pytest.raises(refold.ActorStopped):
            async with agent.asking("third"):
                raise AssertionError("there is nothing to ask")
        assert_sound(runtime, agent)
