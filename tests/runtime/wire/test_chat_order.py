"""`chat/2` writes a step's results in the order of its calls, however they came; `chat/1` does not.

The log keeps what happened. What is written of a run of results depends on the run alone, and
never changes once the run is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given, settings

from refold.runtime.audit import RequestAudit
from refold.runtime.envelope import decode_line, draft
from refold.runtime.events import (
    AssistantMessage,
    RequestSealed,
    StepEnd,
    StepStart,
    ToolResult,
    UserMessage,
)
from refold.runtime.history import History
from refold.runtime.messages import (
    USER,
    Message,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    tool_calls,
)
from refold.runtime.prefix import common_prefix
from refold.runtime.request import Request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.wire.chat import CHAT, CHAT_1
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.known_formats import FORMATS
from refold.runtime.wire.request_encoder import RequestEncoder, encode_request

HEADER = EpochHeader(LlmCallConfig("p", model="m"), "S")


def said(text: str = "hi") -> Message:
    return Message("user", (TextBlock(text),))


def asked(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCallBlock(one, "look", "{}") for one in ids))


def result(call_id: str, text: str = "") -> Message:
    return Message("user", (ToolResultBlock(call_id, (TextBlock(text or call_id),), False),))


def body_of(messages: Sequence[Message], format_: WireFormat = CHAT) -> bytes:
    return encode_request(Request(HEADER, tuple(messages)), format_).body


def shown(messages: Sequence[Message], format_: WireFormat = CHAT) -> list[str]:
    """The contents on the wire, the system prompt left out."""
    wire: list[dict[str, Any]] = orjson.loads(body_of(messages, format_))["messages"]
    return [one["content"] or "calls" for one in wire if one["role"] != "system"]


def test_results_stand_in_the_order_of_their_calls() -> None:
    history = [said(), asked("a", "b", "c"), result("c"), result("a"), result("b"), said("on")]
    assert shown(history) == ["hi", "calls", "a", "b", "c", "on"]
    assert shown(history, CHAT_1) == ["hi", "calls", "c", "a", "b", "on"]


def test_one_order_of_arrival_is_as_good_as_another() -> None:
    calls = asked("a", "b", "c")
    one = [said(), calls, result("b"), result("c"), result("a")]
    other = [said(), calls, result("a"), result("b"), result("c")]
    assert body_of(one) == body_of(other) == body_of(other, CHAT_1)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        # An id that comes back names the call of its own step.
        (
            [
                *(asked("x", "y"), result("y", "1"), result("x", "2")),
                *(asked("y", "x"), result("x", "3"), result("y", "4")),
            ],
            ["calls", "2", "1", "calls", "4", "3"],
        ),
        # A step whose run something else cuts short keeps what there is, in order.
        ([asked("a", "b", "c"), result("c"), result("a"), said()], ["calls", "a", "c", "hi"]),
        ([asked("a", "b"), result("b")], ["calls", "b"]),
        # Results that answer no open call stay where they are.
        (
            [asked("a", "b"), result("b"), result("z"), result("a")],
            ["calls", "b", "z", "a"],
        ),
        ([asked("a", "b"), result("b"), result("a"), result("a", "2")], ["calls", "a", "b", "2"]),
        # Two calls with one id are answered one after the other.
        (
            [asked("a", "a", "b"), result("b"), result("a", "1"), result("a", "2")],
            ["calls", "1", "2", "b"],
        ),
        ([result("b"), result("a")], ["b", "a"]),
    ],
)
def test_a_run_is_what_answers_the_calls_before_it(
    history: list[Message], expected: list[str]
) -> None:
    assert shown(history) == expected


IDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Turns with calls whose results come in any order, at times unfinished, doubled or stray."""
    found: list[Message] = []
    for number in range(draw(st.integers(1, 4))):
        found.append(said(f"turn {number}"))
        ids = draw(IDS)
        found.append(asked(*ids))
        answered = draw(st.permutations(ids))
        kept = answered[: draw(st.integers(0, len(ids)))] + draw(st.just([]) | IDS)
        found += [result(one, f"{one}{number}{place}") for place, one in enumerate(kept)]
    return found


