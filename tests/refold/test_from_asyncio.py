"""A program of asyncio uses refold: calls cross as themselves, cancelled ones are called off."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

import refold
from refold import Delay, Hang, Say, Script
from refold.errors import KeyConflict, RuntimeLeft
from refold.logs import decode_line, open_sessions


def types_of(store: Path, session: str) -> list[str]:
    records = open_sessions(store).read(session).records
    return [decode_line(record.encoded).type for record in records]


def test_an_agent_is_awaited_from_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        script = Script(lambda body: Say(f"about {body['messages'][-1]['content']}"))
        async with refold.from_asyncio(tmp_path, providers=[script]) as runtime:
            agent = await runtime.open_agent("a", model="script/m")
            turns = await asyncio.gather(
                *(agent.ask(f"{n}", idempotency_key=f"{n}") for n in range(5))
            )
            assert [turn.text for turn in turns] == [f"about {n}" for n in range(5)]
            seq = await agent.prompt("more")
            assert (await agent.answer(seq)).text == "about more"
            assert await agent.pending() == ()
            with pytest.raises(KeyConflict):
                await agent.ask("other", idempotency_key="3")
            twin = await runtime.fork("a", session_id="b")
            assert (await twin.ask("twin")).text == "about twin"
            assert sorted(await runtime.list()) == ["a", "b"]
            seen = []
            async with aclosing(agent.events()) as events:
                async for event in events:
                    seen.append(event.seq)
                    if event.type == "turn/end" and len(seen) > 60:
                        break
            assert seen == list(range(len(seen)))
            await agent.close()
            assert [event.seq async for event in agent.events(1)][:3] == [1, 2, 3]
        with pytest.raises(RuntimeLeft):
            await runtime.list()
        with pytest.raises(RuntimeLeft):
            await agent.ask("too late")

    asyncio.run(main())
    assert types_of(tmp_path, "a")[-1] == "session/released"


def test_a_cancelled_ask_calls_its_own_turn_off_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Script(lambda body: [Delay(0.3), Say(body["messages"][-1]["content"])])
        async with refold.from_asyncio(tmp_path, providers=[slow]) as runtime:
            agent = await runtime.start_agent(model="script/m", session_id="s")
            first = asyncio.create_task(agent.ask("first"))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(agent.ask("second"))
            third = asyncio.create_task(agent.ask("third"))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert [one.text for one in await agent.pending()] == ["third"]
            assert (await first).text == "first"
            first_of_third = asyncio.create_task(agent.ask("fourth"))
            await asyncio.sleep(0.1)
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
            assert (await first_of_third).text == "fourth"

    asyncio.run(main())
    kinds = types_of(tmp_path, "s")
    assert kinds.count("turn/end") == 3


def test_leaving_closes_the_runtime_whatever_ends_the_block(tmp_path: Path) -> None:
    async def main(error: BaseException | None, place: Path) -> None:
        async with refold.from_asyncio(place, providers=[Script([Hang()])]) as runtime:
            agent = await runtime.start_agent(model="script/m", session_id="s")
            await agent.prompt("hello")
            if error is not None:
                raise error

    asyncio.run(main(None, tmp_path / "a"))
    with pytest.raises(LookupError, match="mine"):
        asyncio.run(main(LookupError("mine"), tmp_path / "b"))
    for place in ("a", "b"):
        assert types_of(tmp_path / place, "s")[-1] == "session/released"
    assert not [one for one in threading.enumerate() if "anyio" in one.name.lower()]


def test_a_time_limit_of_asyncio_ends_the_wait_and_the_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with refold.from_asyncio(tmp_path, providers=[Script([Hang()])]) as runtime:
            agent = await runtime.start_agent(model="script/m", session_id="s")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await agent.ask("hello")
            await agent.wait_idle()

    asyncio.run(main())
    assert "turn/end" in types_of(tmp_path, "s")


def test_what_is_wrong_with_the_arguments_is_said_at_the_door(tmp_path: Path) -> None:
    async def main() -> None:
        async with refold.from_asyncio(tmp_path, park_after=-1):
            raise AssertionError("it cannot be entered")

    with pytest.raises(refold.InvalidArgument, match="park_after"):
        asyncio.run(main())
