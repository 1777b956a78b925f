"""Budgets: what one turn may take, and that the next prompt works."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Budgets, Call, Delay, GoOn, Hang, Say, Script, Seams, Think
from refold.runtime.events import EndReason
from refold.runtime.messages import text_of
from tests.agents import assert_sound, count, of_type, sent

SECONDS = EndReason("budget", limit="seconds")
STEPS = EndReason("budget", limit="steps")
TOKENS = EndReason("budget", limit="tokens")


@refold.tool
async def wait(seconds: float) -> str:
    """Wait."""
    await trio.sleep(seconds)
    return f"waited {seconds:g} s"


async def assert_goes_on(runtime: refold.Runtime, agent: refold.Agent) -> list[Any]:
    """Nothing starts by itself, the next prompt is answered, and all is sound."""
    await agent.wait_idle()
    turn = await agent.ask("and now?")
    assert (turn.text, turn.reason) == ("fine", EndReason("completed"))
    return assert_sound(runtime, agent)


def always_calls(body: Any) -> Any:
    """A model that never gets done by itself, but answers `and now?`."""
    said = "and now?" in str(body["messages"][-1]["content"])
    return Say("fine") if said else [Say("working"), Call("count", {"upto": 3})]


async def test_time_that_is_up_in_the_middle_of_a_stream_keeps_the_text_so_far(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Think("hm"), Say("Once upon"), Delay(9), Say(" a time")], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", budgets=Budgets(max_seconds=5))
        turn = await agent.ask("tell me a story")
        assert trio.current_time() == 5
        assert (turn.reason, turn.text) == (SECONDS, "Once upon")
        events = await assert_goes_on(runtime, agent)
        kept = of_type(events, "assistant/message")[0]
        assert (text_of(kept.content), kept.interrupted) == ("Once upon", True)
        assert "Once upon" in sent(script)


async def test_time_that_is_up_inside_a_tool_ends_each_call_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls = [Call("wait", {"seconds": seconds}) for seconds in (1, 30, 1)]
    script = Script([[Say("calling"), *calls], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[wait], budgets=Budgets(max_seconds=5)
        )
        turn = await agent.ask("go")
        assert trio.current_time() == 5
        assert (turn.reason, turn.text) == (SECONDS, "calling")
        events = await assert_goes_on(runtime, agent)
        results = of_type(events, "tool/result")
        codes = [result.error.code if result.error else "ok" for result in results]
        assert codes == ["ok", "ABORTED", "NOT_STARTED"]


async def test_time_that_is_up_in_a_seam_is_up_for_the_prompt_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def hang_at_first(view: refold.StepView) -> None:
        if view.turn == 1:
            await trio.sleep_forever()

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m",
            seams=Seams(pre_step=(hang_at_first,)),
            budgets=Budgets(max_seconds=5),
        )
        assert (await agent.ask("go")).reason == SECONDS
        await assert_goes_on(runtime, agent)
        assert sent(script) == ["and now?"]


async def test_each_turn_has_the_whole_time_and_a_cancel_in_time_has_its_own_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(4), Say("one")], [Delay(4), Say("two")], Hang(), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", budgets=Budgets(max_seconds=5))
        for text in ("one", "two"):
            assert (await agent.ask("go")).text == text
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "go")
            await trio.sleep(4)
            await agent.cancel("enough")
        events = await assert_goes_on(runtime, agent)
        reasons = [end.reason for end in of_type(events, "turn/end")]
        assert reasons[2] == EndReason("aborted", reason="enough")


async def test_a_cancel_after_the_time_was_up_does_not_change_the_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @refold.tool
    async def clean_up_slowly() -> str:
        """Take four seconds to stop."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

    script = Script([Call("clean_up_slowly"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[clean_up_slowly], budgets=Budgets(max_seconds=5)
        )
        turns: list[refold.Turn] = []

        async def ask() -> None:
            turns.append(await agent.ask("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(7)
            await agent.cancel("enough")
        assert trio.current_time() == 9
        assert turns[0].reason == SECONDS
        await assert_goes_on(runtime, agent)


async def test_steps_are_counted_anew_in_each_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with refold.open("memory:", providers=[Script(always_calls)]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], budgets=Budgets(max_steps=3)
        )
        for _ in range(2):
            turn = await agent.ask("go")
            assert (turn.reason, turn.text) == (STEPS, "working")
        events = await assert_goes_on(runtime, agent)
        assert len(of_type(events, "step/end")) == 7
        assert len(of_type(events, "tool/result")) == 6, "the last step's calls were run"


async def test_a_turn_that_is_done_in_its_last_step_is_completed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Call("count", {"upto": 1}), Say("done"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], budgets=Budgets(max_steps=2, turn_tokens=1000)
        )
        assert (await agent.ask("go")).reason == EndReason("completed")
        await assert_goes_on(runtime, agent)


async def test_tokens_read_and_written_are_summed_over_the_steps_of_a_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    used: list[int] = []

    async def note(view: refold.TurnView) -> None:
        usage = view.message.usage
        assert usage is not None
        used.append(usage.total_input + (usage.output_tokens or 0))

    seams = Seams(turn_continuation=(note,))
    async with refold.open("memory:", providers=[Script(always_calls)]) as runtime:
        options: dict[str, Any] = {"model": "script/m", "tools": [count], "seams": seams}
        free = await runtime.start_agent(**options, budgets=Budgets(max_steps=3))
        await free.ask("go")
        for limit, steps in ((sum(used[:2]), 2), (sum(used[:2]) + 1, 3)):
            agent = await runtime.start_agent(**options, budgets=Budgets(turn_tokens=limit))
            turn = await agent.ask("go")
            assert turn.reason == TOKENS
            events = await assert_goes_on(runtime, agent)
            assert len(of_type(events, "step/end")) == steps + 1


@pytest.mark.parametrize("budgets", [Budgets(max_steps=3), Budgets(turn_tokens=60)])
async def test_a_seam_that_always_goes_on_does_not_outlive_the_budget(
    budgets: Budgets, autojump_clock: trio.testing.MockClock
) -> None:
    async def go_on(view: refold.TurnView) -> GoOn | None:
        return GoOn("more") if view.turn == 1 else None

    requests: list[int] = []

    def reply(body: Any) -> Say:
        requests.append(len(body["messages"]))
        return Say("fine")

    async with refold.open("memory:", providers=[Script(reply)]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", seams=Seams(turn_continuation=(go_on,)), budgets=budgets
        )
        turn = await agent.ask("go")
        assert turn.reason.kind == "budget"
        await agent.wait_idle()
        assert (len(requests), agent.snapshot().pending) == (turn_steps(agent, runtime), 0)
        await assert_goes_on(runtime, agent)


def turn_steps(agent: refold.Agent, runtime: refold.Runtime) -> int:
    """How many steps the first and only turn had."""
    events = assert_sound(runtime, agent)
    assert len(of_type(events, "turn/start")) == 1
    return len(of_type(events, "step/end"))


async def test_steering_that_a_spent_turn_leaves_starts_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([[Delay(5), Call("count", {"upto": 1})], Say("as you say"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], budgets=Budgets(max_steps=1)
        )
        await agent.prompt("go")
        await trio.sleep(1)
        await agent.steer("the other way")
        events = await assert_goes_on(runtime, agent)
        assert [end.reason for end in of_type(events, "turn/end")][:2] == [
            STEPS,
            EndReason("completed"),
        ]
        assert sum("the other way" in text for text in sent(script)) == 1


async def test_without_limits_a_turn_goes_past_the_default_of_100_steps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def reply(body: Any) -> Any:
        steps = sum(message["role"] == "tool" for message in body["messages"])
        return Say("done") if steps == 101 else Call("count", {"upto": 1})

    assert attrs.asdict(Budgets()) == {"max_steps": 100, "max_seconds": None, "turn_tokens": None}
    async with refold.open("memory:", providers=[Script(reply)]) as runtime:
        limited = await runtime.start_agent(model="script/m", tools=[count], chunks="none")
        assert (await limited.ask("go")).reason == STEPS
        free = await runtime.start_agent(
            model="script/m", tools=[count], chunks="none", budgets=Budgets(None, None, None)
        )
        turn = await free.ask("go")
        assert (turn.reason, turn.text) == (EndReason("completed"), "done")
        assert_sound(runtime, free)
