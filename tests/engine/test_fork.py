"""A fork is read from where it parts from what the engine has read before, and no earlier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import attrs
import pytest

import refold
from refold.testing import Engine, open_engine
from tests.agents import read_file
from tests.engine.conversation import (
    SYSTEM,
    Exchange,
    assert_nothing_was_read_twice,
    events_in,
    exchanges,
    local,
    options,
    prompt_tokens,
)

pytestmark = pytest.mark.engine

PROMPTS = [f"Do step {number} of the plan." for number in range(4)]

CODE: refold.AgentOptions = {"tools": [read_file], "invariants": "full"}
"""What no log holds; all else a fork takes from the folded header."""


@attrs.frozen
class Forked:
    """The fork's first prompt and the parent's longest one in tokens, and the fork's requests."""

    first: Sequence[int]
    longest: Sequence[int]
    inherited: Sequence[Exchange]
    own: Sequence[Exchange]

    @property
    def common(self) -> int:
        """How many tokens both prompts begin with."""
        both = zip(self.first, self.longest, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


async def forked(
    store: Path, prompt: str, *, after: int, given: refold.AgentOptions = CODE
) -> Forked:
    """Ask a parent all of `PROMPTS`, fork it after so many turns, and ask the fork `prompt`."""
    async with (
        open_engine() as engine,
        refold.open(store, providers=[local(engine.base_url)]) as runtime,
    ):
        parent = await runtime.start_agent(**options(tools=[read_file]))
        ends = [(await parent.ask(asked)).end_seq for asked in PROMPTS]
        fork = await runtime.fork(parent.session_id, at=ends[after - 1], **given)
        await fork.ask(prompt)
        return await _compared(engine, store, parent.session_id, fork.session_id)


async def _compared(engine: Engine, store: Path, parent: str, fork: str) -> Forked:
    old, new = events_in(store, parent), events_in(store, fork)
    inherited = [one for one in exchanges(new) if one.life == 1]
    own = [one for one in exchanges(new) if one.life == 2]
    first = await prompt_tokens(engine, new, own[0])
    longest = await prompt_tokens(engine, old, exchanges(old)[-1])
    return Forked(first, longest, inherited, own)


async def test_a_fork_is_read_from_its_first_new_token_on(tmp_path: Path) -> None:
    found = await forked(tmp_path, "Do something else.", after=2)
    assert found.own[0].cached == found.common
    shared_by_chance = len("\n<user\nDo s")  # "<" is <|im_start|>, one token
    assert found.common == found.inherited[-1].total + shared_by_chance
    assert_nothing_was_read_twice(found.own)


async def test_a_fork_with_another_system_prompt_shares_what_stands_before_the_difference(
    tmp_path: Path,
) -> None:
    other: refold.AgentOptions = {**CODE, "system": SYSTEM.replace("careful", "careless", 1)}
    found = await forked(tmp_path, PROMPTS[2], after=2, given=other)
    assert found.own[0].cached == found.common
    assert found.common == len("<system\nYou are a care")  # "<" is <|im_start|>, one token
    assert_nothing_was_read_twice(found.own)


async def test_a_fork_that_repeats_its_parent_has_all_but_its_last_token_cached(
    tmp_path: Path,
) -> None:
    found = await forked(tmp_path, PROMPTS[3], after=3)
    assert found.common == len(found.first)
    assert found.own[0].cached == found.common - 1
    assert_nothing_was_read_twice(found.own)
