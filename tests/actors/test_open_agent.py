"""Sessions by the ids that a program gives them: got or made, forked again, never without tools."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import refold
from refold import Say, Script
from refold.actors.get_or_create import NotThatFork, OptionsDiffer
from refold.actors.turn.options import ToolsLeftOut
from refold.runtime.storage.errors import AlreadyExists, SessionBusy
from tests.agents import count, read_file


def script() -> Script:
    return Script(lambda _body: Say("ok"))


@pytest.fixture(params=["folder", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s") if request.param == "folder" else f"sqlite:///{tmp_path}/s.db"


async def test_a_session_is_made_once_and_found_from_then_on(where: str) -> None:
    async with refold.open(where, providers=[script()]) as runtime:
        agent = await runtime.open_agent("desk", name="Desk", model="script/m")
        assert await runtime.open_agent("desk") is agent
        assert runtime.agents == {"desk": agent}
        assert (await agent.ask("one")).turn == 1
        await agent.park()
        assert await runtime.open_agent("desk", model="script/m") is agent
        await agent.close()
        assert runtime.agents == {}
        assert (await (await runtime.open_agent("desk")).ask("two")).turn == 2
    async with refold.open(where, providers=[script()]) as runtime:
        agent = await runtime.open_agent("desk", name="not used", model="script/m")
        assert (await agent.ask("three")).turn == 3
        assert agent.header.name == "Desk"


async def test_many_tasks_get_the_same_agent(where: str) -> None:
    got = list[refold.Agent]()

    async with refold.open(where, providers=[script()]) as runtime:

        async def get() -> None:
            got.append(await runtime.open_agent("desk", model="script/m"))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(get)
        assert len(got) == 8
        assert len(set(map(id, got))) == 1


async def test_an_opening_that_fails_leaves_the_next_one_free(where: str) -> None:
    async with refold.open(where, providers=[script()]) as runtime:
        with pytest.raises(refold.RefoldError, match="needs a model"):
            await runtime.open_agent("desk")
        assert await runtime.list() == []
        assert (await (await runtime.open_agent("desk", model="script/m")).ask("x")).turn == 1


async def test_an_agent_that_closes_is_waited_for(where: str) -> None:
    async with refold.open(where, providers=[script()]) as runtime:
        agent = await runtime.open_agent("desk", model="script/m")
        await agent.ask("one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.close)
            while agent.usable:
                await trio.lowlevel.checkpoint()
            again = await runtime.open_agent("desk")
        assert again is not agent
        assert (await again.ask("two")).turn == 2


async def test_another_runtime_is_told_who_has_it(where: str) -> None:
    async with (
        refold.open(where, providers=[script()]) as one,
        refold.open(where, providers=[script()]) as other,
    ):
        await (await one.open_agent("desk", model="script/m")).ask("x")
        with pytest.raises(SessionBusy):
            await other.open_agent("desk", model="script/m")


async def test_other_options_are_refused_by_name() -> None:
    async with refold.open("memory:", providers=[script()]) as runtime:
        agent = await runtime.open_agent("desk", model="script/m", tools=[count])
        same = {"model": "script/m", "tools": [count], "seams": refold.Seams(), "state": {"a": 1}}
        assert await runtime.open_agent("desk", **same) is agent  # type: ignore[arg-type]  # as a service passes them on
        with pytest.raises(OptionsDiffer, match="another tools and another system; close it"):
            await runtime.open_agent("desk", tools=[read_file], system="Other.")


async def test_a_fork_can_be_asked_for_again(where: str) -> None:
    async with refold.open(where, providers=[script()]) as runtime:
        parent = await runtime.open_agent("desk", model="script/m")
        first, second = await parent.ask("one"), await parent.ask("two")
        fork = await runtime.fork("desk", at=first.end_seq, session_id="twin")
        assert (await fork.ask("mine")).turn == 2
        await fork.close()
        again = await runtime.fork("desk", at=first.end_seq, session_id="twin")
        assert (await again.ask("more")).turn == 3
        await again.close()
        with pytest.raises(NotThatFork, match=f"no fork of 'desk' at seq {second.end_seq}"):
            await runtime.fork("desk", at=second.end_seq, session_id="twin")
        with pytest.raises(NotThatFork):
            await runtime.fork("twin", session_id="twin")
        assert sorted(await runtime.list()) == ["desk", "twin"]
        latest = await runtime.fork("desk", session_id="twin")
        assert (await latest.ask("x")).turn == 4
        await latest.close()
        with pytest.raises(AlreadyExists):
            await runtime.start_agent(session_id="twin", model="script/m")


async def test_tools_are_left_out_on_purpose_only(where: str) -> None:
    async with refold.open(where, providers=[script()]) as runtime:
        agent = await runtime.start_agent(session_id="desk", model="script/m", tools=[count])
        end = (await agent.ask("one")).end_seq
        with pytest.raises(ToolsLeftOut, match=r"'count'.*tools=\(\) to go on without"):
            await runtime.fork("desk", session_id="twin")
        await agent.close()
        for opening in (runtime.resume, runtime.open_agent):
            with pytest.raises(ToolsLeftOut):
                await opening("desk")
        assert await runtime.list() == ["desk"]
        agent = await runtime.resume("desk", tools=())
        assert (await agent.ask("two")).turn == 2
        twin = await runtime.fork("desk", at=end, tools=[count])
        assert twin.header.parent_session == "desk"


async def test_ids_may_be_addresses(where: str) -> None:
    ids = ["a@b.example", "tenant:thread.1", "a@b", "a.jsonl", "a"]
    for _ in range(2):
        async with refold.open(where, providers=[script()]) as runtime:
            for session_id in ids:
                await (await runtime.open_agent(session_id, model="script/m")).ask("x")
            assert await runtime.list() == sorted(ids)
    async with refold.open(where) as runtime:
        await runtime.delete("a")
        assert await runtime.list() == sorted(set(ids) - {"a"})
        await runtime.delete("a@b.example")
        assert await runtime.list() == sorted(set(ids) - {"a", "a@b.example"})