@given(histories(), st.sampled_from([CHAT, CHAT_1]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_bodies_that_grow_are_the_whole_bodies_and_count_what_they_share(
    history: list[Message], format_: WireFormat
) -> None:
    encoder, previous = RequestEncoder(), b""
    for length in range(1, len(history) + 1):
        encoded = encoder.encode(format_, HEADER, history[:length])
        assert encoded.body == body_of(history[:length], format_)
        assert encoded.wire_digest == hashlib.sha256(encoded.body).hexdigest()
        assert encoded.shared_prefix_bytes == common_prefix(previous, encoded.body)
        previous = encoded.body


@given(histories())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_what_is_final_stays_and_nothing_is_lost(history: list[Message]) -> None:
    encoder, final = CHAT.messages(HEADER), b""
    for message in history:
        before = final + encoder.unfinished()
        final += encoder.add(message)
        assert encoder.unfinished() == encoder.unfinished()
        assert len(final + encoder.unfinished()) > len(before)
    body = CHAT.opening(HEADER) + final + encoder.unfinished() + CHAT.closing
    assert sorted(shown(history)) == sorted(shown(history, CHAT_1))
    assert body == body_of(history)


@given(st.lists(IDS.map(lambda ids: sorted(set(ids))), min_size=1, max_size=4), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_whole_steps_leave_nothing_unfinished_and_each_body_begins_the_next(
    steps: list[list[str]], data: st.DataObject
) -> None:
    history, encoder, previous = [said()], RequestEncoder(), b""
    for ids in steps:
        history.append(asked(*ids))
        history += [result(one) for one in data.draw(st.permutations(ids))]
        encoded = encoder.encode(CHAT, HEADER, history)
        if previous:
            kept = previous.removesuffix(CHAT.closing)
            assert encoded.body.startswith(kept)
            assert encoded.shared_prefix_bytes == len(kept)
        previous = encoded.body
        written = [one for one in shown(history) if one not in ("hi", "calls")]
        called = [call.id for message in history for call in tool_calls(message.content)]
        assert written == called


@pytest.mark.parametrize("codec", FORMATS)
def test_an_account_of_stored_events_reaches_the_digests_of_the_codec_that_the_seal_names(
    codec: str,
) -> None:
    session = History()
    session.append(draft(UserMessage((TextBlock("go"),), USER)), 0)
    session.append(draft(RequestHeader(HEADER, "initial")), 0)
    calls = tuple(ToolCallBlock(one, "look", "{}") for one in "abc")
    session.append(draft(StepStart(1, 1)), 0)
    session.append(draft(AssistantMessage(1, 1, calls)), 0)
    for one in "cab":
        session.append(draft(ToolResult(1, 1, one, (TextBlock(one),), False)), 0)
    session.append(draft(StepEnd(1, 1)), 0)
    session.append(draft(StepStart(1, 2)), 0)
    encoded = encode_request(Request(HEADER, session.derive_messages()), FORMATS[codec])
    digests = (encoded.request_digest, encoded.wire_digest)
    session.append(draft(RequestSealed(1, 2, codec, *digests, 0, 0, "enforce")), 0)
    audit = RequestAudit(lambda seq: decode_line(session.events[seq].encoded))
    for event in session.events:
        audit.feed(decode_line(event.encoded))
    expected = audit.expected(codec)
    assert (expected.request, expected.wire) == digests


def test_a_change_of_codec_starts_the_bytes_anew_and_still_counts_what_is_shared() -> None:
    history = [said(), asked("a", "b"), result("b"), result("a")]
    encoder = RequestEncoder()
    before = encoder.encode(CHAT_1, HEADER, history)
    after = encoder.encode(CHAT, HEADER, history)
    assert before.request_digest == after.request_digest, "the content is the same"
    assert after.body == body_of(history)
    assert after.shared_prefix_bytes == common_prefix(before.body, after.body) < len(after.body)
    back = encoder.encode(CHAT_1, HEADER, history[:1])
    again = encoder.encode(CHAT, HEADER, history[:1])
    assert again.shared_prefix_bytes == len(again.body) == len(back.body)


def test_a_run_is_final_with_its_last_result() -> None:
    encoder = CHAT.messages(HEADER)
    given = [encoder.add(m) for m in (asked("a", "b"), result("b"), result("a"))]
    assert given[1] == b""
    assert given[2].index(b'"a"') < given[2].index(b'"b"')
    assert encoder.unfinished() == b""
