"""A position that a log does not reach is an error that names the log's end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from refold import Say, Script
from refold.runtime.errors import NoSuchPosition
from tests.agents import stored_events

WRONG: list[Any] = [10**9, -1, 1.5, 2.0, "3", True, None, [0], 2**80]


@pytest.fixture(params=["folder", "sqlite", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "folder": str(tmp_path),
        "sqlite": f"sqlite:///{tmp_path}/sessions.db",
        "memory": "memory:",
    }[request.param]


@pytest.mark.parametrize("wanted", WRONG, ids=repr)
async def test_what_no_log_reaches_is_refused_with_its_end(where: str, wanted: Any) -> None:
    async with refold.open(where, providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/x")
        await agent.ask("hello")
        end = len(stored_events(runtime, agent.session_id))
        for durable in (True, False):
            with pytest.raises(NoSuchPosition, match=f"its next event will be seq {end}, ") as no:
                agent.events(wanted, durable=durable)
            assert no.value.next_seq == end
        with pytest.raises(NoSuchPosition):
            agent.events(end + 1)


async def test_the_next_event_can_be_waited_for_from_the_moment_of_opening(where: str) -> None:
    script = Script([Say("hi"), Say("again")])
    async with refold.open(where, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/x")
        await agent.ask("hello")
        end = len(stored_events(runtime, agent.session_id))
        following = agent.events(end)
        await agent.ask("more")
        assert (await anext(following)).seq == end
        following.close()
        await agent.close()
        if where != "memory:":
            again = await runtime.resume(agent.session_id)
            begin = again.events(end)
            assert (await anext(begin)).seq == end
            begin.close()


async def test_a_client_that_read_what_a_copy_lacks_is_told(tmp_path: Path) -> None:
    script = Script([Say("hi"), Say("more")])
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/x", session_id="s")
        await agent.ask("hello")
        await agent.close()
        copy = (tmp_path / "s.jsonl").read_bytes()
        again = await runtime.resume("s")
        await again.ask("and")
        seen = len(stored_events(runtime, "s"))
    (tmp_path / "s.jsonl").write_bytes(copy)
    (tmp_path / "s.head").unlink()
    async with refold.open(tmp_path, providers=[Script([Say("x")])]) as runtime:
        put_back = await runtime.resume("s")
        with pytest.raises(NoSuchPosition):
            put_back.events(seen)
