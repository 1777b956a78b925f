"""What a cancelled answer had shown stays in the history, and the engine need not read it again."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import attrs
import pytest
import trio

import refold
from refold.runtime.envelope import Event
from refold.runtime.events import AssistantChunk, AssistantMessage
from refold.runtime.json import Json
from refold.runtime.messages import text_of
from refold.runtime.request_header import LlmCallConfig
from refold.runtime.stream.chunks import TextDelta
from refold.testing import open_engine
from tests.agents import assert_within_rules, read_file
from tests.engine.conversation import (
    MAX_TOKENS,
    assert_nothing_was_read_twice,
    events_in,
    exchanges,
    local,
    options,
    prompt_tokens,
)

pytestmark = pytest.mark.engine

ENDLESS = 4
"""The request whose answer would take far longer than the test: the text of the second turn."""


def one_endless_answer() -> refold.Seams:
    """A seam that forbids the end of the answer number `ENDLESS`."""
    requests = count(1)

    async def lengthen(config: LlmCallConfig) -> LlmCallConfig:
        endless = next(requests) == ENDLESS
        assert config.extra is not None
        extra = {**config.extra.thaw(), "ignore_eos": endless}
        return attrs.evolve(
            config, max_tokens=30000 if endless else MAX_TOKENS, extra=Json.of(extra)
        )

    return refold.Seams(request=(lengthen,))


def text_has_come(agent: refold.Agent, turn: int) -> trio.Event:
    """Set as soon as a part of the text of this turn is in the log, about a second after it."""
    come = trio.Event()

    def look(event: Event) -> None:
        match event.data:
            case AssistantChunk(turn=found, chunk=TextDelta()) if found == turn:
                come.set()

    agent.log.observe(look)
    return come


async def test_after_a_cancel_the_engine_finds_every_token_that_was_kept_but_perhaps_the_last(
    tmp_path: Path,
) -> None:
    turns: list[refold.Turn] = []

    async def ask(agent: refold.Agent, prompt: str) -> None:
        turns.append(await agent.ask(prompt))

    async with (
        open_engine() as engine,
        refold.open(tmp_path, providers=[local(engine.base_url)]) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start_agent(**options(tools=[read_file], seams=one_endless_answer()))
        await ask(agent, "Do the first step.")
        nursery.start_soon(ask, agent, "Do the second step.")
        with trio.fail_after(30):
            await text_has_come(agent, turn=2).wait()
            await agent.cancel()
            await ask(agent, "Do the third step.")
            await ask(agent, "Do the fourth step.")
        events = events_in(tmp_path, agent.session_id)
        found = exchanges(events)
        cancelled = len(await prompt_tokens(engine, events, found[ENDLESS - 1]))

    ends = [turn.reason.kind for turn in turns]
    assert ends == ["completed", "aborted", "completed", "completed"]
    assert_within_rules(events)
    (kept,) = (
        len(text_of(event.data.content).encode())
        for event in events
        if isinstance(event.data, AssistantMessage) and event.data.interrupted
    )
    assert kept > 0
    # The engine was ahead of what we had heard, then all of it is cached; or it was not, then the
    # last token had been sampled and not yet been read. A cut answer comes without usage, so the
    # tokens of its prompt are the engine's count of the rebuilt one.
    assert cancelled + kept - 1 <= found[ENDLESS].cached <= cancelled + kept
    assert_nothing_was_read_twice(found[: ENDLESS - 1])
    assert_nothing_was_read_twice(found[ENDLESS:])
