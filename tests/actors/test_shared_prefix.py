"""The bytes that a seal says are shared with the last request, across lives and changes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

import refold
from refold import Say, Script
from refold.runtime.envelope import Replace, draft
from refold.runtime.events import ContextMessage
from refold.runtime.messages import USER, TextBlock
from refold.runtime.prefix import common_prefix
from tests.agents import assert_sound, of_type


async def replace_first(agent: refold.Agent) -> None:
    """Put a summary in the place of the first message, as a compaction does."""
    first = agent.log.live.session.surface.nodes[0]
    summary = ContextMessage((TextBlock("what was said"),), USER)
    await agent.log.append(draft(summary, cites=(first,), replaces=Replace(first, first)))


@pytest.mark.parametrize("replaced", ["never", "in the first life", "in the second", "in both"])
@pytest.mark.parametrize("fork", [False, True])
async def test_the_first_request_of_a_life_counts_what_it_shares_with_the_last_one(
    tmp_path: Path, replaced: str, fork: bool
) -> None:
    one, other = Script(lambda _: Say("fine")), Script(lambda _: Say("fine"))
    async with refold.open(tmp_path, providers=[one]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("hello")
        await agent.ask("and now?")
        if replaced in ("in the first life", "in both") and not fork:
            await replace_first(agent)
    async with refold.open(tmp_path, providers=[other]) as runtime:
        agent = await (runtime.fork if fork else runtime.resume)("s")
        if replaced in ("in the second", "in both"):
            await replace_first(agent)
        await agent.ask("still there?")
        await agent.ask("good")
        seals = of_type(assert_sound(runtime, agent), "request/sealed")
    bodies = [*one.bodies, *other.bodies]
    shared = [common_prefix(*pair) for pair in pairwise(bodies)]
    assert [seal.shared_prefix_bytes for seal in seals[1:]] == shared


async def test_a_change_of_header_in_the_middle_counts_too(tmp_path: Path) -> None:
    async def warmer(config: Any) -> Any:
        return attrs.evolve(config, temperature=0.5 if len(script.bodies) == 1 else 0.7)

    script = Script(lambda _: Say("fine"))
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", seams=refold.Seams(request=(warmer,)))
        for text in ("one", "two", "three", "four"):
            await agent.ask(text)
        seals = of_type(assert_sound(runtime, agent), "request/sealed")
    shared = [common_prefix(*pair) for pair in pairwise(script.bodies)]
    assert [seal.shared_prefix_bytes for seal in seals[1:]] == shared
