"""A history that only grows is read once: every request finds the one before it in the cache."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import pytest

import refold
from refold.runtime.json_diff import compare_headers
from refold.runtime.prefix import common_prefix
from refold.runtime.request_header import RequestHeader
from refold.runtime.wire.chat import CHAT
from refold.testing import open_engine
from tests.agents import read_file
from tests.engine.conversation import (
    SYSTEM,
    assert_nothing_was_read_twice,
    events_in,
    exchanges,
    local,
    options,
    prompt_tokens,
)
from tests.engine.processes import assert_verified, run_refold
from tests.engine.recording_proxy import RecordingProxy

pytestmark = pytest.mark.engine


async def test_each_of_ten_steps_finds_all_tokens_before_it_but_the_last_in_the_cache(
    tmp_path: Path,
) -> None:
    async with (
        open_engine() as engine,
        refold.open(tmp_path, providers=[local(engine.base_url)]) as runtime,
    ):
        agent = await runtime.start_agent(**options(tools=[read_file]))
        turns = [await agent.ask(f"Do step {number} of the plan.") for number in range(5)]
        events = events_in(tmp_path, agent.session_id)
        found = exchanges(events)
        prompts = [len(await prompt_tokens(engine, events, one)) for one in found]

    assert [turn.reason.kind for turn in turns] == ["completed"] * 5
    assert [one.finish for one in found] == ["tool-calls", "stop"] * 5
    assert found[0].cached == 0
    assert_nothing_was_read_twice(found)
    assert [one.prompt for one in found] == prompts
    await assert_verified(tmp_path, agent.session_id, requests=10)


async def test_the_bytes_that_reach_the_server_are_those_that_the_log_seals_and_rebuilds(
    tmp_path: Path,
) -> None:
    async with open_engine() as engine:
        with RecordingProxy(engine.url) as proxy:
            there = local(f"{proxy.url}/v1")
            async with refold.open(tmp_path, providers=[there]) as runtime:
                agent = await runtime.start_agent(**options(tools=[read_file]))
                for number in range(2):
                    await agent.ask(f"Naïve \N{SNOWMAN} step {number}:\n\tgo.")

    arrived = proxy.bodies
    found = exchanges(events_in(tmp_path, agent.session_id))
    digests = [hashlib.sha256(body).hexdigest() for body in arrived]
    assert [one.seal.wire_digest for one in found] == digests
    where = ("--wire", "--store", str(tmp_path))
    for step, body in (("1.1", arrived[0]), ("2.2", arrived[3])):
        assert await run_refold("request", agent.session_id, step, *where) == body
    await assert_verified(tmp_path, agent.session_id, requests=4)

    shared = [common_prefix(before, after) for before, after in pairwise(arrived)]
    assert shared == [len(body) - len(CHAT.closing) for body in arrived[:-1]]
    assert [one.seal.shared_prefix_bytes for one in found[1:]] == shared


async def test_another_first_byte_of_the_system_prompt_loses_the_cache_and_is_named(
    tmp_path: Path,
) -> None:
    async with open_engine() as engine:
        providers = [local(engine.base_url)]
        async with refold.open(tmp_path, providers=providers) as runtime:
            agent = await runtime.start_agent(**options(tools=[read_file]))
            await agent.ask("Do the first step.")
        async with refold.open(tmp_path, providers=providers) as runtime:
            agent = await runtime.resume(
                agent.session_id, tools=[read_file], system=f"T{SYSTEM[1:]}", invariants="full"
            )
            await agent.ask("Do the second step.")

    events = events_in(tmp_path, agent.session_id)
    before, changed, after = exchanges(events)[1:]
    assert changed.cached < 20 < before.cached
    assert after.cached == changed.total - 1

    old, new = (event.data.header for event in events if isinstance(event.data, RequestHeader))
    assert [difference.path for difference in compare_headers(old, new)] == ["/system"]
    where = ("--json", "--store", str(tmp_path))
    printed = await run_refold("diff", agent.session_id, "1.2", "2.1", *where, status=1)
    assert [drift["path"] for drift in json.loads(printed)["headerDrift"]] == ["/system"]
