"""A recorded session answers the program that recorded it, and no other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import refold
from refold import Call, Delay, End, Fail, Say, Script, Think
from refold.logs import decode_line, open_sessions
from refold.runtime.json import Json
from refold.testing import replay


@refold.tool
async def price(item: str) -> int:
    """Look a price up."""
    return len(item)


ANSWERS = [
    [Think("hm"), Say("I look."), Call("price", {"item": "lamp"}), Call("price", {"item": "bed"})],
    [Think("so"), Say("4 and 3."), End("stop", Json.of({"reasoning_content": "so"}))],
    [Say("Bye."), End("stop")],
]


async def program(store: Path, model: Script, system: str = "Be brief.") -> list[refold.Turn]:
    async with refold.open(store, providers=[model]) as runtime:
        agent = await runtime.start_agent(
            session_id="booking", model="shop/m", system=system, tools=[price]
        )
        return [await agent.ask("A lamp and a bed?"), await agent.ask("Thanks.")]


def seals(store: Path) -> list[Any]:
    events = [decode_line(one.encoded) for one in open_sessions(store).read("booking").records]
    found = [event.data for event in events if event.type == "request/sealed"]
    return [(seal.request_digest, seal.wire_digest) for seal in found]


def recording(store: Path) -> Script:
    return replay(open_sessions(store).read("booking").records)


async def test_the_program_that_recorded_it_sends_the_same_bytes(tmp_path: Path) -> None:
    first = await program(tmp_path / "a", Script(ANSWERS, name="shop"))
    again = await program(tmp_path / "b", recording(tmp_path / "a"))
    assert [turn.text for turn in again] == [turn.text for turn in first] == ["4 and 3.", "Bye."]
    assert [call.arguments for call in again[0].calls] == [
        call.arguments for call in first[0].calls
    ]
    assert seals(tmp_path / "a") == seals(tmp_path / "b")
    assert len(seals(tmp_path / "b")) == 3


async def test_a_request_that_differs_is_named_with_the_place(tmp_path: Path) -> None:
    await program(tmp_path / "a", Script(ANSWERS, name="shop"))
    turn, _ = await program(tmp_path / "b", recording(tmp_path / "a"), system="Be long.")
    assert turn.reason.kind == "error"
    said = str(turn.reason.message)
    assert "not the recorded one of step 1.1" in said
    assert "/messages/0/content" in said
    assert "Be long." in said


async def test_a_recording_ends(tmp_path: Path) -> None:
    await program(tmp_path / "a", Script(ANSWERS, name="shop"))
    model = recording(tmp_path / "a")
    await program(tmp_path / "b", model)
    async with refold.open(tmp_path / "b", providers=[model]) as runtime:
        agent = await runtime.resume("booking", tools=[price])
        turn = await agent.ask("And?")
    assert "the recording ends after 3 requests" in str(turn.reason.message)


async def test_a_request_without_an_answer_has_none_again(tmp_path: Path) -> None:
    async def ask(store: Path, model: Script) -> refold.Turn:
        async with refold.open(store, providers=[model]) as runtime:
            agent = await runtime.start_agent(session_id="booking", model="shop/m")
            return await agent.ask("Hello?")

    failed = await ask(tmp_path / "a", Script([Fail("AUTH", "no key")], name="shop"))
    again = await ask(tmp_path / "b", recording(tmp_path / "a"))
    assert (failed.reason.code, again.reason.code) == ("AUTH", "ABORTED")


async def test_an_answer_that_was_cut_goes_silent_where_it_was(tmp_path: Path) -> None:
    async def cancelled(store: Path, model: Script) -> refold.Turn:
        async with refold.open(store, providers=[model]) as runtime:
            agent = await runtime.start_agent(session_id="booking", model="shop/m")
            told = trio.Event()
            agent.listen(lambda _: told.set())
            seq = await agent.prompt("Hello?")
            await told.wait()
            await trio.sleep(0.05)
            await agent.cancel()
            return await agent.answer(seq)

    script = Script([[Say("half a"), Delay(60), Say("n answer")]], name="shop")
    first = await cancelled(tmp_path / "a", script)
    again = await cancelled(tmp_path / "b", recording(tmp_path / "a"))
    assert (first.text, first.reason) == (again.text, again.reason)
    assert first.text == "half a"


async def test_what_is_no_recording_of_one_provider_is_refused(tmp_path: Path) -> None:
    async with refold.open(tmp_path, providers=[Script([Say("a")], name="one")]) as runtime:
        agent = await runtime.start_agent(session_id="booking", model="one/m")
        await agent.prompt("unasked")
        await agent.wait_idle()
    with pytest.raises(ValueError, match="this session asked 0"):
        replay([])
    assert recording(tmp_path).name == "one"
