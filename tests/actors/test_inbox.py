"""What is said to an agent is kept until it is in history, once, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import trio

import refold
from refold import Call, Delay, Hang, Say, Script, Seams
from refold.actors.turn.prompt_wait import PromptRemoved
from refold.runtime.envelope import Event
from refold.runtime.errors import RuleBroken
from refold.runtime.events import EndReason, InboxQueued, TurnStart
from refold.runtime.messages import Source, text_of
from refold.runtime.prompt_ledger import PromptLedger
from tests.agents import (
    assert_sound,
    count,
    stored_events,
)

SayWithKey: TypeAlias = Callable[[refold.Agent, str, str], Awaitable[object]]

WITH_KEY: dict[str, SayWithKey] = {
    "ask": lambda agent, text, key: agent.ask(text, idempotency_key=key),
    "prompt": lambda agent, text, key: agent.prompt(text, idempotency_key=key),
    "steer": lambda agent, text, key: agent.steer(text, idempotency_key=key),
    "inject": lambda agent, text, key: agent.inject(text, idempotency_key=key),
}

every_way = pytest.mark.parametrize("say", WITH_KEY.values(), ids=WITH_KEY)


def said(events: list[Event], *types: str) -> list[str]:
    """The texts of the events of some types, in order."""
    return [text_of(event.data.content) for event in events if event.type in types]


def turns(events: list[Event]) -> int:
    return sum(isinstance(event.data, TurnStart) for event in events)


def entries(events: list[Event], key: str) -> int:
    """How many entries were queued under a key."""
    found = [event.data for event in events if isinstance(event.data, InboxQueued)]
    return sum(entry.idempotency_key == key for entry in found)


@every_way
async def test_another_text_under_a_used_key_is_refused(say: SayWithKey) -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello", idempotency_key="k")
        for _ in range(2):
            with pytest.raises(refold.KeyConflict) as refused:
                await say(agent, "hello!", "k")
            assert (refused.value.key, refused.value.seq) == ("k", seq)
            await agent.wait_idle()
        await say(agent, "hello", "k")
        await agent.park()
        with pytest.raises(refold.KeyConflict):
            await say(agent, "good bye", "k")
        assert entries(assert_sound(runtime, agent), "k") == 1


async def test_of_two_texts_at_once_under_one_key_the_first_counts() -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        refused: list[str] = []

        async def ask(text: str) -> None:
            try:
                await agent.ask(text, idempotency_key="k")
            except refold.KeyConflict:
                refused.append(text)

        async with trio.open_nursery() as nursery:
            for text in ("one", "two", "one"):
                nursery.start_soon(ask, text)
        assert len(refused) in (1, 2)
        assert len(set(refused)) == 1
        kept = said(assert_sound(runtime, agent), "inbox/queued")
        assert len(kept) == 1
        assert kept[0] not in refused


@every_way
async def test_a_repeated_key_gets_the_first_answer_whenever_it_comes(
    say: SayWithKey, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([[Delay(10), Say("one")], [Delay(10), Say("two")]])
    answers: list[object] = []

    async def say_it() -> None:
        answers.append(await say(agent, "hello", "k"))

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            await agent.prompt("work")
            for moment in (1, 5, 15):  # it is new, pending, in history and not yet answered
                await trio.sleep(moment - trio.current_time())
                nursery.start_soon(say_it)
        await agent.wait_idle()
        await say_it()
        await agent.close()
        again = agent = await runtime.resume(agent.session_id)
        await say_it()
        await again.wait_idle()
        events = assert_sound(runtime, again)
        assert len(script.bodies) == 2
        assert script.bodies[1].count(b"hello") == 1
        assert entries(events, "k") == 1
        assert len(answers) == 5
        assert answers == [answers[0]] * 5


@every_way
async def test_a_fork_knows_nothing_of_its_parents_keys(
    say: SayWithKey, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script(lambda _body: Say("fine"))
    async with refold.open("memory:", providers=[script]) as runtime:
        parent = await runtime.start_agent(model="script/m")
        first = await say(parent, "hello", "k")
        await parent.ask("and more")
        child = await runtime.fork(parent.session_id)
        assert await say(child, "again", "k") != first
        await child.ask("and more")
        assert entries(assert_sound(runtime, child), "k") == 2
        assert b"again" in script.bodies[-1]
        assert await say(parent, "hello", "k") == first
        assert entries(assert_sound(runtime, parent), "k") == 1


@pytest.mark.parametrize("ways", [("ask", "ask"), ("ask", "ask", "prompt", "ask", "steer")])
async def test_one_key_said_several_times_at_once_is_one_entry_and_one_turn(
    ways: tuple[str, ...], autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("fine")])
    found: list[Any] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def say_it(way: str) -> None:
            found.append(await WITH_KEY[way](agent, "hello", "k"))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for way in ways:
                    nursery.start_soon(say_it, way)
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        assert (entries(events, "k"), turns(events)) == (1, 1)
        asked = [one for one in found if isinstance(one, refold.Turn)]
        assert [turn.text for turn in asked] == ["fine"] * ways.count("ask")
        assert len({one for one in found if isinstance(one, int)}) <= 1


async def test_different_keys_asked_at_once_have_an_entry_and_a_turn_each(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda _body: Say("fine"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            for key in "aabbc":
                nursery.start_soon(WITH_KEY["ask"], agent, f"hello {key}", key)
        events = assert_sound(runtime, agent)
        assert [entries(events, key) for key in "abc"] == [1, 1, 1]
        assert sorted(said(events, "user/message")) == ["hello a", "hello b", "hello c"]
        assert turns(events) == 3


async def test_a_key_of_long_ago_gets_its_turn_from_the_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda body: Say(f"to {body['messages'][-1]['content']}"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        first = await agent.ask("hello", idempotency_key="k")
        for n in range(PromptLedger.KEPT + 1):
            await agent.ask(f"number {n}")
        asked = len(script.bodies)
        assert await agent.ask("hello", idempotency_key="k") == first
        assert first.text == "to hello"
        assert len(script.bodies) == asked


async def test_steering_joins_the_next_step_of_the_turn_that_runs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(10), Call("count", {"upto": 2})], Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count])
        seq = await agent.prompt("hello")
        await trio.sleep(5)
        steering = await agent.steer("to the left")
        turn = await agent.answer(seq)
        events = assert_sound(runtime, agent)
        assert await agent.answer(steering) == turn
        assert said(events, "steering/message") == ["to the left"]
        assert (turns(events), len(script.bodies)) == (1, 2)
        assert script.bodies[1].rindex(b"to the left") > script.bodies[1].rindex(b'"tool"')


async def test_steering_keeps_a_turn_going_that_was_about_to_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(10), Say("one")], Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        await trio.sleep(5)
        await agent.steer("to the left")
        assert (await agent.answer(seq)).text == "two"
        assert turns(assert_sound(runtime, agent)) == 1


async def test_steering_an_idle_agent_is_a_prompt(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.answer(await agent.steer("hello"))
        assert turn.text == "fine"
        assert said(assert_sound(runtime, agent), "user/message") == ["hello"]


def steering_at_the_end(agents: list[refold.Agent], *, owned: bool) -> Seams:
    """Seams that steer the first turn once it is too late for another step of it."""
    left = ["too late"]

    async def stop(_view: refold.TurnView) -> bool:
        if left:
            await agents[0].steer(left.pop())
            return owned
        return False

    return Seams(turn_stop=(stop,))


async def test_steering_that_a_turn_leaves_starts_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script, agents = Script([Say("one"), Say("two")]), list[refold.Agent]()
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = steering_at_the_end(agents, owned=False)
        agents.append(await runtime.start_agent(model="script/m", seams=seams))
        assert (await agents[0].ask("hello")).text == "one"
        await agents[0].wait_idle()
        events = assert_sound(runtime, agents[0])
        assert said(events, "steering/message") == ["too late"]
        assert turns(events) == 2


async def test_steering_left_by_a_turn_that_was_stopped_for_good_waits_for_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script, agents = Script([Say("one"), Say("two")]), list[refold.Agent]()
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = steering_at_the_end(agents, owned=True)
        agents.append(await runtime.start_agent(model="script/m", seams=seams))
        await agents[0].ask("hello")
        await agents[0].wait_idle()
        assert turns(assert_sound(runtime, agents[0])) == 1
        assert (await agents[0].ask("and now?")).text == "two"
        events = assert_sound(runtime, agents[0])
        assert said(events, "user/message", "steering/message")[1:] == ["too late", "and now?"]


async def test_prompts_have_their_turn_after_one_that_was_stopped_for_good(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stop(_view: refold.TurnView) -> bool:
        return True

    script = Script([[Delay(10), Say("one")], Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(turn_stop=(stop,)))
        await agent.prompt("hello")
        await trio.sleep(5)
        with trio.fail_after(60):
            assert (await agent.ask("more")).text == "two"
        assert turns(assert_sound(runtime, agent)) == 2


async def test_steering_that_no_turn_can_take_does_not_start_turns_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    broken, agents, tried = [True], list[refold.Agent](), list[int]()

    async def fail_later(view: refold.StepView) -> None:
        tried.append(view.turn)
        assert len(tried) < 20, "it goes on for ever"
        if len(tried) > 1 and broken:
            await trio.sleep(1)
            raise LookupError("no")

    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        stop = steering_at_the_end(agents, owned=False).turn_stop
        seams = Seams(turn_stop=stop, pre_step=(fail_later,))
        agents.append(await runtime.start_agent(model="script/m", seams=seams))
        await agents[0].ask("hello")
        await agents[0].wait_idle()
        assert tried == [1, 2]
        broken.clear()
        assert (await agents[0].ask("and now?")).text == "two"
        assert said(assert_sound(runtime, agents[0]), "steering/message") == ["too late"]


async def test_what_comes_during_a_turn_has_turns_in_the_order_it_came(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda body: [Delay(10 if len(body["messages"]) == 1 else 0), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            for say in (agent.prompt, agent.prompt, agent.ask, agent.prompt, agent.ask):
                await trio.sleep(1)
                nursery.start_soon(say, f"at {trio.current_time():.0f}")
        events = assert_sound(runtime, agent)
        assert said(events, "user/message") == ["hello", *(f"at {n}" for n in range(1, 6))]
        assert turns(events) == 5
        firsts = [i for i, event in enumerate(events) if event.type == "turn/start"]
        parts = [events[a:b] for a, b in zip(firsts, [*firsts[1:], None], strict=True)]
        assert [len(said(part, "user/message")) for part in parts] == [1, 2, 1, 1, 1]


async def test_an_edited_entry_is_said_in_its_new_words_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(10), Say("one")], Say("with the aside"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("hello")
        await trio.sleep(5)
        first = await agent.prompt("a first thought")
        injected = await agent.inject("an aside")
        second = await agent.edit(first, "a second thought")
        await agent.edit(injected, "another aside")
        assert (await agent.answer(second)).text == "two"
        events = assert_sound(runtime, agent)
        assert said(events, "user/message") == ["hello", "a second thought"]
        assert said(events, "context/message") == ["another aside"]


async def test_a_removed_entry_is_never_said(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([[Delay(10), Say("one")], Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("hello")
        await trio.sleep(5)
        for say in (agent.prompt, agent.steer, agent.inject):
            await agent.remove(await say("never mind"))
        assert agent.snapshot().pending == 0
        await agent.wait_idle()
        events = assert_sound(runtime, agent)
        assert said(events, "user/message", "steering/message", "context/message") == ["hello"]
        assert len(script.bodies) == 1


@pytest.mark.parametrize("fate", ["claimed", "removed", "edited", "no entry"])
async def test_only_what_is_pending_can_be_edited_or_removed(
    fate: str, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([[Delay(10), Say("one")], Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        seq = await agent.prompt("hello")
        await trio.sleep(5)
        if fate != "claimed":
            seq = await agent.prompt("more")
        if fate == "removed":
            await agent.remove(seq)
        elif fate == "edited":
            await agent.edit(seq, "less")
        elif fate == "no entry":
            seq = 0
        before = stored_events(runtime, agent.session_id)
        with pytest.raises(RuleBroken):
            await agent.edit(seq, "other words")
        with pytest.raises(RuleBroken):
            await agent.remove(seq)
        assert stored_events(runtime, agent.session_id) == before
        await agent.wait_idle()
        assert_sound(runtime, agent)


@pytest.mark.parametrize(("change", "outcome"), [("remove", "cancelled"), ("edit", "edited")])
async def test_whoever_asked_is_told_that_the_prompt_left_before_it_had_a_turn(
    change: str, outcome: str, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script(lambda _body: [Delay(10), Say("fine")])
    told: list[PromptRemoved] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("hello")
        await trio.sleep(5)
        seq = await agent.prompt("more", idempotency_key="k")

        async def ask() -> None:
            with pytest.raises(PromptRemoved) as removed:
                await agent.ask("more", idempotency_key="k")
            told.append(removed.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            if change == "remove":
                await agent.remove(seq)
            else:
                await agent.edit(seq, "less")
        assert trio.current_time() == 6
        assert [(error.seq, error.outcome) for error in told] == [(seq, outcome)]
        await ask()
        await agent.wait_idle()
        assert_sound(runtime, agent)


async def test_one_agents_message_to_another_says_who_sent_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        one = await runtime.start_agent(model="script/m")
        other = await runtime.start_agent(model="script/m")
        seq = await one.send(other, "hello")
        assert (await other.answer(seq)).text == "fine"
        events = assert_sound(runtime, other)
        sender = Source("agent", session=one.session_id)
        sources = [e.data.source for e in events if e.type in ("inbox/queued", "user/message")]
        assert sources == [sender] * 2
        triggers = [e.data.trigger for e in events if isinstance(e.data, TurnStart)]
        assert [trigger.source for trigger in triggers] == [sender]


async def test_a_cancelled_turn_leaves_what_was_said_meanwhile_to_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Hang(), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        first = await agent.prompt("hello")
        await trio.sleep(1)
        second = await agent.prompt("more")
        await agent.cancel("enough")
        assert (await agent.answer(first)).reason == EndReason("aborted", reason="enough")
        assert (await agent.answer(second)).text == "fine"
        assert_sound(runtime, agent)


@pytest.mark.parametrize("durable", [True, False])
async def test_followers_from_any_position_get_every_event_once_until_the_agent_is_closed(
    durable: bool, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script(lambda _body: [Delay(1), Say("fine, thank you", pieces=5), Delay(1)])
    got: dict[int, list[int]] = {}
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", chunks="verbatim")

        async def follow(from_seq: int, pause: float) -> None:
            got[from_seq] = []
            async for event in agent.events(from_seq, durable=durable):
                assert not durable or event.seq <= agent.snapshot().durable_seq
                got[from_seq].append(event.seq)
                await trio.sleep(pause)

        async with trio.open_nursery() as nursery:
            for turn in range(3):
                for ahead in range(-12, 1):
                    at = max(0, agent.log.live.session.next_seq + ahead)
                    if at not in got:
                        nursery.start_soon(follow, at, ahead % 3)
                        await trio.sleep(0.1)
                await agent.ask(f"number {turn}")
            await agent.close()
        last = assert_sound(runtime, agent)[-1].seq
        assert len(got) > 20
        assert got == {start: list(range(start, last + 1)) for start in got}


async def test_what_is_only_written_is_told_to_those_who_do_not_ask_for_durable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        early, late = list[tuple[str, bool]](), list[tuple[str, bool]]()

        async def follow(seen: list[tuple[str, bool]], durable: bool) -> None:
            events = agent.events(durable=durable)
            seen.extend(
                [(one.type, one.seq <= agent.snapshot().durable_seq) async for one in events]
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, early, False)
            nursery.start_soon(follow, late, True)
            await agent.ask("hello")
            await agent.close()
        assert [type_ for type_, _ in early] == [type_ for type_, _ in late]
        assert ("assistant/message", False) in early
        assert all(durable for _, durable in late)


async def test_a_slow_follower_holds_nobody_up_and_misses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda _body: Say("fine"))
    seen: list[int] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")

        async def follow() -> None:
            async for event in agent.events():
                seen.append(event.seq)
                await trio.sleep(60)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for _ in range(5):
                await agent.ask("hello")
            assert trio.current_time() == 0
            await agent.close()
        assert seen == list(range(len(assert_sound(runtime, agent))))


async def test_a_follower_of_a_closed_agent_gets_the_rest_and_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await agent.close()
        seen = [event.seq async for event in agent.events(3)]
        events = assert_sound(runtime, agent)
        assert seen == list(range(3, len(events)))
        assert [event async for event in agent.events(len(events))] == []
