"""What the invariants actor clears and what it refuses, asked alone: a stored log and one offer.

A row changes one thing of a request that is good, in the log or in what is offered. The actor is
given stored bytes and an offer, as dispatch gives them, and nothing of the live side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import attrs
import orjson
import pytest
import trio
import trio.testing

import refold
from refold import Say, Script
from refold.actors.kernel import Ref, Spec, open_supervisor
from refold.actors.log.session_log import StepBoundary
from refold.actors.request.invariants import Clear, Evidence, InvariantViolation, Report, invariants
from refold.actors.stores import Store, open_store
from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.events import RequestSealed
from refold.runtime.json import Json
from refold.runtime.request import Request, rebuild_request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import SessionHeader
from refold.runtime.wire.chat import CHAT, CHAT_1
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.request_encoder import Encoded, encode_request
from tests.agents import dispatch_of, of_type, stored_events
from tests.runtime.rules.words import (
    at,
    context,
    queued,
    removed,
    result,
    says,
    step,
    step_end,
    turn,
    turn_end,
    user,
)

MODES = ("enforce", "full")
Mode = Literal["enforce", "full"]

HEADER = EpochHeader(LlmCallConfig("p", model="m"), "S")
ASKED = [user(), turn(1), step(1, 1), draft(RequestHeader(HEADER, "initial"))]
SECOND = [
    *(user(), turn(1), step(1, 1), draft(RequestHeader(HEADER, "initial"))),
    *(says(1, 1, "a"), result(1, 1, "a"), context(), step_end(1, 1), step(1, 2)),
]


def events_of(drafts: Sequence[Draft]) -> list[Event]:
    return [made.at(seq, 0) for seq, made in enumerate(drafts)]


def encoded_of(request: Request, wire: WireFormat = CHAT) -> Encoded:
    return encode_request(request, wire)


@attrs.frozen
class Offer:
    """A stored log with its seal, and what is offered for it; `honest` is one that is good."""

    stored: tuple[Draft, ...]
    clear: Clear

    @staticmethod
    def honest(drafts: Sequence[Draft], at: int = 2, wire: WireFormat = CHAT) -> Offer:
        events = events_of(drafts)
        request = rebuild_request(events, at)
        encoded, opened = encoded_of(request, wire), events[at].data
        boundary = StepBoundary("s", opened.turn, opened.step, at)
        seal = sealed(encoded, opened.turn, opened.step, wire.name)
        clear = Clear(boundary, request, encoded, len(drafts), len(drafts))
        return Offer((*drafts, seal), clear)

    def stores(self, *drafts: Draft) -> Offer:
        return attrs.evolve(self, stored=drafts)

    def offers(self, **changed: Any) -> Offer:
        return attrs.evolve(self, clear=attrs.evolve(self.clear, **changed))


def sealed(encoded: Encoded, turn: int = 1, step: int = 1, codec: str = CHAT.name) -> Draft:
    digests = encoded.request_digest, encoded.wire_digest
    return draft(RequestSealed(turn, step, codec, *digests, len(encoded.body), 0, "enforce"))


async def store_of(*drafts: Draft) -> Store:
    """A store in memory whose session `s` holds these events."""
    store = open_store("memory:")
    grant = await store.create(SessionHeader("s", 0))
    for event in events_of(drafts):
        grant.append(event.seq, [event.encoded])
    return store


async def violation(
    offer: Offer,
    mode: Mode = "enforce",
    first: Store | None = None,
    keep_report: Callable[[str, bytes], str | None] = lambda _name, _content: None,
) -> InvariantViolation | None:
    """How an actor of its own refuses the offer, None where it clears it.

    With `first`, that is what its first reader sees of the log.
    """
    store = await store_of(*offer.stored)
    seen = [first] if first is not None else []

    async with open_supervisor("s") as tree:
        evidence = Evidence(
            "s",
            lambda: (seen.pop() if seen else store).reader("s"),
            lambda: offer.clear.durable_seq,
            keep_report,
        )
        checker = partial(invariants, evidence=evidence, full=mode == "full")
        actor: Ref[Clear | Report] = await tree.start(checker, spec=Spec("invariants"))
        try:
            cleared = await actor.ask(offer.clear)
        except InvariantViolation as refused:
            return refused
        assert cleared.wire_digest == offer.clear.encoded.wire_digest
        assert cleared.boundary == offer.clear.boundary.seq
        return None


async def problem(offer: Offer, mode: Mode = "enforce", first: Store | None = None) -> str | None:
    """Why it is refused, None where it is cleared."""
    refused = await violation(offer, mode, first)
    return None if refused is None else refused.problem


def with_digests(request: str | None = None, wire: str | None = None) -> Callable[[Offer], Offer]:
    """Offer and seal agree on a digest that is not that of the stored log."""

    def change(offer: Offer) -> Offer:
        encoded = offer.clear.encoded
        encoded = attrs.evolve(
            encoded,
            request_digest=request or encoded.request_digest,
            wire_digest=wire or encoded.wire_digest,
        )
        return offer.stores(*offer.stored[:-1], sealed(encoded)).offers(encoded=encoded)

    return change


def other_body(offer: Offer) -> Offer:
    """Another body and its true digest, in the seal as well: the canonical digest is the log's."""
    body = offer.clear.encoded.body.replace(b'"S"', b'"T"')
    assert body != offer.clear.encoded.body
    encoded = attrs.evolve(
        offer.clear.encoded, body=body, wire_digest=hashlib.sha256(body).hexdigest()
    )
    return offer.stores(*offer.stored[:-1], sealed(encoded)).offers(encoded=encoded)


