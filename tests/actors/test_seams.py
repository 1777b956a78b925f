"""The nine seams: their order, what each may change, what the model sees."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import orjson
import pytest
import trio

import refold
from refold import Call, Delay, Deny, GoOn, Reject, Say, Script, Seams, Stop, Submit
from refold.actors.log.seam_log import SeamLog
from refold.runtime.envelope import draft
from refold.runtime.errors import RuleBroken
from refold.runtime.events import ContextMessage, EndReason, InboxRemoved
from refold.runtime.messages import Message, Source, TextBlock, text_of
from refold.runtime.request_header import LlmCallConfig
from tests.agents import assert_sound, count, headers, kinds, of_type, sent, stored_events

PLUGIN = Source("plugin", plugin="test")
NAMES = tuple(field.name for field in attrs.fields(Seams))


def text(value: str) -> tuple[TextBlock, ...]:
    return (TextBlock(value),)


def calls_once(body: Any) -> Any:
    """A model that calls a tool after each prompt and is done after each result."""
    return Say("done") if body["messages"][-1]["role"] == "tool" else Call("count", {"upto": 2})


def noting(said: list[str], name: str) -> Callable[..., Any]:
    """A seam of the kind `name` that changes nothing and notes that it was asked."""

    async def seam(*arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        said.append(name)
        unchanged = {"session_prefix": (), "request": arguments[-1], "post_tool": arguments[-1]}
        return unchanged.get(name.partition(" ")[0])

    return seam


async def test_every_seam_has_its_say_in_one_order_and_two_of_a_kind_in_theirs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    said: list[str] = []

    def twice(*names: str) -> list[str]:
        return [f"{name} {number}" for name in names for number in (1, 2)]

    seams = Seams(**{n: tuple(noting(said, one) for one in twice(n)) for n in NAMES})
    async with refold.open("memory:", providers=[Script(calls_once)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count], seams=seams)
        await agent.ask("hello")
        last_step = twice("pre_step", "request", "turn_continuation", "turn_stop")
        assert said == [*twice(*NAMES), *last_step]
        said.clear()
        await agent.ask("again")
        assert said == [
            *twice("prompt_submit", "pre_step", "request", "pre_tool", "post_tool"),
            *twice("turn_continuation", "turn_stop"),
            *last_step,
        ]
        assert_sound(runtime, agent)


async def test_session_start_runs_once_an_instance_and_is_told_where_that_comes_from(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sources: list[str] = []

    async def start(_log: SeamLog, source: str) -> None:
        sources.append(source)

    seams = Seams(session_start=(start,))
    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=seams)
        assert sources == [], "nothing runs before there is something to do"
        turn = await agent.ask("one")
        await agent.ask("two")
        assert sources == ["startup"]
        await agent.wait_idle()
        await agent.park()
        await agent.ask("three")
        assert sources == ["startup", "resume"]
        await agent.close()
        again = await runtime.resume(agent.session_id, seams=seams)
        await again.ask("four")
        twin = await runtime.fork(again.session_id, at=turn.end_seq, seams=seams)
        await twin.ask("two, otherwise")
        assert sources == ["startup", "resume", "resume", "resume"]
        assert_sound(runtime, again)
        assert_sound(runtime, twin)


async def test_what_session_start_appends_is_durable_history_before_the_first_prompt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("one"), Say("two")])

    async def start(log: SeamLog, source: str) -> None:
        context = ContextMessage(text(f"a {source}"), PLUGIN, envelope="raw")
        await log.append(draft(context))

    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(session_start=(start,)))
        await agent.ask("hello")
        await agent.ask("again")
        assert sent(script) == ["a startup", "hello", "one", "again"]
        assert_sound(runtime, agent)


async def test_prompt_submit_rewrites_and_adds_context_each_seeing_the_one_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    views: list[refold.PromptView] = []
    pending: list[bool] = []

    async def shout(view: refold.PromptView) -> Submit:
        views.append(view)
        pending.append(view.queued_seq in agent.log.live.rules.inbox.pending)
        return Submit(text(text_of(view.content).upper()), context=text("it was shouted"))

    async def allow(view: refold.PromptView) -> None:
        views.append(view)

    async def annotate(view: refold.PromptView) -> Submit:
        views.append(view)
        return Submit(context=text("it was seen"))

    durable: list[bool] = []

    def reply(_body: Any) -> Say:
        stored = kinds(stored_events(runtime, agent.session_id))
        durable.append(stored.index("context/message") <= agent.log.live.durable_seq)
        return Say("fine")

    script = Script(reply)
    seams = Seams(prompt_submit=(shout, allow, annotate))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=seams)
        await agent.ask("hello")
        assert [text_of(view.content) for view in views] == ["hello", "HELLO", "HELLO"]
        assert {(view.turn, view.source.kind) for view in views} == {(1, "user")}
        assert pending == [True], "nothing is claimed yet"
        first, context = sent(script)
        assert first == "HELLO"
        assert context.index("it was shouted") < context.index("it was seen")
        events = assert_sound(runtime, agent)
        place = kinds(events).index("user/message")
        assert kinds(events)[place + 1] == "context/message"
        assert events[place].source_event_seqs == (views[0].queued_seq,)
        assert events[place + 1].data.source == Source("plugin", plugin="prompt_submit")
        assert text_of(of_type(events, "inbox/queued")[0].content) == "hello"
        assert durable == [True]


@pytest.mark.parametrize("reason", ["not today", ""])
async def test_a_turn_whose_every_prompt_is_blocked_is_rejected_without_a_step(
    reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    asked: list[str] = []

    async def gate(view: refold.PromptView) -> Reject | None:
        return Reject(reason) if "secret" in text_of(view.content) else None

    async def after(view: refold.PromptView) -> None:
        asked.append(text_of(view.content))

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", seams=Seams(prompt_submit=(gate, after))
        )
        turn = await agent.ask("the secret")
        assert turn.reason == EndReason("rejected", reason=reason)
        assert (turn.turn, turn.text) == (1, "")
        assert script.bodies == []
        events = assert_sound(runtime, agent)
        assert kinds(events)[1:] == [
            "inbox/queued",
            "turn/start",
            "prompt/blocked",
            "inbox/removed",
            "turn/end",
        ]
        (blocked,) = of_type(events, "prompt/blocked")
        assert (text_of(blocked.content), blocked.reason) == ("the secret", reason)
        assert of_type(events, "inbox/removed") == [InboxRemoved((events[1].seq,), "rejected")]
        assert agent.messages() == ()
        assert (await agent.ask("hello")).text == "fine"
        assert asked == ["hello"], "who is blocked is not judged further"
        assert sent(script) == ["hello"]
        assert_sound(runtime, agent)


async def test_where_some_prompts_are_blocked_the_others_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def gate(view: refold.PromptView) -> Reject | None:
        return Reject("no") if "secret" in text_of(view.content) else None

    script = Script([[Delay(10), Say("one")], Say("two")])
    turns: dict[str, refold.Turn] = {}
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(prompt_submit=(gate,)))

        async def ask(prompt: str) -> None:
            turns[prompt] = await agent.ask(prompt, join=True)

        async with trio.open_nursery() as nursery:
            for prompt in ("first", "second", "a secret", "third"):
                nursery.start_soon(ask, prompt)
                await trio.testing.wait_all_tasks_blocked()
        assert sent(script) == ["first", "one", "second", "third"]
        assert {name: turn.turn for name, turn in turns.items()} == {
            "first": 1,
            "second": 2,
            "a secret": 2,
            "third": 2,
        }
        assert turns["second"].reason == EndReason("completed")
        events = assert_sound(runtime, agent)
        assert [removed.outcome for removed in of_type(events, "inbox/removed")] == ["rejected"]


@pytest.mark.parametrize("place", ["prompt_submit", "pre_step"])
async def test_a_prompt_removed_while_a_seam_looks_at_it_does_not_harm_its_neighbours(
    place: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def slow(*_view: Any) -> Any:
        await trio.sleep(5)

    script = Script([[Delay(1), Say("one")], Say("two"), Say("three")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(**{place: (slow,)}))
        await agent.prompt("first")
        await trio.sleep(5.5)
        seqs = [await agent.prompt(prompt) for prompt in ("second", "third", "fourth")]
        await trio.sleep(1)
        await agent.remove(seqs[0])
        await agent.edit(seqs[1], "third, edited")
        await agent.wait_idle()
        assert sent(script, 1) == ["first", "one", "fourth"]
        assert sent(script)[-1] == "third, edited"
        ends = [end.reason.kind for end in of_type(assert_sound(runtime, agent), "turn/end")]
        assert ends == ["completed"] * 3


@pytest.mark.parametrize("place", ["session_start", "prompt_submit", "pre_step"])
async def test_a_turn_whose_only_prompt_is_removed_while_a_seam_looks_sends_nothing(
    place: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def slow(*_view: Any) -> Any:
        await trio.sleep(5)
        return Reject("too late") if place == "prompt_submit" else None

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(**{place: (slow,)}))
        seq = await agent.prompt("hello")
        await trio.sleep(1)
        await agent.remove(seq)
        await agent.wait_idle()
        assert script.bodies == []
        events = assert_sound(runtime, agent)
        assert kinds(events)[-2:] == ["inbox/removed", "turn/end"]
        assert of_type(events, "turn/end")[0].reason.kind == "rejected"


async def test_a_prompt_removed_as_the_step_opens_is_left_out_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outcomes: list[str] = []

    async def race(view: refold.StepView) -> None:
        if view.turn > 1:
            nursery.start_soon(remove, view.log, view.claims[0].queued_seq)
            await trio.lowlevel.checkpoint()  # who is first at the writer is chance

    async def remove(log: SeamLog, seq: int) -> None:
        try:
            await log.append(draft(InboxRemoved((seq,), "cancelled")))
            outcomes.append("removed")
        except RuleBroken:
            outcomes.append("too late")

    for _ in range(30):
        script = Script([[Delay(1), Say("one")], Say("two")])
        async with (
            refold.open("memory:", providers=[script]) as runtime,
            trio.open_nursery() as nursery,
        ):
            agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(race,)))
            await agent.prompt("first")
            await trio.testing.wait_all_tasks_blocked()
            await agent.prompt("second")
            await agent.prompt("third")
            await agent.wait_idle()
            second = [] if outcomes[-1] == "removed" else ["second"]
            assert sent(script)[1:] == ["one", *second, "third"]
            ends = of_type(assert_sound(runtime, agent), "turn/end")
            assert [end.reason.kind for end in ends] == ["completed", "completed"]
    assert "removed" in outcomes


async def test_request_seams_replace_the_config_in_order_and_the_header_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def cooler(config: LlmCallConfig) -> LlmCallConfig:
        return attrs.evolve(config, temperature=0.5)

    async def shorter(config: LlmCallConfig) -> LlmCallConfig:
        assert config.temperature == 0.5
        return attrs.evolve(config, max_tokens=7)

    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(request=(cooler, shorter)))
        await agent.ask("hello")
        await agent.ask("again")
        body = orjson.loads(script.bodies[1])
        assert (body["temperature"], body["max_tokens"]) == (0.5, 7)
        (header,) = headers(assert_sound(runtime, agent))
        assert (header.reason, header.header.config.max_tokens) == ("initial", 7)


async def test_session_prefixes_are_joined_in_order_and_stand_in_the_header_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def first(_log: SeamLog) -> list[Message]:
        return [Message("user", text("one")), Message("user", text("two"))]

    async def second(_log: SeamLog) -> list[Message]:
        return [Message("user", text("three"))]

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", seams=Seams(session_prefix=(first, second))
        )
        await agent.ask("hello")
        assert sent(script) == ["one", "two", "three", "hello"]
        (header,) = headers(assert_sound(runtime, agent))
        assert len(header.header.message_prefix) == 3
        assert [text_of(message.content) for message in agent.messages()] == ["hello", "fine"]


async def test_the_first_pre_tool_seam_that_denies_has_the_last_word(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[str] = []

    async def allow(call: refold.CallView) -> None:
        asked.append(f"allow {call.turn}.{call.step} {call.name} {call.arguments}")

    async def deny(_call: refold.CallView) -> Deny:
        return Deny("the first no")

    async def never(_call: refold.CallView) -> Deny:
        return Deny("the second no")

    async def post_tool(_call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        asked.append("post_tool")
        return outcome

    script = Script(calls_once)
    seams = Seams(pre_tool=(allow, deny, never), post_tool=(post_tool,))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count], seams=seams)
        await agent.ask("hello")
        assert asked == ['allow 1.1 count {"upto":2}']
        assert sent(script)[-1] == "Error: the first no"
        assert_sound(runtime, agent)


async def test_post_tool_seams_replace_the_outcome_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def shout(_call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        return attrs.evolve(outcome, content=text(text_of(outcome.content) + "!"))

    async def ask(_call: refold.CallView, outcome: refold.Outcome) -> refold.Outcome:
        return attrs.evolve(outcome, content=text(text_of(outcome.content) + "?"), is_error=True)

    script = Script(calls_once)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], seams=Seams(post_tool=(shout, ask))
        )
        await agent.ask("hello")
        assert sent(script)[-1] == "0 1!?"
        (result,) = of_type(assert_sound(runtime, agent), "tool/result")
        assert result.is_error


async def test_turn_continuation_may_go_on_with_steering_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    views: list[refold.TurnView] = []

    async def check_once(view: refold.TurnView) -> GoOn | None:
        views.append(view)
        return GoOn("are you sure?") if view.step == 1 else None

    script = Script([Say("yes"), Say("quite")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", seams=Seams(turn_continuation=(check_once,))
        )
        turn = await agent.ask("is it done?")
        assert (turn.turn, turn.text) == (1, "quite")
        assert sent(script)[:2] == ["is it done?", "yes"]
        assert "are you sure?" in sent(script)[2]
        assert [(view.step, view.going_on) for view in views] == [(1, False), (2, False)]
        assert text_of(views[0].message.content) == "yes"
        (steering,) = of_type(assert_sound(runtime, agent), "steering/message")
        assert steering.source == Source("plugin", plugin="turn_continuation")


async def test_turn_continuation_may_stop_a_turn_that_has_calls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    going_on: list[bool] = []

    async def stop(view: refold.TurnView) -> Stop:
        going_on.append(view.going_on)
        return Stop()

    async def see(view: refold.TurnView) -> None:
        going_on.append(view.going_on)

    script = Script([Call("count", {"upto": 2}), Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], seams=Seams(turn_continuation=(stop, see))
        )
        turn = await agent.ask("hello")
        assert turn.reason == EndReason("completed")
        assert going_on == [True, False]
        events = assert_sound(runtime, agent)
        assert len(of_type(events, "tool/result")) == 1
        assert (await agent.ask("and now?")).text == "done"
        assert_sound(runtime, agent)


@pytest.mark.parametrize("steered_by", ["the user", "another seam"])
async def test_steering_beats_stop(steered_by: str, autojump_clock: trio.testing.MockClock) -> None:
    async def steer(view: refold.TurnView) -> GoOn | None:
        if view.step > 1:
            return None
        if steered_by == "another seam":
            return GoOn("wait")
        await agent.steer("wait")
        return None

    async def stop(_view: refold.TurnView) -> Stop:
        return Stop()

    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", seams=Seams(turn_continuation=(steer, stop))
        )
        assert (await agent.ask("hello")).text == "two"
        assert sent(script)[:2] == ["hello", "one"]
        assert "wait" in sent(script)[2]
        events = assert_sound(runtime, agent)
        assert len(of_type(events, "turn/start")) == 1


async def test_turn_stop_is_terminal_and_leaves_steering_pending_for_the_next_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[tuple[str, bool]] = []

    async def let_go(view: refold.TurnView) -> bool:
        asked.append(("let go", view.going_on))
        return False

    async def stop_the_first(view: refold.TurnView) -> bool:
        asked.append(("stop", view.going_on))
        return view.turn == 1

    async def last(view: refold.TurnView) -> bool:
        asked.append(("last", view.going_on))
        return False

    async def go_on(view: refold.TurnView) -> GoOn | None:
        return GoOn("go on") if view.turn == 1 else None

    script = Script([Call("count", {"upto": 2}), Say("fine")])
    seams = Seams(turn_continuation=(go_on,), turn_stop=(let_go, stop_the_first, last))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count], seams=seams)
        turn = await agent.ask("hello")
        assert turn.reason == EndReason("completed")
        assert asked == [("let go", True), ("stop", True)], "the first stop wins"
        await agent.wait_idle()
        assert len(script.bodies) == 1, "what turn_stop owned starts no turn"
        assert agent.snapshot().pending == 1
        assert (await agent.ask("and now?")).text == "fine"
        steered, asked_for = sent(script)[-2:]
        assert ("go on" in steered, asked_for) == (True, "and now?")
        assert asked[2:] == [("let go", False), ("stop", False), ("last", False)]
        assert_sound(runtime, agent)


async def test_steering_that_may_not_pass_is_blocked_and_the_turn_keeps_its_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def guard(view: refold.PromptView) -> Reject | None:
        return Reject("secret") if "SECRET" in text_of(view.content) else None

    script = Script([[Delay(1), Say("the answer")], Say("more")])
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(prompt_submit=(guard,))
        agent = await runtime.start_agent(model="script/m", seams=seams)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(0.5)
            await agent.steer("SECRET")
        await agent.inject("SECRET too")
        assert (await agent.ask("go on")).text == "more"
        ends = of_type(assert_sound(runtime, agent), "turn/end")
        assert [end.reason.kind for end in ends] == ["completed", "completed"]
        assert not any(b"SECRET" in body for body in script.bodies)


# A seam's mistakes end its turn and nothing else.


def mistaken(kind: str, make: Callable[[], Any]) -> Seams:
    """A seam that returns what it may not, at its first call."""
    left = [make]

    async def confused(*arguments: Any) -> Any:
        if left:
            return left.pop()()
        unchanged = {"session_prefix": (), "request": arguments[-1], "post_tool": arguments[-1]}
        return unchanged.get(kind)

    return Seams(**{kind: (confused,)})


async def forgotten() -> None:
    """Awaited by nobody."""


async def yielding() -> Any:
    """Iterated by nobody."""
    yield 1


class Lenient(Deny):
    """A verdict of one's own."""


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: 0, "returned 0; it may return"),
    "text": (lambda: "no", "returned the text 'no'; it may return"),
    "long text": (lambda: "no" * 99, "nononono…'; it may return"),
    "a class": (lambda: Deny, "returned the class Deny in place of an instance; it may return"),
    "a coroutine": (forgotten, "returned a coroutine that was not awaited (forgotten)"),
    "a coroutine in a list": (lambda: [forgotten()], "returned list"),
    "a coroutine in a verdict": (lambda: Deny(forgotten()), "returned Deny"),  # type: ignore[arg-type]  # the point of it
    "a generator": (lambda: (_ for _ in ()), "returned a generator; it may return"),
    "an async generator": (yielding, "returned an async generator; it may return"),
    "a class of one's own": (lambda: Lenient("no"), "returned Lenient; it may return"),
    "what another kind returns": (lambda: refold.PromptView, "it may return"),
    "a dict": (lambda: {"deny": "no"}, "returned dict; it may return"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("kind", NAMES)
async def test_a_seam_that_returns_what_it_may_not_ends_the_turn_and_is_named(
    kind: str, mistake: str, autojump_clock: trio.testing.MockClock
) -> None:
    make, said = MISTAKES[mistake]
    ran: list[int] = []

    @refold.tool
    async def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    script = Script(
        lambda body: Call("work") if body["messages"][-1]["role"] == "user" else Say("x")
    )
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[work], seams=mistaken(kind, make)
        )
        turn = await agent.ask("hello")
        assert turn.reason.kind == "error"
        assert f"the {kind} seam mistaken.<locals>.confused" in str(turn.reason.message)
        assert said in str(turn.reason.message)
        assert bool(ran) == (kind in ("post_tool", "turn_continuation", "turn_stop"))
        assert (await agent.ask("again")).reason.kind == "completed"
        assert_sound(runtime, agent)


