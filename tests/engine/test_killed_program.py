"""A program that is killed costs the engine nothing: its history comes back byte for byte."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from refold.runtime.closing import UNKNOWN_OUTCOME
from refold.runtime.events import ToolResult
from refold.runtime.messages import TextBlock
from refold.runtime.wire.chat import CHAT
from refold.testing import open_engine
from tests.agents import assert_within_rules
from tests.engine.conversation import assert_nothing_was_read_twice, events_in, exchanges
from tests.engine.processes import Life, assert_verified, open_life

pytestmark = pytest.mark.engine

SECOND_LIFE = ["Go on, please.", "And once more."]


async def assert_completed(life: Life, turns: int) -> None:
    for _ in range(turns):
        assert await life.heard("ended") == "completed"


async def second_life(store: Path, base_url: str, session: str) -> None:
    async with open_life(store, base_url, SECOND_LIFE, session=session) as life:
        assert await life.heard("session") == session
        await assert_completed(life, len(SECOND_LIFE))
        assert await life.finish() == 0


async def assert_continued(store: Path, session: str, lives: list[int]) -> None:
    """The requests of both lives follow one another as if there had been one."""
    events = events_in(store, session)
    found = exchanges(events)
    assert_within_rules(events)
    assert [one.life for one in found] == lives
    assert "max-tokens" not in [one.finish for one in found]
    assert_nothing_was_read_twice(found)
    kept = [one.seal.shared_prefix_bytes for one in found[1:]]
    assert kept == [one.seal.wire_bytes - len(CHAT.closing) for one in found[:-1]]
    await assert_verified(store, session, requests=len(lives))


async def test_a_program_killed_inside_a_tool_comes_back_to_all_that_the_engine_had_read(
    tmp_path: Path,
) -> None:
    async with open_engine() as engine:
        prompts = ["Look around.", "Look again."]
        async with open_life(tmp_path, engine.base_url, prompts, stuck_at=2) as life:
            session = await life.heard("session")
            await assert_completed(life, 1)
            await life.heard("inside")
            assert await life.kill() == -signal.SIGKILL
        await second_life(tmp_path, engine.base_url, session)

    await assert_continued(tmp_path, session, [1, 1, 1, 2, 2, 2, 2])
    events = events_in(tmp_path, session)
    results = [event.data for event in events if isinstance(event.data, ToolResult)]
    assert [result.content == (TextBlock(UNKNOWN_OUTCOME),) for result in results] == [
        False,
        True,
        False,
        False,
    ]


async def test_a_program_killed_between_two_turns_comes_back_to_all_that_the_engine_had_read(
    tmp_path: Path,
) -> None:
    async with open_engine() as engine:
        prompts = ["Look around.", "Look again."]
        async with open_life(tmp_path, engine.base_url, prompts) as life:
            session = await life.heard("session")
            await assert_completed(life, 2)
            assert await life.kill() == -signal.SIGKILL
        await second_life(tmp_path, engine.base_url, session)

    await assert_continued(tmp_path, session, [1, 1, 1, 1, 2, 2, 2, 2])
