"""One turn, cancelled at its every checkpoint, one by one.

The turn thinks, speaks and runs three tools side by side, on a virtual clock and a store in
memory. Only the steps of the task that runs the turn and of that task's descendants are counted;
a seeded schedule makes them the same in every life up to the cancel.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Call, Say, Script, Think
from refold.actors.turn.agent_loop import AgentLoop
from refold.runtime.envelope import Event
from refold.runtime.events import SURFACE, EndReason
from refold.runtime.messages import tool_calls
from tests.agents import assert_sound, of_type
from tests.seeded import run_seeded

LEAST = 60
"""The fewest checkpoints that make such a turn worth cancelling at each."""

ENOUGH = EndReason("aborted", reason="enough")


@attrs.define(eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels the turn in hand before the `at`-th step of its task or a descendant of it."""

    at: int
    loop: AgentLoop | None = None
    root: trio.lowlevel.Task | None = None
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.loop is None or self.loop._cancel is None or not self._belongs(task):
            return
        self.steps += 1
        if self.steps == self.at:
            self.loop._cancel(ENOUGH)

    def _belongs(self, task: trio.lowlevel.Task) -> bool:
        above: trio.lowlevel.Task | None = task
        while above is not None and above is not self.root:
            nursery = above.parent_nursery
            above = None if nursery is None else nursery.parent_task
        return above is not None


@attrs.define
class Life:
    """One agent with its first turn cancelled somewhere; `acknowledged` is input by its seq."""

    agent: refold.Agent
    acknowledged: dict[int, str] = attrs.field(factory=dict)

    async def prompt(self, text: str) -> None:
        self.acknowledged[await self.agent.prompt(text)] = text


def reply(body: Any) -> Any:
    """Three calls at first, an answer after their results, and another to what comes later."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return [Think("they are here"), Say("done", pieces=2)]
    if last["content"] != "go":
        return Say("fine")
    calls = [Call("look", {"seconds": seconds}) for seconds in (2, 1, 3)]
    return [Think("hm, let me see", pieces=3), Say("I will look.", pieces=3), *calls]


async def live(runtime: refold.Runtime, cancel: CancelAt) -> Life:
    """A life up to the end of the turn that `cancel` may end early."""

    @refold.tool(parallel=True)
    async def look(seconds: float) -> str:
        """Look for some seconds."""
        await trio.sleep(seconds)
        await life.prompt(f"after {seconds:g} s")
        return f"looked for {seconds:g} s"

    agent = await runtime.start_agent(model="script/m", tools=[look], chunks="verbatim")
    life = Life(agent)
    cancel.loop = agent._opened.loop
    trio.lowlevel.add_instrument(cancel)
    try:
        await life.prompt("go")
        await agent.answer(next(iter(life.acknowledged)))
    finally:
        trio.lowlevel.remove_instrument(cancel)
    return life


def assert_kept_once(life: Life, events: list[Event]) -> None:
    """Each acknowledged input is in history, pending or given up with its turn, exactly once."""
    pending = life.agent.log.live.rules.inbox.pending
    cited = [seq for e in events if e.type in SURFACE for seq in e.source_event_seqs or ()]
    removed = [seq for one in of_type(events, "inbox/removed") for seq in one.queued_seqs]
    places = Counter([*cited, *pending, *removed])
    assert {seq: places[seq] for seq in life.acknowledged} == dict.fromkeys(life.acknowledged, 1)


def assert_each_call_answered_once(events: list[Event]) -> None:
    messages = of_type(events, "assistant/message")
    called = [call.id for message in messages for call in tool_calls(message.content)]
    assert Counter(r.call_id for r in of_type(events, "tool/result")) == Counter(called)


async def a_life(at: int, patch: pytest.MonkeyPatch) -> tuple[int, str]:
    """A life whose first turn is cancelled at its `at`-th checkpoint: how many it had, its end."""
    cancel, script, turn = CancelAt(at), Script(reply), AgentLoop._turn

    async def turn_of_this_task(loop: AgentLoop, *arguments: Any) -> None:
        if loop is cancel.loop and cancel.root is None:
            cancel.root = trio.lowlevel.current_task()
        await turn(loop, *arguments)

    with patch.context() as patched:
        patched.setattr(AgentLoop, "_turn", turn_of_this_task)
        async with refold.open("memory:", providers=[script]) as runtime:
            life = await live(runtime, cancel)
            ended = of_type(assert_sound(runtime, life.agent), "turn/end")[0].reason
            assert ended in (ENOUGH, EndReason("completed"))
            await assert_goes_on(runtime, life)
    return cancel.steps, ended.kind


async def assert_goes_on(runtime: refold.Runtime, life: Life) -> None:
    """The log is sound as the first turn left it, and after the next prompt was answered."""
    check(life, assert_sound(runtime, life.agent))
    await life.agent.wait_idle()
    turn = await life.agent.ask("and now?")
    assert (turn.reason, turn.text) == (EndReason("completed"), "fine")
    check(life, assert_sound(runtime, life.agent))


def check(life: Life, events: list[Event]) -> None:
    assert_each_call_answered_once(events)
    assert_kept_once(life, events)


@pytest.mark.parametrize("seed", range(3))
def test_a_turn_survives_a_cancel_at_its_every_checkpoint(
    seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def live_once(at: int) -> tuple[int, str]:
        return run_seeded(lambda _random: a_life(at, monkeypatch), seed, monkeypatch)

    checkpoints, ended = live_once(0)
    with capsys.disabled():
        sys.stdout.write(f" [{checkpoints} checkpoints]")
    assert (checkpoints >= LEAST, ended) == (True, "completed")
    lives = {at: live_once(at) for at in range(1, checkpoints + 1)}
    assert all(steps >= at for at, (steps, _) in lives.items())
    assert Counter(ended for _, ended in lives.values())["aborted"] >= LEAST
