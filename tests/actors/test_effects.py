"""What an option or a call has for its effect, where nothing else would tell that it has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import refold
from refold import Call, Fail, Hang, Say, Script
from refold.actors.stores.committer import LocalGrant
from refold.actors.stores.local import EmbeddedStore
from refold.actors.turn.seams import Seams
from refold.runtime.envelope import draft
from refold.runtime.events import CompactStart, CompactSummary
from refold.runtime.json import Json
from refold.runtime.messages import text_of
from refold.runtime.request_header import LlmCallConfig
from tests.agents import (
    assert_sound,
    headers,
    kinds,
    of_type,
    stored_events,
)

SLOW = 5.0
"""Seconds that a sync takes here."""


@pytest.fixture
def slow_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync takes its time, so that what returns before it is seen."""
    sync = LocalGrant.sync

    async def slowly(grant: LocalGrant) -> int:
        await trio.sleep(SLOW)
        return await sync(grant)

    monkeypatch.setattr(LocalGrant, "sync", slowly)


async def leave(agent: refold.Agent, key: str | None = None) -> int:
    """An entry that starts no turn."""
    return await agent.inject("first", idempotency_key=key)


Saying = Callable[[refold.Agent, int], Awaitable[int | None]]

DURABLE: dict[str, Saying] = {
    "prompt": lambda agent, _: agent.prompt("more"),
    "inject": lambda agent, _: agent.inject("more"),
    "steer": lambda agent, _: agent.steer("more"),
    "edit": lambda agent, first: agent.edit(first, "instead"),
    "remove": lambda agent, first: agent.remove(first),
}


@pytest.mark.usefixtures("slow_syncs")
@pytest.mark.parametrize("what", DURABLE)
async def test_what_was_said_is_durable_when_the_call_returns(
    what: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        first = await leave(agent)
        said = await DURABLE[what](agent, first)
        durable = agent.snapshot().durable_seq
        changed = [
            event.seq
            for event in stored_events(runtime, agent.session_id)
            if event.type.startswith("inbox/") and event.seq > first
        ]
        assert changed
        assert durable >= max(changed[0], said or 0)


@pytest.mark.usefixtures("slow_syncs")
@pytest.mark.parametrize("call", ["inject", "prompt"])
async def test_a_repeat_under_a_key_returns_when_the_first_is_durable(
    call: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with refold.open("memory:", providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await leave(agent)
        returned: list[tuple[int, bool]] = []

        async def say() -> None:
            seq = await getattr(agent, call)("once", idempotency_key="k")
            returned.append((seq, agent.snapshot().durable_seq >= seq))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(say)
            await trio.sleep(SLOW / 2)
            nursery.start_soon(say)
        (one, durable), again = returned
        assert durable
        assert again == (one, True)
        queued = of_type(stored_events(runtime, agent.session_id), "inbox/queued")
        assert len(queued) == 2


async def syncs_of_a_call(folder: Path, effects: bool) -> int:
    @refold.tool(effects=effects)
    async def look() -> str:
        """Look."""
        return "seen"

    script = Script([[Call("look")], Say("done")])
    async with refold.open(folder, providers=[script]) as runtime:
        store = runtime.store
        assert isinstance(store, EmbeddedStore)
        agent = await runtime.start_agent(model="script/m", tools=[look])
        before = store.statistics.syncs
        await agent.ask("go")
        return store.statistics.syncs - before


async def test_a_tool_without_effects_saves_a_sync(tmp_path: Path) -> None:
    """A body that changes nothing may be run again: it need not wait for its `tool/call`."""
    with_effects = await syncs_of_a_call(tmp_path / "with", True)
    without = await syncs_of_a_call(tmp_path / "without", False)
    assert with_effects - without == 1


async def test_a_retry_stands_in_the_log_before_the_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Fail("RATE_LIMIT", retry_after_ms=50_000), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(5)
            requests = [len(script.bodies)]
            (retry,) = of_type(stored_events(runtime, agent.session_id), "llm/retry")
            assert (retry.attempt, retry.delay_ms, retry.failure.code) == (1, 50_000, "RATE_LIMIT")
        requests.append(len(script.bodies))
    assert requests == [1, 2]
    assert trio.current_time() >= 50


async def test_a_request_seam_that_changes_only_extra_gets_its_header() -> None:
    wanted = [None, Json.of({"seed": 1}), Json.of({"seed": 1}), Json.of({"seed": 2})]

    async def seed(config: LlmCallConfig) -> LlmCallConfig:
        return attrs.evolve(config, extra=wanted[len(script.bodies)])

    script = Script(lambda _: Say("fine"))
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=Seams(request=(seed,)))
        for _ in wanted:
            await agent.ask("hello")
        written = headers(assert_sound(runtime, agent))
    assert [header.reason for header in written] == ["initial", "change", "change"]
    assert [header.header.config.extra for header in written] == [wanted[0], wanted[1], wanted[3]]
    assert [body.count(b'"seed":1') for body in script.bodies] == [0, 1, 1, 0]
    assert script.bodies[3].count(b'"seed":2') == 1


async def cancelled_while_two_wait(
    autojump: trio.testing.MockClock,
) -> list[tuple[str, str, tuple[int, ...] | None]]:
    """The results of two calls of which the first ran when the turn was cancelled."""

    @refold.tool
    async def dig() -> str:
        """Dig."""
        await trio.sleep(1_000)
        return "never"

    script = Script([[Call("dig", id="one"), Call("dig", id="two")], Say("done")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[dig])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "go")
            await trio.sleep(1)
            await agent.cancel("enough")
        events = assert_sound(runtime, agent)
    return [
        (event.data.call_id, text_of(event.data.content), event.source_event_seqs)
        for event in events
        if event.type == "tool/result"
    ]


async def test_a_cancelled_call_says_what_may_have_happened_and_one_that_never_ran_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    (one, ran, cites), (two, idle, nothing) = await cancelled_while_two_wait(autojump_clock)
    assert (one, two) == ("one", "two")
    assert "aborted while it ran" in ran
    assert "Check the state" in ran
    assert "Nothing ran" in idle
    assert "Check the state" not in idle
    assert cites is not None
    assert nothing is None


@pytest.mark.parametrize("summed_up", [False, True])
async def test_a_cancel_ends_an_open_compaction_before_the_turn(
    summed_up: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with refold.open("memory:", providers=[Script([Hang(), Say("fine")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(1)
            await agent.log.append(draft(CompactStart(1, "p", "m", (0, 0), "v1", "0" * 64)))
            if summed_up:
                summary = CompactSummary(1, "s", (0, 0), (0,), "p", "m")
                await agent.log.append(draft(summary))
            await agent.cancel("enough")
        assert (await agent.ask("and now?")).text == "fine"
        events = assert_sound(runtime, agent)
    (end,) = of_type(events, "compact/end")
    assert end.turn == 1
    assert end.error is not None
    order = [kind for kind in kinds(events) if kind in ("compact/end", "step/end", "turn/end")]
    assert order[:3] == ["compact/end", "step/end", "turn/end"]


async def test_a_restart_after_a_crash_ends_an_open_compaction(tmp_path: Path) -> None:
    script = Script(lambda _: Say("fine"))
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("hello")
        await agent.log.append(draft(CompactStart(None, "p", "m", (0, 0), "v1", "0" * 64)))
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.resume("s")
        assert (await agent.ask("again")).text == "fine"
        events: list[Any] = assert_sound(runtime, agent)
    (end,) = of_type(events, "compact/end")
    assert end.error == "interrupted"
