"""Slips of a newcomer: each is one sentence that says what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import refold
from refold import Say, Script
from refold.runtime.errors import Refused
from refold.runtime.storage.errors import SessionBusy


async def open_and_ask() -> None:
    async with refold.open("memory:", providers=[Script(["hello"])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")


def test_asyncio_is_told_what_to_use() -> None:
    with pytest.raises(Refused) as refused:
        asyncio.run(open_and_ask())
    assert str(refused.value) == (
        "refold runs on Trio and is used in asyncio's loop; start the program with trio.run(main), "
        "or in a program of asyncio use refold.from_asyncio(...)"
    )


def test_a_coroutine_that_nobody_runs_is_told_so() -> None:
    entering = open_and_ask()
    with pytest.raises(Refused, match=r"is used outside of it; start the program with trio\.run"):
        entering.send(None)


AFTER: dict[str, Callable[[refold.Runtime, refold.Agent], Awaitable[Any]]] = {
    "start_agent": lambda runtime, _: runtime.start_agent(model="script/m"),
    "resume": lambda runtime, agent: runtime.resume(agent.session_id),
    "fork": lambda runtime, agent: runtime.fork(agent.session_id),
    "delete": lambda runtime, agent: runtime.delete(agent.session_id),
    "list": lambda runtime, _: runtime.list(),
}


@pytest.mark.parametrize("call", AFTER)
async def test_a_runtime_whose_block_is_left_says_so(call: str) -> None:
    async with refold.open("memory:", providers=[Script(["hello"])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
    with pytest.raises(Refused) as refused:
        await AFTER[call](runtime, agent)
    assert str(refused.value) == (
        "this runtime is closed; use it inside its `async with refold.open(...)` block"
    )
    with pytest.raises(refold.ActorStopped, match="has stopped; open the session again to go on"):
        await agent.ask("again")


@pytest.mark.parametrize("again", ["start_agent", "resume"])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("store", ["memory:", "files", "sqlite:///sessions.db"])
async def test_an_id_that_this_runtime_has_open_is_told_at_once_to_be_here(
    store: str, again: str, written: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with refold.open(store, providers=[Script(["hello", "again"])]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="mine")
        if written:
            await agent.ask("hello")
        began = trio.current_time()
        with pytest.raises(SessionBusy) as refused:
            if again == "resume":
                await runtime.resume("mine")
            else:
                await runtime.start_agent(model="script/m", session_id="mine")
        assert trio.current_time() - began < 0.5
        assert refused.value.here
        assert f"'mine' is open for writing in this very process, {os.getpid()} on" in str(
            refused.value
        )
        assert (await agent.ask("again")).reason.kind == "completed"


SLIPS: dict[str, tuple[Callable[[], Any], str]] = {
    "text for a list": (
        lambda: Script("hello"),
        "must be a list of answers or a function, not str",
    ),
    "a piece for a list": (lambda: Script(Say("x")), "must be a list of answers or a function"),  # type: ignore[arg-type]  # the point of it
    "no tuple": (lambda: refold.Seams(pre_tool=open_and_ask), "must be a tuple of async functions"),  # type: ignore[arg-type]  # as above
    "no such code": (lambda: refold.Fail("OVERLODED"), "did you mean OVERLOADED?"),
}


@pytest.mark.parametrize("name", SLIPS)
def test_what_is_given_wrong_is_refused_where_it_is_given(name: str) -> None:
    make, said = SLIPS[name]
    with pytest.raises(refold.InvalidArgument) as refused:
        make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_function_script_that_answers_nothing_ends_the_turn_in_a_sentence() -> None:
    silent: Any = lambda _body: None  # noqa: E731 - as one writes it
    async with refold.open("memory:", providers=[Script(silent, name="clerk")]) as runtime:
        agent = await runtime.start_agent(model="clerk/m")
        reason = (await agent.ask("hello")).reason
        assert reason.message == (
            "InvalidArgument: a script's answer to request 1 must be text, Say, Think, Call, "
            "Delay, Hang, Fail, End, or a list of these, not NoneType"
        )
