"""The invariants bite: each way to send what the log does not explain is refused.

Every test breaks something inside a live agent on purpose. The model is not asked, the report
names the first path that differs, the turn ends with code INVARIANT and the log keeps the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio

import refold
from refold import ActorCrashed, Script
from refold.actors.log.session_log import StepBoundary
from refold.actors.request.answer_writer import Answer
from refold.actors.request.invariants import Clear, InvariantViolation
from refold.actors.request.script import Say
from refold.runtime.messages import Message, TextBlock
from refold.runtime.wire.request_encoder import Encoded
from tests.agents import assert_within_rules, count, dispatch_of, read_file, stored_events

MODES = ("enforce", "full")
Mode = Literal["enforce", "full"]


def first_user_message(agent: refold.Agent) -> None:
    """A mutated message: the live history says something else than the log."""
    messages = agent.log.live.session._messages
    messages[-1] = Message("user", (TextBlock("a forged question"),))


def forget_last(agent: refold.Agent) -> None:
    """A stale derived cache: the newest message is missing."""
    agent.log.live.session._messages.pop()


def slip_in(agent: refold.Agent) -> None:
    """An injected message that was never logged."""
    agent.log.live.session._messages.append(Message("user", (TextBlock("psst"),)))


def change_header(agent: refold.Agent) -> None:
    """A header that was never written: the live fold differs from the stored one."""
    session = agent.log.live.session
    header = session.header
    assert header is not None
    session._header = attrs.evolve(header, config=attrs.evolve(header.config, max_tokens=7))


def reorder_tools(agent: refold.Agent) -> None:
    """The tools leave in another order than the header has."""
    session = agent.log.live.session
    assert session.header is not None
    session._header = attrs.evolve(session.header, tools=session.header.tools[::-1])


def flip_kept_byte(agent: refold.Agent) -> None:
    """One byte changes in the part of the body that was encoded for an earlier request."""
    kept = dispatch_of(agent)._encoder._kept
    at = kept.index(b"hello")
    kept[at : at + 1] = b"j"


BREAKS: dict[str, tuple[Callable[[refold.Agent], None], str]] = {
    "a stale derived cache": (forget_last, "/messages/2"),
    "a mutated message": (first_user_message, "/messages/2/content/0/text"),
    "a message that was never logged": (slip_in, "/messages/3"),
    "a header that was not written": (change_header, "/config/maxTokens"),
    "reordered tools": (reorder_tools, "/tools/0/name"),
    "one byte of the kept body": (flip_kept_byte, "/messages/1/content"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BREAKS)
async def test_a_broken_request_is_refused_and_the_report_names_the_path(
    name: str, mode: Mode
) -> None:
    break_it, path = BREAKS[name]
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", system="S", tools=[read_file, count], invariants=mode
        )
        await agent.ask("hello")
        before_sealing(agent, break_it)
        turn = await agent.ask("and now?")
        assert turn.reason.code == "INVARIANT"
        await agent.stopped.wait()
        assert len(script.bodies) == 1
        with pytest.raises(ActorCrashed) as crashed:
            await agent.ask("anyone there?")
        violation = crashed.value.__cause__
        assert isinstance(violation, InvariantViolation)
        assert violation.difference is not None
        assert violation.difference.path == path
        assert_within_rules(stored_events(runtime, agent.session_id))


def before_sealing(agent: refold.Agent, break_it: Callable[[refold.Agent], None]) -> None:
    """Run `break_it` when the next request is about to be built."""
    dispatch = dispatch_of(agent)
    whole = dispatch.dispatch

    async def tampered(boundary: StepBoundary) -> Answer:
        break_it(agent)
        return await whole(boundary)

    dispatch.dispatch = tampered  # type: ignore[method-assign]  # the break is the test


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_other_than_the_sealed_one_is_not_cleared(mode: Mode) -> None:
    script = Script([Say("one")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        dispatch = dispatch_of(agent)
        clearance = dispatch._clearance
        assert clearance is not None
        ask = clearance.ask

        async def offer_another(offer: Clear) -> object:
            body = offer.encoded.body.replace(b"hello", b"jello")
            return await ask(attrs.evolve(offer, encoded=other(offer.encoded, body)))

        clearance.ask = offer_another  # type: ignore[assignment,method-assign]  # the break is the test
        turn = await agent.ask("hello")
        assert turn.reason.code == "INVARIANT"
        assert turn.reason.message is not None
        assert "not the one that the stored seal names" in turn.reason.message
        assert "/messages/0/content" in turn.reason.message
        await agent.stopped.wait()
        assert script.bodies == []
        assert_within_rules(stored_events(runtime, agent.session_id))


def other(encoded: Encoded, body: bytes) -> Encoded:
    return attrs.evolve(encoded, body=body, wire_digest=hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize("mode", MODES)
async def test_a_cleared_boundary_clears_no_other_bytes(mode: Mode) -> None:
    script = Script([Say("done")])
    caught: list[InvariantViolation] = []
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        clearance = dispatch_of(agent)._clearance
        assert clearance is not None
        ask = clearance.ask

        async def ask_three_times(offer: Clear) -> object:
            cleared = await ask(offer)
            assert await ask(offer) == cleared
            body = offer.encoded.body.replace(b"hello", b"jello")
            with pytest.raises(InvariantViolation) as refused:
                await ask(attrs.evolve(offer, encoded=other(offer.encoded, body)))
            caught.append(refused.value)
            return cleared

        clearance.ask = ask_three_times  # type: ignore[assignment,method-assign]  # the break is the test
        assert (await agent.ask("hello")).text == "done"
    assert "other bytes were cleared" in caught[0].problem
    assert caught[0].difference is not None
    assert caught[0].difference.path == "/messages/0/content"


async def test_with_invariants_off_the_same_break_goes_out() -> None:
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="off")
        await agent.ask("hello")
        before_sealing(agent, slip_in)
        turn = await agent.ask("and now?")
        assert turn.reason.kind == "completed"
        assert b"psst" in script.bodies[1]


async def test_a_violation_leaves_a_report_with_both_byte_strings(tmp_path: Path) -> None:
    script = Script([Say("one")])
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="broken")
        before_sealing(agent, slip_in)
        turn = await agent.ask("hello")
        assert turn.reason.code == "INVARIANT"
    (report,) = await trio.to_thread.run_sync(lambda: [*tmp_path.glob("broken.violation-*.json")])
    text = report.read_text()
    assert "psst" in text
    assert '"expected"' in text
