"""Answers that come in another form than was asked for: read, or refused once and said."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.stream.chunks import FinishReason, Usage
from refold.runtime.stream.failures import RETRYABLE, LlmFailure
from refold.runtime.wire.chat import decode as decoding
from refold.runtime.wire.chat.decode import ChatDecoder
from tests.runtime.wire.chat_streams import (
    DONE,
    USAGE,
    answer,
    call,
    decode,
    delta,
    event,
    failure_of,
    said,
)

WHOLE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": "I look.",
                "tool_calls": [call(id="c", type="function", name="look", arguments='{"at":1}')],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}
LINES = [
    {"choices": [{"index": 0, "delta": {"reasoning_content": "hm", "content": "I lo"}}]},
    {"choices": [{"index": 0, "delta": {"content": "ok."}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [call(index=0, id="c", name="look")]}}]},
    {"choices": [{"delta": {"tool_calls": [call(index=0, arguments='{"at":1}')]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": USAGE},
]


def lines(*objects: object, end: bytes = b"\n") -> bytes:
    return end.join(map(orjson.dumps, objects))


BODIES = {
    "one object": orjson.dumps(WHOLE),
    "an object on many lines": orjson.dumps(WHOLE, option=orjson.OPT_INDENT_2),
    "behind blanks and a mark": b"\xef\xbb\xbf \r\n" + orjson.dumps(WHOLE) + b"\n\n",
    "an object a line": lines(*LINES),
    "with CRLF and empty lines": lines(*LINES, end=b"\r\n\r\n") + b"\r\n",
    "a list": orjson.dumps(LINES),
    "a list of one": orjson.dumps([WHOLE]),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_answer_that_is_no_stream_is_read_with_its_usage(body: bytes, size: int) -> None:
    result = answer(*(body[at : at + size] for at in range(0, len(body), size)))

    assert result.content == (
        ReasoningBlock("hm"),
        TextBlock("I look."),
        ToolCallBlock("c", "look", '{"at":1}'),
    )
    assert (result.finish, result.usage) == ("tool-calls", Usage(10, 3))


def test_a_body_that_is_cut_anywhere_is_no_answer() -> None:
    body = orjson.dumps(WHOLE)
    for end in range(1, len(body)):
        decoder = ChatDecoder()
        assert decoder.feed(body[:end]) == []
        with pytest.raises(LlmFailure) as caught:
            decoder.close()
        assert caught.value.failure.code == "STREAM_CLOSED"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<!doctype html><p>Sign in", "check the base URL: <!doctype html><p>Sign in"),
        (b"ok", "check the base URL"),
        (b"Welcome to nginx!\n\n", "check the base URL"),
        (b'{"status":"ok"}', "check the base URL"),
        (b"[]", "check the base URL"),
        (b'{"models":[1]}\n{"models":[2]}', "check the base URL"),
    ],
)
def test_what_is_no_answer_is_refused_once(body: bytes, says: str) -> None:
    decoder = ChatDecoder()
    assert decoder.feed(body) == []
    with pytest.raises(LlmFailure) as caught:
        decoder.close()
    assert caught.value.failure.code == "MALFORMED_RESPONSE"
    assert "MALFORMED_RESPONSE" not in RETRYABLE
    assert says in caught.value.failure.message


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"error":{"message":"slow down","code":429}}', "RATE_LIMIT", "slow down"),
        (b'{"detail":"no such model"}', "SERVER", "no such model"),
        (b'{"errors":["tenant is unknown"]}', "SERVER", "tenant is unknown"),
        (b'{"error_code":1,"error_msg":"bad flavour"}', "SERVER", "bad flavour"),
        (b'{"message":"forbidden fruit"}', "SERVER", "forbidden fruit"),
    ],
)
@pytest.mark.parametrize("form", [b"%s", b"data: %s\n\n"])
def test_an_error_in_any_body_keeps_its_words(
    body: bytes, code: str, words: str, form: bytes
) -> None:
    decoder = ChatDecoder()
    with pytest.raises(LlmFailure) as caught:
        decoder.feed(form % body)
        decoder.close()
    assert caught.value.failure.code == code
    assert words in caught.value.failure.message


# Choices of an older or a neighbouring form


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"function_call": {"name": "look", "arguments": '{"at":1}'}}},
        {"message": {"function_call": {"name": "look", "arguments": '{"at":1}'}}},
        {"delta": {"tool_calls": call(index=0, name="look", arguments='{"at":1}')}},
        {"message": {"content": None, "tool_calls": [call(name="look", arguments={"at": 1})]}},
        {"delta": {}, "message": {"tool_calls": [call(name="look", arguments='{"at":1}')]}},
    ],
)
def test_a_call_in_an_older_form_is_a_call(choice: dict[str, Any]) -> None:
    result = answer(event({"choices": [choice]}), delta("function_call"), DONE)

    assert result.finish == "tool-calls"
    assert result.content == (ToolCallBlock("call-1", "look", '{"at":1}'),)


def test_an_old_function_call_in_pieces_is_one_call() -> None:
    pieces = [{"name": "look", "arguments": ""}, {"arguments": '{"at"'}, {"arguments": ":1}"}]
    result = answer(*(delta(function_call=piece) for piece in pieces), delta("stop"), DONE)

    assert result.content == (ToolCallBlock("call-1", "look", '{"at":1}'),)


@pytest.mark.parametrize("choice", [{"text": "hello"}, {"message": {"content": "hello"}}])
def test_text_in_another_place_is_text(choice: dict[str, Any]) -> None:
    assert answer(event({"choices": [choice]}), delta("stop"), DONE).content == (
        TextBlock("hello"),
    )


# Heartbeats and ends


@pytest.mark.parametrize(
    "noise", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"data:\ndata:\n\n", b"data:   \r\n\r\n"]
)
def test_events_without_data_are_heartbeats(noise: bytes) -> None:
    pieces = [noise, said("a"), noise, said("b"), delta("stop"), noise, event({"usage": USAGE})]
    assert answer(*pieces, noise, DONE).content == (TextBlock("ab"),)
    assert answer(*pieces, noise).content == (TextBlock("ab"),)


def test_the_terminal_event_may_be_quoted() -> None:
    assert answer(said("a"), delta("stop"), b'data: "[DONE]"\n\n').content == (TextBlock("a"),)


# Reasons to end


@pytest.mark.parametrize(
    "reason", ["STOP", "End_Turn", "eos_token", "stop_sequence", "TOOL-CALLS", "completed"]
)
def test_a_good_end_is_good_in_any_letters_and_kept_as_it_was_said(reason: str) -> None:
    chunks = decode(said("a"), delta(reason), DONE)
    assert chunks[-1].reason == FinishReason("stop", reason)  # type: ignore[union-attr]  # a Finish


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("MAX_TOKENS", "max-tokens"),
        ("model_length", "max-tokens"),
        ("max_output_tokens", "max-tokens"),
        ("model_context_window_exceeded", "max-tokens"),
        ("Length", "max-tokens"),
        ("sensitive", "content-filter"),
        ("SAFETY", "content-filter"),
        ("prohibited_content", "content-filter"),
        ("content-filter", "content-filter"),
    ],
)
def test_a_cut_answer_keeps_its_text_and_none_of_its_calls(reason: str, kind: str) -> None:
    asked = delta(tool_calls=[call(index=0, id="a", name="f", arguments="{}")])
    result = answer(said("a"), asked, delta(reason), DONE)

    assert (result.finish, result.content) == (kind, (TextBlock("a"),))


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("network_error", "SERVER"),
        ("ABORT", "SERVER"),
        ("cancelled", "SERVER"),
        ("server_overloaded", "OVERLOADED"),
        ("because", "MALFORMED_RESPONSE"),
        ("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE"),
        ("x" * 5000, "MALFORMED_RESPONSE"),
    ],
)
def test_an_end_that_is_not_known_to_be_good_carries_nothing_out(reason: str, code: str) -> None:
    asked = delta(tool_calls=[call(index=0, id="a", name="f", arguments="{}")])
    assert failure_of(asked, delta(reason), DONE)[1] == code


def test_an_answer_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ANSWER_BYTES", 10_000)
    for form in (b"data: x", b"{", b"x"):
        decoder = ChatDecoder()
        with pytest.raises(LlmFailure, match="more than 10000 bytes"):
            for _ in range(11):
                decoder.feed(form + b"x" * 1000)
