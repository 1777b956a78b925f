"""What leaves is what was sealed, for whom it was sealed, and in every mode: the last door.

Each test breaks the live path on purpose, behind the checks of content, and looks at what a model
or a socket got.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio

import refold
from refold import Say, Script
from refold.actors.log.session_log import StepBoundary
from refold.actors.request.dispatch import Dispatch
from refold.actors.request.http_model import HttpModel, open_client
from refold.actors.request.invariants import Clear, Evidence, InvariantViolation, _Checker
from refold.actors.request.model import Clearance, Model, NotAdmitted, Stream, Uncleared
from refold.actors.stores.committer import LocalGrant
from refold.actors.stores.local import EmbeddedStore
from refold.runtime.envelope import draft
from refold.runtime.events import (
    AssistantMessage,
    RequestSealed,
    StepEnd,
    StepStart,
    ToolResult,
    Trigger,
    TurnStart,
    UserMessage,
)
from refold.runtime.history import History
from refold.runtime.messages import USER, TextBlock, ToolCallBlock
from refold.runtime.request import Request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.storage import MemoryFolder, SessionHeader
from refold.runtime.wire.chat import CHAT
from refold.runtime.wire.providers import Provider
from refold.runtime.wire.request_encoder import Continued, Encoded, encode_request
from tests.agents import assert_within_rules, dispatch_of, opened, stored_events
from tests.fake_server import FakeServer, answer, stream

Mode = Literal["full", "enforce", "audit", "off"]
MODES: tuple[Mode, ...] = ("full", "enforce", "audit", "off")
CHECKED: tuple[Mode, ...] = ("full", "enforce", "audit")
BEFORE: tuple[Mode, ...] = ("full", "enforce")


async def refused_turn(script: Script, mode: Mode, break_it: Any) -> refold.Turn:
    """The second turn of an agent that was broken after its first; nothing of it reached a model.

    The session has ended, and its log is within the rules.
    """
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        assert (await agent.ask("hello")).text == "one"
        break_it(agent)
        turn = await agent.ask("and now?")
        assert turn.reason.code == "INVARIANT"
        await agent.stopped.wait()
        assert len(script.bodies) == 1, "nothing left"
        assert_within_rules(stored_events(runtime, agent.session_id))
        return turn


@pytest.mark.parametrize("mode", CHECKED)
async def test_without_anybody_to_clear_it_nothing_leaves(mode: Mode) -> None:
    def lose_the_checker(agent: refold.Agent) -> None:
        dispatch_of(agent)._clearance = None

    turn = await refused_turn(Script([Say("one"), Say("two")]), mode, lose_the_checker)
    assert turn.reason.message is not None
    assert f"nobody to clear it, and the mode is {mode}" in turn.reason.message


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_never_goes_to_another_provider_than_the_header_names(mode: Mode) -> None:
    wrong = Script([Say("who, me?")], name="other")

    def mislead(agent: refold.Agent) -> None:
        dispatch_of(agent)._find_model = lambda _name: wrong

    turn = await refused_turn(Script([Say("one")]), mode, mislead)
    assert turn.reason.message is not None
    assert "for the provider 'script' and was given to 'other'" in turn.reason.message
    assert wrong.bodies == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_that_its_digest_was_not_made_of_does_not_leave(mode: Mode) -> None:
    def plant(agent: refold.Agent) -> None:
        encoder = dispatch_of(agent)._encoder
        encode = encoder.encode

        def encode_and_change(*arguments: Any) -> Encoded:
            encoded = encode(*arguments)
            return attrs.evolve(encoded, body=encoded.body.replace(b"and now?", b"and pay!"))

        encoder.encode = encode_and_change  # type: ignore[assignment,method-assign]  # the break is the test

    turn = await refused_turn(Script([Say("one"), Say("two")]), mode, plant)
    assert turn.reason.message is not None
    if mode != "off":
        assert "first difference at /messages/2/content" in turn.reason.message
    at_once = "a fresh encoder over the stored log writes another body" in turn.reason.message
    assert at_once is (mode == "full"), "all others find it at the door"


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_that_is_changed_after_it_was_cleared_does_not_leave(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Dispatch._send

    async def change_and_send(
        dispatch: Dispatch, offer: Clear, *arguments: Any, **options: Any
    ) -> Any:
        body = offer.encoded.body.replace(b"and now?", b"and pay!")
        changed = attrs.evolve(offer, encoded=attrs.evolve(offer.encoded, body=body))
        return await send(dispatch, changed, *arguments, **options)

    def plant(_agent: refold.Agent) -> None:
        monkeypatch.setattr(Dispatch, "_send", change_and_send)

    turn = await refused_turn(Script([Say("one"), Say("two")]), mode, plant)
    assert turn.reason.message is not None
    assert "its bytes are not those that its seal names" in turn.reason.message


@attrs.define
class Changing:
    """A model in front of another, which changes what passes through it."""

    inner: Model

    @property
    def provider_name(self) -> str:
        return self.inner.provider_name

    @property
    def format(self) -> Any:
        return self.inner.format

    @asynccontextmanager
    async def open(self, body: bytes, clearance: Any) -> AsyncIterator[Stream]:
        async with self.inner.open(body.replace(b"hello", b"jello"), clearance) as answer_:
            yield answer_


@pytest.mark.parametrize("mode", MODES)
async def test_nothing_of_a_changed_body_reaches_a_socket(mode: Mode) -> None:
    with FakeServer(stream(*answer("hi"))) as server:
        provider = Provider("fake", "chat", server.url, keep_alive=False)
        async with refold.open("memory:", providers=[provider]) as runtime:
            agent = await runtime.start_agent(model="fake/m", invariants=mode)
            dispatch = dispatch_of(agent)
            find_model = dispatch._find_model
            dispatch._find_model = lambda name: Changing(find_model(name))
            turn = await agent.ask("hello")
            assert turn.reason.code == "INVARIANT"
    assert server.requests == []


async def test_a_retried_request_passes_the_same_door(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([refold.Fail("SERVER"), Say("one")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        assert (await agent.ask("hello")).text == "one"
    assert script.bodies[0] == script.bodies[1]


async def test_the_door_asks_for_the_digest_and_for_the_name() -> None:
    script, body = Script([Say("one")]), b'{"messages":[]}'
    digest = hashlib.sha256(body).hexdigest()
    for clearance in (
        Clearance(0, "script", hashlib.sha256(b"{}").hexdigest()),
        Uncleared(0, "script", ""),
        Clearance(0, "other", digest),
        Clearance(0, "", digest),
    ):
        with pytest.raises(NotAdmitted):
            await enter(script.open(body, clearance))
    assert script.bodies == []
    await enter(script.open(body, Clearance(0, "script", digest)))
    await enter(opened(Script([Say("two")]), body))
    assert script.bodies == [body]


async def enter(answer_: AbstractAsyncContextManager[Stream]) -> None:
    async with answer_:
        pass


async def test_an_http_model_hashes_right_before_it_sends() -> None:
    with FakeServer(stream(*answer("hi"))) as server:
        async with open_client() as client:
            model = HttpModel(Provider("fake", "chat", server.url), client)
            clearance = Uncleared(0, "fake", hashlib.sha256(b"{}").hexdigest())
            with pytest.raises(NotAdmitted):
                await enter(model.open(b"{} ", clearance))
            await enter(opened(model))
    assert [request.body for request in server.requests] == [b"{}"]


async def test_only_full_sees_what_is_wrong_in_all_that_is_kept_from_request_to_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sides go on under a header that has changed: their kept hashes agree, and are wrong."""

    async def warmer(config: Any) -> Any:
        return attrs.evolve(config, temperature=0.5 if len(script.bodies) else None)

    for mode in BEFORE:
        script = Script([Say("one"), Say("two")])
        with monkeypatch.context() as patched:
            patched.setattr(Continued, "continues", lambda *_: True)
            async with refold.open("memory:", providers=[script]) as runtime:
                agent = await runtime.start_agent(
                    model="script/m", invariants=mode, seams=refold.Seams(request=(warmer,))
                )
                await agent.ask("hello")
                turn = await agent.ask("and now?")
        if mode == "full":
            assert turn.reason.code == "INVARIANT"
            assert turn.reason.message is not None
            assert (
                "a fresh session over the stored log makes another request" in turn.reason.message
            )
            assert "/temperature: expected 0.5, got absent" in turn.reason.message
            assert len(script.bodies) == 1
        else:
            assert turn.text == "two", "which is what full is for"


