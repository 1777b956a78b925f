"""A session that an older refold sealed with `chat/1` goes on in `chat/2`, and says so once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

import refold
from refold import Call, Say, Script
from refold.actors.request.script import Script as AnyScript
from refold.actors.tools import Tool
from refold.runtime.divergence import compare_steps, rebuild_step
from refold.runtime.envelope import Event
from refold.runtime.prefix import common_prefix
from refold.runtime.step_names import list_steps
from refold.runtime.usage import usage_by_step
from refold.runtime.wire.chat import CHAT, CHAT_1
from tests.agents import assert_sound, headers, of_type, stored_events
from tests.refold.cli_stores import CliStore


def slow_first() -> Tool:
    """A tool whose call at A ends after the one at B."""
    looked_at_b = trio.Event()

    @refold.tool(parallel=True)
    async def look(place: str) -> str:
        """Look at a place."""
        if place == "B":
            looked_at_b.set()
        else:
            await looked_at_b.wait()
            await trio.sleep(0.1)
        return f"{place} is fine"

    return look


def reply(body: Any) -> Any:
    if body["messages"][-1]["content"] == "look":
        return [Call("look", {"place": place}, id=place) for place in "AB"]
    return Say("done")


class OlderScript(AnyScript):
    """A model as an older refold wrote to it."""

    @property
    def format(self) -> Any:
        return CHAT_1


class NewerScript(AnyScript):
    """A model as a newer refold would write to it."""

    @property
    def format(self) -> Any:
        return attrs.evolve(CHAT, name="chat/9")


async def two_lives(store: Path, *, fork: bool = False) -> tuple[list[bytes], list[Event], str]:
    older, script = OlderScript(reply), Script(reply)
    async with refold.open(store, providers=[older]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[slow_first()], session_id="s")
        await agent.ask("look")
        await agent.ask("and now?")
    async with refold.open(store, providers=[script]) as runtime:
        agent = await (runtime.fork if fork else runtime.resume)("s", tools=[slow_first()])
        await agent.ask("still there?")
        await agent.ask("look")
        return [*older.bodies, *script.bodies], assert_sound(runtime, agent), agent.session_id


@pytest.mark.parametrize("fork", [False, True])
async def test_the_new_codec_comes_with_the_resume_header_and_every_seal_verifies(
    tmp_path: Path, fork: bool
) -> None:
    bodies, events, _ = await two_lives(tmp_path, fork=fork)
    seals = of_type(events, "request/sealed")
    assert [seal.codec for seal in seals] == ["chat/1"] * 3 + ["chat/2"] * 3
    assert [header.reason for header in headers(events)] == ["initial", "resume"]
    shown = [
        [m["content"] for m in orjson.loads(body)["messages"] if m["role"] == "tool"]
        for body in (bodies[2], bodies[3])
    ]
    assert shown == [["B is fine", "A is fine"], ["A is fine", "B is fine"]]
    shared = [seal.shared_prefix_bytes for seal in seals[1:]]
    assert shared == [common_prefix(one, other) for one, other in pairwise(bodies)]


async def test_usage_names_the_one_break_codec(tmp_path: Path) -> None:
    _, events, _ = await two_lives(tmp_path)
    rows = usage_by_step(events)
    kinds = [[found.kind for found in row.breaks] for row in rows]
    assert kinds == [[], [], [], ["instance", "codec"], [], []]
    assert rows[3].breaks[1].codecs == ("chat/1", "chat/2")
    kept = [row.kept for row in rows]
    assert kept[1] == kept[2] == kept[4] == kept[5] == 1
    assert kept[3] is not None
    assert kept[3] < 1


async def test_diff_names_the_codec_where_the_same_history_is_written_in_another_way(
    tmp_path: Path,
) -> None:
    _, events, _ = await two_lives(tmp_path)
    steps = [rebuild_step(events, step) for step in list_steps(events)]
    found = compare_steps(steps[2], steps[3]).divergence
    assert found is not None
    assert found.codecs == ("chat/1", "chat/2")
    assert (found.cause.type, found.cause.data.reason) == ("request/header", "resume")
    assert compare_steps(steps[0], steps[3]).divergence is None, "before the calls all is equal"
    assert compare_steps(steps[3], steps[4]).divergence is None
    back = compare_steps(steps[3], steps[2]).divergence
    assert back is not None
    assert back.codecs == ("chat/2", "chat/1")


async def test_the_command_line_says_so(tmp_path: Path) -> None:
    await two_lives(tmp_path)
    store = CliStore(tmp_path)
    ran = await trio.to_thread.run_sync(lambda: store.run("usage", "s"))
    assert "codec: chat/1 -> chat/2 (seq " in ran.out
    ran = await trio.to_thread.run_sync(lambda: store.run("diff", "s", "2.1", "3.1"))
    assert "caused by         codec: chat/1 -> chat/2, with seq " in ran.out
    assert "request/header of s (resume)" in ran.out
    ran = await trio.to_thread.run_sync(lambda: store.run("diff", "s", "2.1", "3.1", "--json"))
    assert orjson.loads(ran.out)["divergence"]["cause"]["kind"] == "codec"


async def test_a_session_whose_codec_is_not_known_here_goes_on_in_one_that_is(
    tmp_path: Path,
) -> None:
    """A newer refold wrote its last request: there are no bytes to go on from."""

    async with refold.open(tmp_path, providers=[NewerScript([Say("one")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s", invariants="off")
        await agent.ask("hello")
    async with refold.open(tmp_path, providers=[Script([Say("two")])]) as runtime:
        agent = await runtime.resume("s")
        assert (await agent.ask("and now?")).text == "two"
        seals = of_type(stored_events(runtime, "s"), "request/sealed")
    assert [(seal.codec, seal.shared_prefix_bytes) for seal in seals][1] == ("chat/2", 0)


async def test_a_live_seal_in_a_codec_that_nobody_can_write_is_not_cleared(tmp_path: Path) -> None:
    script = NewerScript([Say("one")])
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
    assert turn.reason.code == "INVARIANT"
    assert turn.reason.message is not None
    assert "the codec 'chat/9', which nobody here can write" in turn.reason.message
    assert script.bodies == []


async def test_diff_does_not_blame_the_codec_for_what_the_header_changed(tmp_path: Path) -> None:
    tools = [slow_first()]
    async with refold.open(tmp_path, providers=[OlderScript(reply)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=tools, session_id="s")
        await agent.ask("hello")
    async with refold.open(tmp_path, providers=[Script(reply)]) as runtime:
        agent = await runtime.resume("s", tools=tools, temperature=0.5)
        await agent.ask("still there?")
        events = assert_sound(runtime, agent)
    found = compare_steps(*(rebuild_step(events, step) for step in list_steps(events))).divergence
    assert found is not None
    assert (found.path, found.codecs) == ("/temperature", None)
    assert found.cause.type == "request/header"
