"""A scope of `asking` is left at its every checkpoint, by a cancellation and by a Ctrl-C.

Wherever that falls, the prompt was never queued, or it is over and that is durable when the scope
has been left; and what was not taken reaches no model. The agent goes on.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Call, Delay, Say, Script
from refold.runtime.events import InboxQueued
from refold.runtime.messages import text_of
from tests.agents import assert_sound, stored_events
from tests.seeded import run_seeded

LEAST = 10
"""The fewest checkpoints that make a scope worth leaving at each."""


@attrs.define(eq=False)
class LeaveAt(trio.abc.Instrument):
    """Strikes before the `at`-th step that any task makes while the scope is open."""

    at: int
    strike: Callable[[], object] = lambda: None
    open: bool = False
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.open:
            self.steps += 1
            if self.steps == self.at:
                self.strike()


@refold.tool
async def look() -> str:
    """Look for a second."""
    await trio.sleep(1)
    return "seen"


def reply(body: Any) -> Any:
    last = body["messages"][-1]
    if last["role"] == "tool" or last["content"] not in ("go", "other"):
        return Say("fine")
    return [Delay(1), Say("I look."), Call("look")]


async def life(leave: LeaveAt, *, by: str, queued: bool) -> int:
    """One scope, left at a checkpoint; with `queued` its prompt stands behind another turn."""
    script, text = Script(reply), "mine" if queued else "go"
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[look])
        await agent.ask("warm up")
        if queued:
            await agent.prompt("other")
        trio.lowlevel.add_instrument(leave)
        try:
            with trio.CancelScope() as scope:
                leave.strike = scope.cancel if by == "cancel" else ctrl_c
                leave.open = True
                async with agent.asking(text) as asked:
                    await asked.answer()
            leave.open = False
            await trio.lowlevel.checkpoint()  # a Ctrl-C that came late
        except KeyboardInterrupt:
            assert by == "ctrl-c"
        finally:
            leave.open = False
            trio.lowlevel.remove_instrument(leave)
        assert_over(runtime, agent, script, text)
        await agent.wait_idle()
        assert (await agent.ask("and now?")).text == "fine"
        assert_sound(runtime, agent)
    return leave.steps


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def assert_over(runtime: refold.Runtime, agent: refold.Agent, script: Script, text: str) -> None:
    """The prompt was never queued, or its end is in the store and durable."""
    events = stored_events(runtime, agent.session_id)
    queued = [
        event.seq
        for event in events
        if isinstance(event.data, InboxQueued) and text_of(event.data.content) == text
    ]
    for seq in queued:
        removed = [e.seq for e in events if e.type == "inbox/removed" and seq in e.data.queued_seqs]
        cites = [e.seq for e in events if e.surface_op and seq in (e.source_event_seqs or ())]
        assert len(removed) + len(cites) == 1
        ends = [e.seq for e in events if e.type == "turn/end" and cites and e.seq > cites[0]]
        assert (removed or ends)[0] <= agent.snapshot().durable_seq
        assert not removed or not any(f'"{text}"'.encode() in body for body in script.bodies)
    assert len(queued) <= 1


@pytest.mark.parametrize("by", ["cancel", "ctrl-c"])
@pytest.mark.parametrize("queued", [False, True], ids=["at once", "behind a turn"])
def test_a_scope_may_be_left_at_every_checkpoint(
    by: str, queued: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def live(at: int) -> int:
        leave = LeaveAt(at)
        return run_seeded(lambda _: life(leave, by=by, queued=queued), 1, monkeypatch)

    checkpoints = live(0)
    with capsys.disabled():
        sys.stdout.write(f" [{checkpoints} checkpoints]")
    assert checkpoints >= LEAST
    for at in range(1, checkpoints + 1):
        live(at)
