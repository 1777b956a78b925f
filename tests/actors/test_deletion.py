"""Deleting sessions through a runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import refold
from refold import Say, Script
from refold.actors.runtime import AgentOpen
from refold.runtime.errors import InvalidSessionId
from refold.runtime.storage import AlreadyExists, NotFound, SessionBusy
from tests.actors.test_invariants import before_sealing, slip_in

STORES = ["memory:", "folder", "sqlite:///sessions.db"]


@pytest.fixture(params=STORES)
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(request.param)


async def test_a_session_whose_agent_is_closed_is_deleted_for_good(where: str) -> None:
    async with refold.open(where, providers=[Script([Say("one"), Say("two")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="mine")
        await agent.ask("hello")
        with pytest.raises(AgentOpen, match="close the agent"):
            await runtime.delete("mine")
        await agent.close()
        with pytest.raises(AlreadyExists):
            await runtime.start_agent(model="script/m", session_id="mine")
        await runtime.delete("mine")
        assert await runtime.list() == []
        with pytest.raises(NotFound):
            await runtime.delete("mine")
        with pytest.raises(NotFound):
            await runtime.resume("mine")
        again = await runtime.start_agent(model="script/m", session_id="mine")
        assert (await again.ask("hello")).turn == 1


async def test_the_session_of_a_parked_agent_is_kept_for_it(where: str) -> None:
    async with refold.open(where, providers=[Script([Say("one"), Say("two")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="mine")
        await agent.ask("hello")
        await agent.park()
        with pytest.raises(AgentOpen):
            await runtime.delete("mine")
        assert (await agent.ask("and now?")).text == "two"


@pytest.mark.parametrize("where", STORES[1:])
async def test_a_session_that_another_runtime_has_open_is_refused(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with refold.open(where, providers=[Script([Say("one"), Say("two")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="mine")
        await agent.ask("hello")
        async with refold.open(where) as other:
            with pytest.raises(SessionBusy, match="in this very process") as refused:
                await other.delete("mine")
        assert refused.value.here
        assert (await agent.ask("and now?")).text == "two"


async def test_what_is_no_id_is_refused(where: str) -> None:
    async with refold.open(where) as runtime:
        with pytest.raises(InvalidSessionId):
            await runtime.delete("../mine")


async def test_a_refused_fork_leaves_no_session(where: str) -> None:
    async with refold.open(where, providers=[Script([Say("one")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="mine")
        await agent.ask("hello")
        with pytest.raises(refold.RefoldError):
            await runtime.fork("mine", temperature=float("nan"))
        with pytest.raises(refold.RefoldError):
            await runtime.fork("mine", extra={"messages": []})
        assert await runtime.list() == ["mine"]


@pytest.mark.parametrize("where", STORES[1:])
async def test_a_report_goes_with_its_session(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with refold.open(where, providers=[Script([Say("one"), Say("two")])]) as runtime:
        for session in ("mine", "mine-too"):
            agent = await runtime.start_agent(model="script/m", session_id=session)
            before_sealing(agent, slip_in)
            turn = await agent.ask("hello")
            assert turn.reason.code == "INVARIANT"
            await agent.close()
        await runtime.delete("mine")
    left = await trio.to_thread.run_sync(lambda: {*tmp_path.rglob("mine*.violation-*.json")})
    assert [path.name.split(".")[0] for path in left] == ["mine-too"]
    report = trio.Path(*left)
    assert b"psst" in await report.read_bytes()
    assert (await report.parent.stat()).st_mode & 0o077 == 0