def quirk(offer: Offer) -> Offer:
    """A header that differs where the wire does not show it: same body, another request."""
    extra = Json.of({"refold": {"replayReasoning": False}})
    header = attrs.evolve(HEADER, config=attrs.evolve(HEADER.config, extra=extra))
    request = Request(header, offer.clear.request.derived)
    encoded = encoded_of(request)
    assert encoded.body == offer.clear.encoded.body
    assert encoded.request_digest != offer.clear.encoded.request_digest
    return offer.stores(*offer.stored[:-1], sealed(encoded)).offers(
        request=request, encoded=encoded
    )


NOT_OPEN = "its boundary is not the open step of the stored log"
ONE_SEAL = "the stored step does not hold exactly its one seal"
NOT_THE_SEAL = "the offered body is not the one that the stored seal names"
NOT_THE_LOG = "its content is not what the stored log says"
NOT_THE_ENCODING = "its wire bytes are not the encoding of its content"

BAD: dict[str, tuple[Callable[[Offer], Offer], str]] = {
    "a seal that is not durable": (
        lambda offer: offer.offers(durable_seq=offer.clear.seal_seq - 1),
        "its seal at seq 4 is not durable yet",
    ),
    "nothing is durable": (
        lambda offer: offer.offers(durable_seq=-1),
        "its seal at seq 4 is not durable yet",
    ),
    "no seal": (lambda offer: offer.stores(*offer.stored[:-1]), ONE_SEAL),
    "two seals": (lambda offer: offer.stores(*offer.stored, offer.stored[-1]), ONE_SEAL),
    "two seals, the second offered": (
        lambda offer: offer.stores(*offer.stored, offer.stored[-1]).offers(
            seal_seq=5, durable_seq=5
        ),
        ONE_SEAL,
    ),
    "a seal of another place": (lambda offer: offer.offers(seal_seq=3), ONE_SEAL),
    "a step that ended": (
        lambda offer: offer.stores(*offer.stored, step_end(1, 1)),
        NOT_OPEN,
    ),
    "a turn that began meanwhile": (
        lambda offer: offer.stores(*offer.stored, turn(2)),
        NOT_OPEN,
    ),
    "another boundary": (
        lambda offer: offer.offers(boundary=attrs.evolve(offer.clear.boundary, seq=1)),
        NOT_OPEN,
    ),
    "another request than the seal names": (
        lambda offer: offer.offers(
            encoded=attrs.evolve(offer.clear.encoded, request_digest="0" * 64)
        ),
        NOT_THE_SEAL,
    ),
    "another body than the seal names": (
        lambda offer: offer.offers(encoded=attrs.evolve(offer.clear.encoded, wire_digest="0" * 64)),
        NOT_THE_SEAL,
    ),
    "a request digest that seal and offer made up": (with_digests(request="0" * 64), NOT_THE_LOG),
    "a quirk that the wire does not show": (quirk, NOT_THE_LOG),
    "a wire digest that seal and offer made up": (with_digests(wire="0" * 64), NOT_THE_ENCODING),
    "another body with its own digest": (other_body, NOT_THE_ENCODING),
    "a codec that nobody here can write": (
        lambda offer: offer.stores(*offer.stored[:-1], sealed(offer.clear.encoded, codec="chat/9")),
        "its seal names the codec 'chat/9', which nobody here can write",
    ),
    "a message between step and request": (
        lambda offer: offer.stores(*offer.stored[:3], context(), *offer.stored[3:]).offers(
            seal_seq=5, durable_seq=5
        ),
        "the surface changed between step/start and the request",
    ),
    "no header": (
        lambda offer: offer.stores(*offer.stored[:3], offer.stored[4]).offers(
            seal_seq=3, durable_seq=3
        ),
        "no request/header stands before the request",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafts", [ASKED, SECOND], ids=["the first", "a later one"])
async def test_a_good_request_is_cleared(mode: Mode, drafts: list[Draft]) -> None:
    at = max(seq for seq, made in enumerate(drafts) if made.type == "step/start")
    assert await problem(Offer.honest(drafts, at), mode) is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", BAD)
async def test_a_request_with_one_thing_wrong_is_refused(what: str, mode: Mode) -> None:
    change, expected = BAD[what]
    refused = await violation(change(Offer.honest(ASKED)), mode)
    assert refused is not None
    assert (refused.problem, refused.unreported) == (expected, None)


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_id_that_stands_twice_in_a_message_is_refused(mode: Mode) -> None:
    """Nobody could say which of the two a result answers."""
    calls = [says(1, 1, "a", "a"), result(1, 1, "a"), result(1, 1, "a"), step_end(1, 1), step(1, 2)]
    found = await problem(Offer.honest([*ASKED, *calls], 8), mode)
    assert found == "the message at seq 4 uses a call id twice"


@pytest.mark.parametrize(("mode", "cleared"), [("enforce", True), ("full", False)])
async def test_only_full_reads_the_whole_log_anew(mode: Mode, cleared: bool) -> None:
    """What was read once and kept is wrong here: `enforce` goes on from it, `full` does not."""
    forged = [draft(attrs.evolve(user().data, content=context().data.content)), *ASKED[1:]]
    offer = Offer.honest(forged)
    true = offer.stores(*ASKED, offer.stored[-1])
    found = await problem(true, mode, await store_of(*offer.stored))
    assert found == (
        None if cleared else "a fresh session over the stored log makes another request"
    )


@pytest.mark.parametrize("mode", MODES)
async def test_only_full_encodes_anew_what_a_digest_vouches_for(mode: Mode) -> None:
    """The digest beside a body is the right one and the body is not: the wire hashes it again."""
    offer = Offer.honest(ASKED)
    body = offer.clear.encoded.body.replace(b'"S"', b'"T"')
    found = await problem(offer.offers(encoded=attrs.evolve(offer.clear.encoded, body=body)), mode)
    expected = "a fresh encoder over the stored log writes another body"
    assert found == (expected if mode == "full" else None)


async def test_a_log_that_cannot_be_read_clears_nothing() -> None:
    """The checker goes on and says what it met; the request does not leave."""
    offer = Offer.honest(ASKED)
    refused = await problem(offer, first=open_store("memory:"))
    assert refused is not None
    assert "there is no session 's'" in refused


async def test_a_body_that_is_no_json_is_refused_and_reported_as_it_is() -> None:
    reports: list[bytes] = []

    def keep(_name: str, content: bytes) -> None:
        reports.append(content)

    body = b'\xff{"no": json'
    offer = Offer.honest(ASKED)
    encoded = attrs.evolve(
        offer.clear.encoded, body=body, wire_digest=hashlib.sha256(body).hexdigest()
    )
    refused = await violation(offer.offers(encoded=encoded), keep_report=keep)
    assert refused is not None
    assert refused.problem == NOT_THE_SEAL
    assert "no JSON" in str(refused.difference)
    assert orjson.loads(reports[0])["offered"] == '\ufffd{"no": json'


async def test_every_reader_is_closed_and_a_long_log_is_read_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.actors.request.invariants.SLICE", 200)
    long = [*(context() for _ in range(50)), *ASKED]
    offer = Offer.honest(long, 52)
    store = await store_of(*offer.stored)
    opened: list[str] = []

    def open_reader() -> LogReader:
        reader = store.reader("s")
        close = reader.close
        opened.append("opened")

        def closing() -> None:
            opened.remove("opened")
            close()

        reader.close = closing  # type: ignore[method-assign]  # to see that it is called
        return reader

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with open_supervisor("s") as tree, trio.open_nursery() as nursery:
        evidence = Evidence("s", open_reader, lambda: offer.clear.durable_seq, lambda _n, _c: None)
        actor: Ref[Clear | Report] = await tree.start(
            partial(invariants, evidence=evidence, full=True), spec=Spec("invariants")
        )
        nursery.start_soon(others)
        await actor.ask(offer.clear)
        with pytest.raises(InvariantViolation):
            await actor.ask(Report(offer.clear, "somebody found it wrong"))
        nursery.cancel_scope.cancel(reason="seen")
    assert turns > 20, "others have their turn between slices"
    assert opened == []


async def test_an_actor_that_was_asked_nothing_ends_quietly() -> None:
    async with open_supervisor("s") as tree:
        evidence = Evidence(
            "s",
            lambda: open_store("memory:").reader("s"),
            lambda: -1,
            lambda _name, _content: None,
        )
        checker = partial(invariants, evidence=evidence, full=False)
        await tree.start(checker, spec=Spec("invariants"))


@pytest.mark.parametrize("kept", [None, "/reports/s.violation-2.json"])
async def test_a_violation_says_what_differs_first_and_where_its_report_is(
    kept: str | None,
) -> None:
    reports: list[tuple[str, bytes]] = []

    def keep(name: str, content: bytes) -> str | None:
        reports.append((name, content))
        return kept

    refused = await violation(other_body(Offer.honest(ASKED)), keep_report=keep)
    assert refused is not None
    assert refused.difference is not None
    assert (refused.session, refused.boundary, refused.report) == ("s", 2, kept)
    assert str(refused.difference) in str(refused)
    assert refused.problem in str(refused)
    assert str(kept) in str(refused) if kept else "None" not in str(refused)
    ((name, content),) = reports
    assert name == "violation-2.json"
    report = orjson.loads(content)
    assert report["problem"] == refused.problem
    assert report["firstDifference"]["path"] == refused.difference.path
    assert '"content":"S"' in report["expected"]
    assert '"content":"T"' in report["offered"]


async def test_a_violation_without_a_difference_names_none() -> None:
    refused = await violation(Offer.honest(ASKED).offers(durable_seq=-1))
    assert refused is not None
    assert refused.difference is None
    assert "None" not in str(refused)
    assert "difference" not in str(refused)


ODD_CALLS = [
    *(user(), turn(1), step(1, 1), draft(RequestHeader(HEADER, "initial"))),
    *(says(1, 1, "a", "b"), result(1, 1, "b"), result(1, 1, "a"), step_end(1, 1), step(1, 2)),
]
"""Results in another order than that of their calls, which `chat/1` and `chat/2` write apart."""


@pytest.mark.parametrize("wire", [CHAT_1, CHAT], ids=lambda wire: wire.name)
async def test_what_the_log_makes_is_shown_in_the_codec_of_the_seal(wire: WireFormat) -> None:
    reports: list[bytes] = []

    def keep(_name: str, content: bytes) -> None:
        reports.append(content)

    offer = Offer.honest(ODD_CALLS, 8, wire)
    assert await problem(offer) is None
    refused = await violation(offer.offers(durable_seq=-1), keep_report=keep)
    assert refused is not None
    assert refused.difference is None
    report = orjson.loads(reports[0])
    assert report["expected"] == report["offered"] == offer.clear.encoded.body.decode()


async def test_a_log_that_makes_no_request_is_what_differs() -> None:
    change, _ = BAD["no header"]
    refused = await violation(change(Offer.honest(ASKED)))
    assert refused is not None
    assert refused.difference is not None
    assert refused.difference.path == ""
    assert "no request/header" in str(refused.difference)


async def flaw(
    *stored: Draft, inherited: Sequence[Draft] = (), also: Sequence[bytes] = ()
) -> str | None:
    """What a violation says is wrong with the log itself, a fork's where it inherited something."""
    store = open_store("memory:")
    first = await store.create(SessionHeader("p" if inherited else "s", 0))
    events = events_of([*inherited, *stored])
    grant = first
    if inherited:
        first.append(0, [event.encoded for event in events[: len(inherited)]])
        await store.fork("p", None, SessionHeader("s", 0))
        grant = await store.acquire("s")
    grant.append(len(inherited), [*(e.encoded for e in events[len(inherited) :]), *also])
    async with open_supervisor("s") as tree:
        evidence = Evidence("s", lambda: store.reader("s"), lambda: -1, lambda _n, _c: None)
        checker = partial(invariants, evidence=evidence, full=False)
        actor: Ref[Clear | Report] = await tree.start(checker, spec=Spec("invariants"))
        with pytest.raises(InvariantViolation) as refused:
            await actor.ask(Report(Offer.honest(ASKED).clear, "somebody found it wrong"))
        said = refused.value.flaw
        assert ("the log is good" in str(refused.value)) == (said is None)
        assert said is None or said in str(refused.value)
        return said


async def test_a_violation_says_what_is_wrong_with_the_log_if_it_is_that() -> None:
    assert await flaw(*ASKED) is None
    broken = await flaw(*ASKED, turn(2))
    assert broken is not None
    assert "turn 1 is still open" in broken
    unclear = await flaw(*ASKED, also=[b'{"type":"turn/end","seq":4,"time":0,"data":{}}'])
    assert unclear is not None
    assert "turn/end" in unclear
    unfit = await flaw(*ASKED, user(replaces=at(99)))
    assert unfit is not None
    assert "99" in unfit


async def test_what_a_fork_inherited_is_judged_as_its_parents() -> None:
    """What was pending there is not the fork's to take away."""
    parent = [queued(), turn(1), turn_end(1)]
    assert await flaw(*parent, removed(0)) is None
    assert await flaw(queued(), inherited=parent) is None
    assert (
        await flaw(removed(0), inherited=parent)
        == "event at seq 3 breaks rule 9: inbox entry 0 is not pending"
    )


WAIT = 10.0

PROMISES = {
    # Of a request whose check takes ten seconds: does it leave first, is anything kept first?
    "full": (False, False),
    "enforce": (False, False),
    "audit": (True, False),
    "off": (True, True),
}


@pytest.mark.parametrize("mode", PROMISES)
async def test_what_a_mode_lets_happen_before_its_check_has_ended(
    mode: Literal["full", "enforce", "audit", "off"], autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("an answer")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        slow_down(agent)
        before: list[tuple[bool, bool]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "hello")
            await trio.sleep(WAIT / 2)
            kept = any(message.role == "assistant" for message in agent.messages())
            before.append((bool(script.bodies), kept))
        assert before == [PROMISES[mode]]
        assert [message.role for message in agent.messages()] == ["user", "assistant"]
        assert len(script.bodies) == 1


def slow_down(agent: refold.Agent) -> None:
    """The check takes its time, where there is one."""
    clearance = dispatch_of(agent)._clearance
    if clearance is None:
        return
    ask = clearance.ask

    async def slowly(offer: Clear) -> object:
        await trio.sleep(WAIT)
        return await ask(offer)

    clearance.ask = slowly  # type: ignore[assignment,method-assign]  # the delay is the test


@pytest.mark.parametrize("mode", PROMISES)
async def test_the_seal_says_how_its_request_was_checked(
    mode: Literal["full", "enforce", "audit", "off"],
) -> None:
    async with refold.open("memory:", providers=[Script([Say("one")])]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants=mode)
        await agent.ask("hello")
        (seal,) = of_type(stored_events(runtime, agent.session_id), "request/sealed")
        assert seal.invariants == mode