@pytest.mark.parametrize("verdict", [False, True, None, "denied", Reject("no"), Submit()])
async def test_a_guard_that_says_neither_yes_nor_no_keeps_the_tool_from_running(
    verdict: Any, autojump_clock: trio.testing.MockClock
) -> None:
    ran: list[str] = []

    @refold.tool
    async def wipe(path: str) -> str:
        """Wipe a disk."""
        ran.append(path)
        return "gone"

    async def guard(_call: refold.CallView) -> Any:
        return verdict

    script = Script([Call("wipe", {"path": "/"}), Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(pre_tool=(guard,))
        agent = await runtime.start_agent(model="script/m", tools=[wipe], seams=seams)
        reason = (await agent.ask("hello")).reason
        assert (reason.kind, ran) == (("completed", ["/"]) if verdict is None else ("error", []))
        assert verdict is None or "the pre_tool seam" in str(reason.message)
        assert_sound(runtime, agent)


async def test_a_seam_whose_wrapper_gives_nothing_to_await_is_named(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def guard(_call: refold.CallView) -> Deny | None: ...

    @functools.wraps(guard)
    def wrapper(_call: refold.CallView) -> Any:
        return False

    script = Script([Call("count", {"upto": 2}), Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(pre_tool=(wrapper,))
        agent = await runtime.start_agent(model="script/m", tools=[count], seams=seams)
        said = str((await agent.ask("hello")).reason.message)
        assert "the pre_tool seam" in said
        assert "guard returned False, which cannot be awaited; make it an async function" in said
        assert "0 1" not in sent(script)


async def spare(*_arguments: Any) -> AsyncIterator[None]:
    """A generator, which no seam is."""
    yield None


NO_SEAMS: dict[str, tuple[Any, str]] = {
    "one function": (noting([], "pre_tool"), "must be a tuple of async functions, such as (mine,)"),
    "text": ("mine", "must be a tuple of async functions, such as (mine,), not str"),
    "None": (None, "must be a tuple of async functions, such as (mine,), not NoneType"),
    "a set": ({spare}, "must be a tuple of async functions, such as (mine,), not set"),
    "a tuple of a plain function": ((len,), "holds len, which is no async function; write it as "),
    "a tuple of text": (("mine",), "holds str, which is no function; give it an async function"),
    "a tuple of a class": ((Deny,), "holds the class Deny; give it an async function"),
    "a tuple of a lambda": ((lambda _: None,), "<lambda>, which is no async function; write it as"),
    "a tuple of a generator": ((spare,), "holds spare, which yields; let it return what it says"),
    "a tuple of what runs already": ((yielding(),), "holds async_generator, which is no function"),
}


@pytest.mark.parametrize("given", NO_SEAMS)
@pytest.mark.parametrize("kind", NAMES)
def test_what_is_no_tuple_of_async_functions_is_refused_where_it_is_given(
    kind: str, given: str
) -> None:
    seams, said = NO_SEAMS[given]
    with pytest.raises(refold.InvalidArgument, match=kind) as refused:
        Seams(**{kind: seams})
    assert said in str(refused.value)


async def none() -> None: ...
async def three(_a: object, _b: object, _c: object) -> None: ...
async def named(*, _call: object) -> None: ...


@pytest.mark.parametrize("seam", [none, three, named])
@pytest.mark.parametrize("kind", NAMES)
def test_a_seam_that_cannot_be_called_with_what_its_kind_is_given_is_refused(
    kind: str, seam: Any
) -> None:
    given = {"session_start": "log, source", "post_tool": "call, outcome"}.get(kind, "")
    with pytest.raises(refold.InvalidArgument) as refused:
        Seams(**{kind: (seam,)})
    said = str(refused.value)
    assert said.startswith(f"{kind} holds {seam.__name__}, which cannot be called with what a seam")
    assert given in said


def test_a_misspelt_seam_is_refused_with_the_one_that_was_meant() -> None:
    make: Any = Seams
    with pytest.raises(refold.InvalidArgument) as refused:
        make(pre_tol=(three,))
    assert str(refused.value) == (
        "pre_tol is no kind of seam; did you mean pre_tool? There are " + ", ".join(NAMES)
    )
    with pytest.raises(refold.InvalidArgument, match="guard is no kind of seam; there are"):
        make(guard=(three,))
    with pytest.raises(refold.InvalidArgument, match=r"by its kind, as in Seams\(pre_tool=\(mine,"):
        make((three,))


async def test_methods_partials_objects_and_wrappers_of_async_functions_are_seams() -> None:
    class Guard:
        async def method(self, _call: refold.CallView) -> None: ...
        async def __call__(self, _call: refold.CallView) -> None: ...

    async def two(_limit: int, _call: refold.CallView, _more: str = "") -> None: ...

    async def any_number(*_arguments: Any, **_options: Any) -> None: ...

    @functools.wraps(two)
    def wrapper(call: refold.CallView) -> Any:
        return two(1, call)

    seams: Any = [Guard().method, Guard(), functools.partial(two, 1), wrapper, any_number]
    script = Script(calls_once)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], seams=Seams(pre_tool=seams)
        )
        assert (await agent.ask("hello")).text == "done"


TYPOS: dict[str, Callable[[refold.SeamLog], Any]] = {
    "append text": lambda log: log.append("x"),  # type: ignore[arg-type]  # the point of it
    "append data": lambda log: log.append(ContextMessage(text("x"), PLUGIN)),  # type: ignore[arg-type]  # as above
    "append a list": lambda log: log.append([draft(ContextMessage(text("x"), PLUGIN))]),  # type: ignore[arg-type]  # as above
    "append nothing of its kind": lambda _: draft(object()),
    "append text for blocks": lambda _: draft(ContextMessage("x", PLUGIN)),  # type: ignore[arg-type]  # as above
    "append a citation to come": lambda log: log.append(
        draft(ContextMessage(text("x"), PLUGIN), cites=[10**6])
    ),
    "append a citation out of the batch": lambda log: log.append(
        draft(ContextMessage(text("x"), PLUGIN), cites=[refold.InBatch(1)])
    ),
    "flush with text": lambda log: log.append(flush="yes"),  # type: ignore[arg-type]  # as above
    "reach for the folds": lambda log: log.live,  # type: ignore[attr-defined]  # as above
    "read from text": lambda log: log.events("0"),  # type: ignore[arg-type]  # as above
}


@pytest.mark.parametrize("typo", TYPOS)
async def test_a_typo_in_a_seam_ends_the_turn_and_never_the_session(
    typo: str, autojump_clock: trio.testing.MockClock
) -> None:
    typed: list[str] = []

    async def clumsy(view: refold.StepView) -> None:
        if not typed:
            typed.append(typo)
            made = TYPOS[typo](view.log)
            await made

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(clumsy,)))
        turn = await agent.ask("hello")
        assert turn.reason.kind == "error"
        assert (await agent.ask("again")).text == "fine"
        events = assert_sound(runtime, agent)
        assert kinds(events).count("session/owner") == 1
        assert of_type(events, "context/message") == []


async def test_a_seam_reads_the_log_and_cannot_change_what_it_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    read: list[Any] = []

    async def look(view: refold.StepView) -> None:
        pending: Any = await view.log.pending()
        header, messages = await view.log.header(), await view.log.messages()
        events = [event async for event in view.log.events()]
        later = [event.seq async for event in view.log.events(events[-1].seq)]
        none = [event async for event in view.log.events(events[-1].seq + 1)]
        read.append((list(pending), header, [text_of(one.content) for one in messages]))
        assert kinds(events)[-1] == "turn/start"
        assert (later, none) == ([events[-1].seq], [])
        assert view.log.session_id == agent.session_id
        assert await view.log.flush() >= events[-1].seq
        with pytest.raises(TypeError):
            del pending[read[-1][0][0]]

    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(look,)))
        await agent.ask("hello")
        await agent.ask("again")
        (first, header, messages), (second, later, more) = read
        assert (len(first), header, messages) == (1, None, [])
        assert (len(second), more) == (1, ["hello", "one"])
        assert later.config.model == "m"
        assert_sound(runtime, agent)


async def test_a_batch_may_cite_its_own_drafts(autojump_clock: trio.testing.MockClock) -> None:
    async def both(view: refold.StepView) -> None:
        one, two = ContextMessage(text("one"), PLUGIN), ContextMessage(text("two"), PLUGIN)
        first = await view.log.append(draft(one))
        await view.log.append(draft(one), draft(two, cites=[first[0].seq, refold.InBatch(0)]))

    async with refold.open("memory:", providers=[Script([Say("fine")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(both,)))
        assert (await agent.ask("hello")).text == "fine"
        found = [e for e in assert_sound(runtime, agent) if e.type == "context/message"]
        assert found[2].source_event_seqs == (found[0].seq, found[1].seq)


async def test_a_batch_that_would_cite_one_event_twice_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def guess(view: refold.StepView) -> None:
        seq = [event.seq async for event in view.log.events()][-1] + 1
        one = ContextMessage(text("one"), PLUGIN)
        await view.log.append(draft(one), draft(one, cites=[seq, refold.InBatch(0)]))

    async with refold.open("memory:", providers=[Script([Say("fine")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(pre_step=(guess,)))
        assert "doubles" in str((await agent.ask("hello")).reason.message)
        assert of_type(assert_sound(runtime, agent), "context/message") == []