@pytest.mark.parametrize("mode", BEFORE)
async def test_full_and_enforce_send_what_nobody_broke(mode: Mode) -> None:
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        assert [(await agent.ask(text)).text for text in ("hello", "and now?")] == ["one", "two"]


@pytest.mark.parametrize("mode", CHECKED)
async def test_a_seal_that_the_store_does_not_know_to_be_durable_is_not_cleared(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live side says it is; the store, asked by the checker itself, does not."""
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        assert (await agent.ask("hello")).text == "one"
        mark = agent.log.live.durable_seq
        monkeypatch.setattr(LocalGrant, "durable_seq", property(lambda _: mark))
        turn = await agent.ask("and now?")
    assert turn.reason.code == "INVARIANT"
    assert turn.reason.message is not None
    assert "is not durable yet" in turn.reason.message


@pytest.mark.parametrize("mode", BEFORE)
async def test_a_seal_that_dispatch_does_not_offer_as_durable_is_not_cleared(mode: Mode) -> None:
    def forget(agent: refold.Agent) -> None:
        clearance = dispatch_of(agent)._clearance
        assert clearance is not None
        ask = clearance.ask

        async def undurable(offer: Any) -> Any:
            return await ask(attrs.evolve(offer, durable_seq=offer.seal_seq - 1))

        clearance.ask = undurable  # type: ignore[assignment,method-assign]  # the break is the test

    turn = await refused_turn(Script([Say("one"), Say("two")]), mode, forget)
    assert turn.reason.message is not None
    assert "is not durable yet" in turn.reason.message


async def violated(folder: Path, mode: Mode = "enforce") -> refold.Turn:
    """A turn whose request was forged before it was sealed."""
    script = Script([Say("one")])
    async with refold.open(folder, providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s", invariants=mode)
        dispatch = dispatch_of(agent)
        whole = dispatch.dispatch

        async def forged(boundary: Any) -> Any:
            messages = agent.log.live.session._messages
            messages[-1] = refold.Message("user", (refold.TextBlock("forged"),))
            return await whole(boundary)

        dispatch.dispatch = forged  # type: ignore[method-assign]  # the break is the test
        turn = await agent.ask("hello")
        await agent.stopped.wait()
        failure = agent._opened.failure[0]
        assert isinstance(failure, InvariantViolation)
    assert turn.reason.code == "INVARIANT"
    return turn


def reports(folder: Path) -> list[Path]:
    return sorted(folder.glob("s.violation-*"))


async def test_a_report_is_for_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        await violated(tmp_path)
    finally:
        os.umask(old)
    (report,) = reports(tmp_path)
    assert stat.S_IMODE(report.stat().st_mode) == 0o600


async def boundary_of(folder: Path) -> str:
    """The name that a report of the same violation has."""
    await violated(folder)
    (report,) = reports(folder)
    return report.name


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "folder", "file"])
async def test_a_report_is_never_written_over_what_is_there(tmp_path: Path, kind: str) -> None:
    name = await boundary_of(tmp_path / "first")
    mine, there = tmp_path / "mine", tmp_path / "second" / name
    there.parent.mkdir()
    if kind != "dangling":
        mine.write_text("precious")
    match kind:
        case "link" | "dangling":
            there.symlink_to(mine)
        case "hard link":
            there.hardlink_to(mine)
        case "folder":
            there.mkdir()
        case "file":
            there.write_text("an earlier report")
    turn = await violated(tmp_path / "second")
    assert not mine.exists() if kind == "dangling" else mine.read_text() == "precious"
    (report,) = [path for path in reports(tmp_path / "second") if path != there]
    assert "forged" in report.read_text()
    assert turn.reason.message is not None
    assert str(report) in turn.reason.message


async def test_a_report_that_cannot_be_written_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EmbeddedStore, "report", no_room)
    turn = await violated(tmp_path)
    assert turn.reason.message is not None
    assert "its content is not what the stored log says" in turn.reason.message
    assert "/messages/0/content/0/text" in turn.reason.message
    assert "no report could be kept" in turn.reason.message
    assert "No space left on device" in turn.reason.message
    assert reports(tmp_path) == []


async def test_a_report_that_breaks_off_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_off(file: int, *_: Any, **__: Any) -> Any:
        os.write(file, b"{")
        os.close(file)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", breaks_off)
    turn = await violated(tmp_path)
    assert turn.reason.message is not None
    assert "No space left on device" in turn.reason.message
    assert reports(tmp_path) == []


@pytest.mark.parametrize("mode", CHECKED)
async def test_a_violation_says_not_sent_only_of_what_was_not_sent(
    tmp_path: Path, mode: Mode
) -> None:
    turn = await violated(tmp_path, mode)
    assert turn.reason.message is not None
    assert ("was not sent" in turn.reason.message) is (mode != "audit")
    assert ("may have been sent" in turn.reason.message) is (mode == "audit")


@attrs.define
class Stored:
    """A log in a store of its own, and what an invariants actor over it would say."""

    session: History = attrs.field(factory=History)
    header: EpochHeader = attrs.field(factory=lambda: EpochHeader(LlmCallConfig("p", model="m")))

    def add(self, *data: object) -> None:
        for one in data:
            self.session.append(draft(one), 0)

    def two_steps(self, ids: str) -> None:
        """A step with the calls a and b, the results of `ids`, and the next step's boundary."""
        calls = tuple(ToolCallBlock(one, "look", "{}") for one in "ab")
        self.add(TurnStart(1, Trigger("message", USER)), UserMessage((TextBlock("go"),), USER))
        self.add(StepStart(1, 1), RequestHeader(self.header, "initial"))
        self.add(AssistantMessage(1, 1, calls))
        self.add(*(ToolResult(1, 1, one, (TextBlock(one),), False) for one in ids))
        self.add(StepEnd(1, 1), StepStart(1, 2))

    def offer(self) -> Clear:
        """The request of the step that was opened last, its seal being the next event."""
        boundary = StepBoundary("demo", 1, 2, self.session.next_seq - 1)
        request = Request(self.header, self.session.derive_messages())
        return Clear(boundary, request, encode_request(request, CHAT), boundary.seq + 1, 99)

    def checker(self, *, full: bool = False) -> _Checker:
        folder = MemoryFolder()
        log = folder.create(SessionHeader("demo", 1, durability="power"))
        log.append([event.encoded for event in self.session.events])
        reader = partial(folder.reader, "demo")
        return _Checker(Evidence("demo", reader, lambda: 99, lambda *_: None), full)


@pytest.mark.parametrize("ids", ["ab", "a", "abb", "abz"])
def test_a_violation_calls_a_log_good_only_if_the_rules_do(ids: str) -> None:
    stored = Stored()
    stored.two_steps(ids)
    found = str(stored.checker().violation(stored.offer(), "it is not right"))
    assert ("the log is good" in found) is (ids == "ab")
    assert ("the log itself is at fault" in found) is (ids != "ab")
    assert ("refold check demo" in found) is (ids != "ab")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seals", [0, 1, 2])
async def test_a_step_with_no_seal_or_several_is_not_cleared(seals: int, full: bool) -> None:
    stored = Stored()
    stored.two_steps("ba")
    offer = stored.offer()
    digests = (offer.encoded.request_digest, offer.encoded.wire_digest)
    stored.add(*[RequestSealed(1, 2, "chat/2", *digests, 1, 0, "enforce")] * seals)
    checker = stored.checker(full=full)
    if seals == 1:
        cleared = Clearance(offer.boundary.seq, "p", offer.encoded.wire_digest)
        assert await checker.clear(offer) == cleared
    else:
        with pytest.raises(InvariantViolation, match="exactly its one seal"):
            await checker.clear(offer)
    checker.close()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"boundary": 4}, "its boundary is not the open step of the stored log"),
        ({"wire_digest": "0" * 64}, "its wire bytes are not the encoding of its content"),
        ({"request_digest": "0" * 64}, "its content is not what the stored log says"),
        ({"seal": "1" * 64}, "not the one that the stored seal names"),
    ],
)
async def test_what_is_offered_and_sealed_alike_is_still_held_against_the_stored_events(
    wrong: dict[str, Any], problem: str
) -> None:
    stored = Stored()
    stored.two_steps("ba")
    offer = stored.offer()
    changed = {name: value for name, value in wrong.items() if name.endswith("digest")}
    encoded = attrs.evolve(offer.encoded, **changed)
    sealed = (wrong.get("seal", encoded.request_digest), encoded.wire_digest)
    stored.add(RequestSealed(1, 2, "chat/2", *sealed, 1, 0, "enforce"))
    boundary = attrs.evolve(offer.boundary, seq=wrong.get("boundary", offer.boundary.seq))
    checker = stored.checker()
    with pytest.raises(InvariantViolation, match=problem):
        await checker.clear(attrs.evolve(offer, boundary=boundary, encoded=encoded))
    checker.close()


def slow_checker(agent: refold.Agent, seconds: float) -> None:
    """Let the check take its time."""
    clearance = dispatch_of(agent)._clearance
    assert clearance is not None
    ask = clearance.ask

    async def slow(message: Any) -> Any:
        await trio.sleep(seconds)
        return await ask(message)

    clearance.ask = slow  # type: ignore[method-assign]  # the break is the test


async def test_in_audit_no_message_stands_in_the_log_before_its_request_is_cleared(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Say("at once")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit")
        slow_checker(agent, 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(5)
            assert len(script.bodies) == 1, "the model was asked"
            assert [message.role for message in agent.messages()] == ["user"]
        assert [message.role for message in agent.messages()] == ["user", "assistant"]


@pytest.mark.parametrize("end", ["violation", "cancel"])
async def test_in_audit_nothing_is_kept_of_an_answer_whose_request_was_not_cleared(
    end: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script([[Say("streamed"), refold.Hang()]])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="audit")
        if end == "violation":
            monkeypatch.setattr(LocalGrant, "durable_seq", property(lambda _: -1))
        slow_checker(agent, 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(5)
            if end == "cancel":
                await agent.cancel()
        kept = [e.type for e in stored_events(runtime, agent.session_id)]
    assert "assistant/message" not in kept
