"""A store that has no room, or is busy, for a while: the agents that meet it live on."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import refold
from refold import Call, Say, Script
from refold.actors.stores import EmbeddedStore, open_store
from refold.faults import FailingPort, Fault
from refold.runtime.envelope import Event, decode_line
from refold.runtime.storage import OS, SqliteFile, StoreFull, open_sessions
from refold.runtime.storage.errors import LogFailed, StoreBusy

LONG = "x" * 100_000


@attrs.define
class Need:
    """A store that can be brought into need and out of it; `refusal` is what it says then."""

    store: EmbeddedStore
    address: str
    take: Callable[[], object]
    give: Callable[[], object]
    refusal: type[Exception]

    def raw(self) -> bytes:
        return open_sessions(self.address).raw("s")

    def events(self) -> list[Event]:
        found = open_sessions(self.address).read("s")
        assert found.torn is None
        return [decode_line(record.encoded) for record in found.records]

    def of_type(self, type_: str) -> list[Any]:
        return [event.data for event in self.events() if event.type == type_]

    def prompts(self) -> list[str]:
        return [said.content[0].text[:9] for said in self.of_type("user/message")]


def files_without_room(path: Path) -> Need:
    port = FailingPort(OS)
    full = [Fault("pwrite", code, times=None) for code in (errno.ENOSPC,)]
    return Need(
        open_store(path, port),
        str(path),
        lambda: port.faults.extend(full),
        port.faults.clear,
        StoreFull,
    )


def rows_without_room(path: Path) -> Need:
    store = open_store(f"sqlite:///{path}")
    assert isinstance(store.sessions, SqliteFile)
    database = store.sessions._database

    def limit(pages: int) -> None:
        database._connected().execute(f"PRAGMA max_page_count = {pages}")

    return Need(store, f"sqlite:///{path}", lambda: limit(1), lambda: limit(10**6), StoreFull)


def busy_rows(path: Path) -> Need:
    other: list[sqlite3.Connection] = []

    def take() -> None:
        other.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        other[-1].execute("BEGIN IMMEDIATE")

    return Need(
        open_store(f"sqlite:///{path}"),
        f"sqlite:///{path}",
        take,
        lambda: other.pop().close(),
        StoreBusy,
    )


@pytest.fixture(params=[files_without_room, rows_without_room, busy_rows])
def need(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Need:
    monkeypatch.setattr("refold.runtime.storage.sqlite.schema.BUSY_SECONDS", 0.2)
    made: Need = request.param(tmp_path / "store")
    return made


async def refused(need: Need, agent: refold.Agent, prompt: str = LONG) -> None:
    with pytest.raises(refold.ActorCrashed) as crashed:
        await agent.ask(prompt)
    assert isinstance(crashed.value.__cause__, need.refusal)
    assert "do it again" in str(crashed.value)


async def test_the_log_stays_as_it_was_and_the_same_agent_goes_on(need: Need) -> None:
    async with refold.open(need.store, providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("first")
        before = need.raw()
        need.take()
        await refused(need, agent)
        assert need.raw() == before
        assert not agent.snapshot().running
        for _ in range(2):  # an opening may add its lines where there is room for those
            await refused(need, agent)
        assert need.prompts() == ["first"]
        need.give()
        assert (await agent.ask("second")).text == "yes"
        assert (await agent.ask("third")).text == "yes"
        assert need.raw().startswith(before)
        assert need.prompts() == ["first", "second", "third"]
    again = refold.open(need.address, providers=[Script(lambda _: Say("again"))])
    async with again as runtime:
        agent = await runtime.resume("s")
        assert (await agent.ask("fourth")).text == "again"


async def test_who_follows_the_log_is_not_left_waiting_and_goes_on_where_it_ended(
    need: Need,
) -> None:
    seen: list[Event] = []

    async def follow(agent: refold.Agent) -> None:
        async for event in agent.events(len(seen)):
            seen.append(event)  # noqa: PERF401 - what is seen counts also where it is stopped

    async with refold.open(need.store, providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, agent)
            await trio.testing.wait_all_tasks_blocked()
            need.take()
            await refused(need, agent)
            with trio.fail_after(10):
                await agent.stopped.wait()
        need.give()
        assert [event.encoded for event in seen] == [event.encoded for event in need.events()]
        await agent.ask("second")
        with trio.move_on_after(0.5):
            await follow(agent)
        assert [event.encoded for event in seen] == [event.encoded for event in need.events()]


async def test_a_turn_that_meets_it_ends_in_error(need: Need) -> None:
    ran: list[str] = []

    @refold.tool(max_output=200_000)
    async def work() -> str:
        """Do something."""
        ran.append("once")
        need.take()
        return LONG

    script = Script([Call("work"), Say("after")])
    async with refold.open(need.store, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s", tools=[work])
        await refused(need, agent, "go")
        need.give()
        assert (await agent.ask("and?")).text == "after"
        first, last = need.of_type("turn/end")
        assert (first.reason.kind, first.reason.code) == ("error", "STORE_REFUSED")
        assert "do it again" in first.reason.message
        assert (last.reason.kind, ran) == ("completed", ["once"])
        [result] = need.of_type("tool/result")
        assert "outcome is unknown" in result.content[0].text


async def test_a_session_whose_first_batch_was_refused_begins_later(need: Need) -> None:
    async with refold.open(need.store, providers=[Script(lambda _: Say("yes"))]) as runtime:
        other = await runtime.start_agent(model="script/m", session_id="other")
        await other.ask("hello")
        agent = await runtime.start_agent(model="script/m", session_id="s")
        need.take()
        for _ in range(2):
            await refused(need, agent)
        assert open_sessions(need.address).list() == ["other"]
        need.give()
        assert (await agent.ask("now")).text == "yes"
        assert need.prompts() == ["now"]


async def test_many_agents_that_meet_it_at_once_all_go_on(need: Need) -> None:
    async with refold.open(need.store, providers=[Script(lambda _: Say("yes"))]) as runtime:
        agents = [await runtime.start_agent(model="script/m") for _ in range(5)]
        for agent in agents:
            await agent.ask("first")
        need.take()
        async with trio.open_nursery() as nursery:
            for agent in agents:
                nursery.start_soon(refused, need, agent)
        need.give()
        for agent in agents:
            assert (await agent.ask("second")).text == "yes"


async def test_what_was_acknowledged_before_it_is_kept_and_nothing_is_doubled(need: Need) -> None:
    acknowledged: list[int] = []
    async with refold.open(need.store, providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        for number in range(6):
            if number % 2:
                need.take()
                with pytest.raises(refold.ActorCrashed):
                    await agent.prompt(LONG, idempotency_key=f"k{number}")
                need.give()
            acknowledged.append(await agent.prompt(f"p{number}", idempotency_key=f"k{number}"))
            await agent.wait_idle()
    queued = {event.seq: event.data for event in need.events() if event.type == "inbox/queued"}
    assert [queued[seq].content[0].text for seq in acknowledged] == [f"p{n}" for n in range(6)]
    assert len(queued) == 6


async def test_a_failed_sync_is_never_tried_again_and_says_what_gets_on(tmp_path: Path) -> None:
    port = FailingPort(OS)
    store = open_store(tmp_path, port)
    async with refold.open(store, providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("first")
        port.faults.append(Fault("fdatasync", errno.ENOSPC, name="*.jsonl"))
        for _ in range(2):
            with pytest.raises(refold.ActorCrashed) as crashed:
                await agent.ask("second")
            assert isinstance(crashed.value.__cause__, LogFailed)
            assert "`resume` goes on" in str(crashed.value)
        again = await runtime.resume("s")
        assert (await again.ask("third")).text == "yes"
