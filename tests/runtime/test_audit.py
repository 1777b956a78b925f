"""The independent account: what the stored events explain, and what they do not.

A row is a stored log as a short list of events; no rule kept its writer from any of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from refold.runtime.audit import RequestAudit, Unexplained
from refold.runtime.envelope import Draft, Event, decode_line, draft
from refold.runtime.events import AssistantMessage
from refold.runtime.messages import Message, TextBlock
from refold.runtime.request import rebuild_request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.wire.chat import CHAT
from refold.runtime.wire.request_encoder import encode_request
from tests.runtime.rules.words import (
    at,
    context,
    header,
    queued,
    result,
    says,
    seal,
    step,
    step_end,
    turn,
    turn_end,
    user,
)


class Stored:
    """A stored log, an account of it, and how often that had to read an event again."""

    def __init__(self, drafts: Sequence[Draft] = ()) -> None:
        self.events: list[Event] = []
        self.reread: list[int] = []
        self.audit = RequestAudit(self._read)
        for made in drafts:
            self.add(made)

    def add(self, made: Draft) -> None:
        self.events.append(decode_line(made.at(len(self.events), 0).encoded))
        self.audit.feed(self.events[-1])

    def _read(self, seq: int) -> Event:
        self.reread.append(seq)
        return self.events[seq]

    def open_step(self) -> tuple[object, ...] | None:
        step = self.audit.step
        return None if step is None else (step.turn, step.step, step.boundary, step.seals)

    def assert_expects_the_request(self) -> None:
        """The digests of the open step are those of the request that the log gives."""
        assert self.audit.step is not None
        request = rebuild_request(self.events, self.audit.step.boundary)
        body = encode_request(request, CHAT).body
        expected = self.audit.expected(CHAT.name)
        assert expected.request == request.digest()
        assert expected.wire == hashlib.sha256(body).hexdigest()


ASKED = [user(), turn(1), step(1, 1)]
SENT = [*ASKED, header(), seal(1, 1)]
CALLED = [*SENT, says(1, 1, "a", "b")]
NEXT = [step_end(1, 1), step(1, 2)]


GOOD: dict[str, Sequence[Draft]] = {
    "the first request": SENT,
    "log-only events between": [*ASKED, queued(), header(), queued(), seal(1, 1), queued()],
    "after an answer": [*SENT, says(1, 1), *NEXT],
    "after results": [*CALLED, result(1, 1, "a"), result(1, 1, "b"), *NEXT],
    "after results in another order": [*CALLED, result(1, 1, "b"), result(1, 1, "a"), *NEXT],
    "context after results": [
        *CALLED,
        result(1, 1, "b"),
        result(1, 1, "a"),
        context(),
        *NEXT,
    ],
    "an id that comes back": [
        *SENT,
        says(1, 1, "a"),
        result(1, 1, "a"),
        *NEXT,
        says(1, 2, "a"),
        result(1, 2, "a"),
        step_end(1, 2),
        step(1, 3),
    ],
    "an empty answer": [*SENT, draft(AssistantMessage(1, 1, ())), *NEXT],
    "a replacement before the step": [*SENT, says(1, 1), NEXT[0], user(0, replaces=at(0)), NEXT[1]],
    "the next turn": [*SENT, says(1, 1), step_end(1, 1), turn_end(1), user(), turn(2), step(2, 1)],
}


@pytest.mark.parametrize("what", GOOD)
def test_a_request_that_the_log_explains(what: str) -> None:
    stored = Stored(GOOD[what])
    stored.assert_expects_the_request()
    stored.assert_expects_the_request()
    assert stored.reread == []


BAD: dict[str, tuple[Sequence[Draft], str]] = {
    "nothing": ([], "no step is open in the stored log"),
    "a turn without a step": ([turn(1)], "no step is open in the stored log"),
    "a step that ended": ([*SENT, step_end(1, 1)], "no step is open in the stored log"),
    "a turn that ended over its step": ([*SENT, turn_end(1)], "no step is open in the stored log"),
    "no header": (ASKED, "no request/header stands before the request"),
    "a message between step and request": (
        [*ASKED, context(), header(), seal(1, 1)],
        "the surface changed between step/start and the request",
    ),
    "an answer that stands already": (
        [*SENT, says(1, 1)],
        "the surface changed between step/start and the request",
    ),
    "a replacement between step and request": (
        [*ASKED, header(), user(0, replaces=at(0))],
        "the surface changed between step/start and the request",
    ),
    "a call without a result": ([*CALLED, result(1, 1, "b"), *NEXT], "call 'a' has no result"),
    "the last message": ([*SENT, says(1, 1, "a"), *NEXT], "call 'a' has no result"),
    "a message between a call and its result": (
        [*SENT, says(1, 1, "a"), context(), result(1, 1, "a"), *NEXT],
        "call 'a' has no result before seq 6",
    ),
    "a message between two results": (
        [*CALLED, result(1, 1, "a"), user(), result(1, 1, "b"), *NEXT],
        "call 'b' has no result before seq 7",
    ),
    "an answer after an open call": (
        [*SENT, says(1, 1, "a"), *NEXT, says(1, 2, "b"), result(1, 2, "b"), *NEXT],
        "call 'a' has no result before seq 8",
    ),
    "a result that nobody asked for": (
        [*SENT, says(1, 1), result(1, 1, "a"), *NEXT],
        "the tool/result at seq 6 answers no call that is still open",
    ),
    "a second result": (
        [*CALLED, result(1, 1, "a"), result(1, 1, "a"), result(1, 1, "b"), *NEXT],
        "the tool/result at seq 7 answers no call that is still open",
    ),
    "a result of a round before": (
        [*SENT, says(1, 1, "a"), result(1, 1, "a"), *NEXT, result(1, 1, "a"), *NEXT],
        "the tool/result at seq 9 answers no call that is still open",
    ),
    "a result before its call": (
        [result(1, 1, "a"), *SENT],
        "the tool/result at seq 0 answers no call that is still open",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_the_log_does_not_explain(what: str) -> None:
    drafts, why = BAD[what]
    with pytest.raises(Unexplained) as unexplained:
        Stored(drafts).audit.expected(CHAT.name)
    assert str(unexplained.value) == why


def test_the_open_step_has_its_place_and_its_seals() -> None:
    stored = Stored([user(), turn(1)])
    assert stored.open_step() is None
    stored.add(step(1, 1))
    assert stored.open_step() == (1, 1, 2, ())
    for _ in range(2):
        stored.add(seal(1, 1))
    assert stored.open_step() == (1, 1, 2, ((3, seal(1, 1).data), (4, seal(1, 1).data)))
    assert stored.audit.next_seq == 5
    for made in (step_end(1, 1), step(1, 2)):
        stored.add(made)
    assert stored.open_step() == (1, 2, 6, ())


def test_a_seal_outside_a_step_belongs_to_none() -> None:
    stored = Stored([user(), turn(1), seal(1, 1), step(1, 1)])
    assert stored.audit.step is not None
    assert stored.audit.step.seals == ()


def another(system: str, *prefix: str) -> Draft:
    before = tuple(Message("user", (TextBlock(text),)) for text in prefix)
    config = LlmCallConfig("p", model="m")
    return draft(RequestHeader(EpochHeader(config, system, message_prefix=before), "change"))


def test_one_account_follows_a_session_through_everything_that_changes_a_request() -> None:
    """Kept hashes go on, or begin anew, and are those of the whole request each time."""
    stored = Stored([*SENT])
    stored.assert_expects_the_request()
    for made in (says(1, 1, "a"), result(1, 1, "a"), *NEXT):
        stored.add(made)
    stored.assert_expects_the_request()
    assert stored.reread == [], "what is new was fed, what is old was hashed"
    for made in (another("S", "before"), seal(1, 2)):
        stored.add(made)
    stored.assert_expects_the_request()
    assert stored.reread == [0, 5, 6], "another header begins anew"
    for made in (says(1, 2), step_end(1, 2), context(), user(13, replaces=at(13))):
        stored.add(made)
    for made in (step(1, 3), another("S", "before")):
        stored.add(made)
    stored.reread.clear()
    stored.assert_expects_the_request()
    assert stored.reread, "a replacement begins anew"
    stored.reread.clear()
    stored.assert_expects_the_request()
    assert stored.reread == [], "an equal header goes on"


def test_an_account_that_could_explain_nothing_begins_anew() -> None:
    stored = Stored([*CALLED, result(1, 1, "a"), *NEXT])
    for _ in range(2):
        with pytest.raises(Unexplained, match="call 'b' has no result"):
            stored.audit.expected(CHAT.name)
    for made in (step_end(1, 2), user(5, 6, replaces=at(5, 6)), step(1, 3)):
        stored.add(made)
    stored.assert_expects_the_request()


def test_what_stands_on_the_surface_must_be_in_order() -> None:
    from refold.runtime.errors import SurfaceRefused

    with pytest.raises(SurfaceRefused):
        Stored([user(), user(7)])
