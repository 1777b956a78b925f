"""What providers say when they say no: codes, waits, and messages that are safe to show."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.stream.failures import (
    RETRYABLE,
    failure_from_error,
    failure_from_response,
    retry_after_ms,
)


def error(message: str = "no", **fields: Any) -> bytes:
    return orjson.dumps({"error": {"message": message, **fields}})


def code(status: int, body: bytes = b"") -> str:
    return failure_from_response(status, {}, body).code


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "INVALID_REQUEST"),
        (401, "AUTH"),
        (402, "QUOTA"),
        (403, "AUTH"),
        (404, "INVALID_REQUEST"),
        (408, "TIMEOUT"),
        (409, "SERVER"),
        (413, "INVALID_REQUEST"),
        (422, "INVALID_REQUEST"),
        (429, "RATE_LIMIT"),
        (500, "SERVER"),
        (502, "SERVER"),
        (503, "OVERLOADED"),
        (504, "TIMEOUT"),
        (529, "OVERLOADED"),
        (599, "SERVER"),
    ],
)
def test_a_status_has_a_code(status: int, expected: str) -> None:
    assert code(status) == expected
    assert code(status, error()) == expected


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, error(code="context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error(type="exceed_context_size_error", n_ctx=8192), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("This model's maximum context length is 4096"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("prompt is too long: 210000 tokens > 200000"), "CONTEXT_WINDOW_EXCEEDED"),
        (413, error("input is too long"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error(code="content_filter"), "CONTENT_FILTER"),
        (400, error("Content Exists Risk"), "CONTENT_FILTER"),
        (403, error("your input was flagged by moderation"), "CONTENT_FILTER"),
        (429, error(code="insufficient_quota"), "QUOTA"),
        (429, error("You exceeded your current quota, check your billing"), "QUOTA"),
        (400, error("Your credit balance is too low"), "QUOTA"),
        (429, error("tokens per minute: reduce the length", code="rate_limit_exceeded"), None),
        (429, error(type="engine_overloaded_error"), "OVERLOADED"),
        (401, error("billing"), "AUTH"),
        (503, error("Loading model", type="unavailable_error"), "OVERLOADED"),
        (400, b'[{"error":{"message":"context window","status":"INVALID_ARGUMENT"}}]', None),
    ],
)
def test_a_body_may_say_more_than_its_status(
    status: int, body: bytes, expected: str | None
) -> None:
    by_default = {429: "RATE_LIMIT", 400: "CONTEXT_WINDOW_EXCEEDED"}

    assert code(status, body) == (expected or by_default[status])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"error": {"code": 429, "message": "m"}}, "RATE_LIMIT"),
        ({"error": {"code": "503"}}, "OVERLOADED"),
        ({"error": {"type": "authentication_error"}}, "AUTH"),
        ({"error": {"status": "RESOURCE_EXHAUSTED"}}, "RATE_LIMIT"),
        ({"error": {"type": "BadRequestError"}}, "INVALID_REQUEST"),
        ({"error": "maximum context length"}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"message": "m", "type": "timeout_error"}, "TIMEOUT"),
        ({"error": {"message": "anything"}}, "SERVER"),
        ("anything", "SERVER"),
        (None, "SERVER"),
        ([], "SERVER"),
    ],
)
def test_an_error_in_a_stream_has_a_code(found: object, expected: str) -> None:
    assert failure_from_error(found).code == expected


def test_only_what_may_pass_is_retryable() -> None:
    assert code(429) in RETRYABLE
    assert not RETRYABLE & {"AUTH", "QUOTA", "INVALID_REQUEST", "CONTENT_FILTER", "ABORTED"}


def test_a_failure_carries_what_the_response_said() -> None:
    failure = failure_from_response(
        429, {"Retry-After": "2", "X-Request-Id": "r-1"}, error("Slow down.")
    )

    assert failure.message == (
        "the provider's rate limit is reached; send fewer requests "
        "(HTTP 429; it asks to wait 2 s): Slow down."
    )
    assert (failure.status, failure.retry_after_ms, failure.request_id) == (429, 2000, "r-1")


def test_a_request_id_may_stand_in_the_body() -> None:
    body = b'{"type":"error","error":{"type":"overloaded_error"},"request_id":"r-2"}'

    assert failure_from_response(529, {}, body).request_id == "r-2"


OVERFLOWS = [
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Prompt exceeds max length",
    "Range of input length should be [1, 129024]",
    "prompt token count of 140000 exceeds the limit of 128000",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Your request exceeded model token limit: 262144 (requested: 300001)",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000",
    "prompt too long; exceeded max context length by 4 tokens",
    "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000",
    "the request exceeds the available context size, try increasing it",
    "Input is too long for requested model.",
    "invalid params, context window exceeds limit",
    "total number of tokens in the prompt cannot exceed 4081 tokens",
    "Requested input of 33,000 tokens is greater than 32,768",
    "Prompt 超长",
]


@pytest.mark.parametrize("text", OVERFLOWS)
@pytest.mark.parametrize("status", [400, 422])
def test_an_overflow_is_known_in_the_words_of_every_server(text: str, status: int) -> None:
    assert code(status, error(text, type="invalid_request_error")) == "CONTEXT_WINDOW_EXCEEDED"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            400,
            error("max_tokens is too large: 9000. This model supports at most 4096"),
            "INVALID_REQUEST",
        ),
        (400, error("max_completion_tokens must be at most 4,096 tokens"), "INVALID_REQUEST"),
        (400, error("Too many tokens, please wait before trying again."), "RATE_LIMIT"),
        (429, error("Too many tokens, please wait before trying again."), "RATE_LIMIT"),
        (400, error("refused: the user wrote 'my monthly limit, my billing'"), "INVALID_REQUEST"),
        (400, error("the field `stop` has too many entries"), "INVALID_REQUEST"),
        (400, error("temperature exceeds 2"), "INVALID_REQUEST"),
        (413, error("Request Entity Too Large"), "INVALID_REQUEST"),
    ],
)
def test_what_only_sounds_like_an_overflow_or_a_spent_account_is_none(
    status: int, body: bytes, expected: str
) -> None:
    assert code(status, body) == expected


QUOTA_WORDS = "You exceeded your current quota. Upgrade at https://x.example/settings/billing"


@pytest.mark.parametrize(
    ("headers", "body", "expected", "wait"),
    [
        ({}, error(QUOTA_WORDS, code="rate_limit_exceeded", type="tokens"), "RATE_LIMIT", None),
        ({"retry-after": "7"}, error(QUOTA_WORDS), "RATE_LIMIT", 7000),
        ({}, error(f"{QUOTA_WORDS}. Please retry in 34.5s."), "RATE_LIMIT", 34_500),
        ({}, error("Rate limit reached. Please try again in 1m30.5s."), "RATE_LIMIT", 90_500),
        ({}, error("slow down, retry after 20 seconds"), "RATE_LIMIT", 20_000),
        ({}, error("please wait 2 minutes and go on"), "RATE_LIMIT", 120_000),
        ({}, error("try again in 250ms"), "RATE_LIMIT", 250),
        (
            {},
            error(QUOTA_WORDS, details=[{"@type": "x"}, {"retryDelay": "41.2s"}]),
            "RATE_LIMIT",
            41_200,
        ),
        ({"retry-after": "3"}, error("try again in 9s"), "RATE_LIMIT", 3000),
        ({}, error(QUOTA_WORDS, type="insufficient_quota"), "QUOTA", None),
        ({"retry-after": "3"}, error(QUOTA_WORDS, code="insufficient_quota"), "QUOTA", 3000),
        ({}, error(QUOTA_WORDS), "QUOTA", None),
        ({}, error("try again in 5 more tries, after 3 messages"), "RATE_LIMIT", None),
    ],
)
def test_a_limit_that_passes_is_told_from_an_account_that_is_spent(
    headers: dict[str, str], body: bytes, expected: str, wait: int | None
) -> None:
    failure = failure_from_response(429, headers, body)
    assert (failure.code, failure.retry_after_ms) == (expected, wait)
    assert ("asks to wait" in failure.message) == (wait is not None)


def test_a_wait_in_the_words_of_a_stream_s_error_is_kept() -> None:
    found = {"error": {"message": "busy, try again in 2s", "code": "rate_limit_exceeded"}}
    failure = failure_from_error(found)
    assert (failure.code, failure.retry_after_ms) == ("RATE_LIMIT", 2000)


DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
DATE_EPOCH = 1792567680.0


@pytest.mark.parametrize(
    ("headers", "now", "expected"),
    [
        ({}, None, None),
        ({"retry-after": "3"}, None, 3000),
        ({"retry-after": "0.2501"}, None, 251),
        ({"retry-after": "3", "retry-after-ms": "40"}, None, 40),
        ({"retry-after-ms": "soon", "retry-after": "3"}, None, 3000),
        ({"retry-after": "-3"}, None, 0),
        ({"retry-after": DATE}, DATE_EPOCH - 5, 5000),
        ({"retry-after": DATE}, DATE_EPOCH + 5, 0),
        ({"retry-after": DATE}, None, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 -0000"}, DATE_EPOCH - 5, 5000),
        ({"retry-after": "Wed, 21 Oct 2026 09:28:00 +0200"}, DATE_EPOCH - 5, 5000),
        ({"retry-after": "soon"}, 0.0, None),
        ({"retry-after": "nan"}, 0.0, None),
        ({"retry-after": "inf"}, 0.0, None),
        ({"retry-after": "1, 99 Xxx 99999 99:99:99 GMT"}, 0.0, None),
    ],
)
def test_how_long_a_server_asks_to_wait(
    headers: dict[str, str], now: float | None, expected: int | None
) -> None:
    assert retry_after_ms(headers, now) == expected


def message(text: str, status: int = 401) -> str:
    return failure_from_response(status, {}, error(text)).message


@pytest.mark.parametrize(
    "key",
    [
        "sk-abcdef0123456789abcdef0123456789",
        "sk-proj-abc_DEF-0123456789",
        "sk-ab****wxyz",
        "sk-or-v1-0123456789abcdef",
        "AIzaSyA1234567890abcdefghijk",
        "gsk_0123456789abcdefghij",
        "0123456789abcdef0123456789abcdef",
        "123e4567-e89b-12d3-a456-426614174000",
    ],
)
@pytest.mark.parametrize(
    "sentence",
    [
        "Incorrect API key provided: {}. Get one.",
        "invalid api_key={}",
        "bad header Authorization: Bearer {}",
        'the key "{}" is wrong',
    ],
)
def test_a_message_never_holds_a_key(key: str, sentence: str) -> None:
    shown = message(sentence.format(key))

    assert key not in shown
    assert key[-8:] not in shown


@pytest.mark.parametrize(
    "text",
    [
        "The model `claude-sonnet-4-5-20250929` does not exist",
        "API key is invalid",
        "request 123e4567-e89b-12d3-a456-426614174000 failed at 2026-10-21T07:28:00",
        "invalid keyword max_tokens",
    ],
)
def test_what_is_no_key_is_shown(text: str) -> None:
    assert message(text, 404).endswith(text)


def test_control_characters_and_direction_marks_are_taken_out() -> None:
    assert message("a\x1b[31mb\r\n\tc\x00\u202ed\u2028e\x9bf").endswith(": a [31mb c d e f")


def test_a_message_is_cut_and_says_so() -> None:
    shown = message("word " * 300)

    assert len(shown) == 500
    assert shown.endswith("…")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", "(HTTP 502)"),
        (b"upstream gone", "(HTTP 502): upstream gone"),
        (b"<html><h1>502 Bad\nGateway</h1></html>", "(HTTP 502): 502 Bad Gateway"),
        (b'{"error":"down"}', "(HTTP 502): down"),
        (b'{"detail":"down"}', "(HTTP 502): down"),
        (b'{"detail":[{"msg":"down"}]}', '(HTTP 502): {"msg":"down"}'),
        (b'{"detail":["up","down"]}', '(HTTP 502): ["up","down"]'),
        (b'{"errors":["down"]}', "(HTTP 502): down"),
        (b'{"error":true,"message":"down"}', "(HTTP 502): down"),
        (b'{"error":{"code":1},"message":"down"}', "(HTTP 502): down"),
        (b'{"error_code":336,"error_msg":"down"}', "(HTTP 502): down"),
        (b'{"error":{"message":"m","metadata":{"raw":"why"}}}', "(HTTP 502): m why"),
        (b"\xff\xfe", "(HTTP 502): \ufffd\ufffd"),
    ],
)
def test_the_words_of_every_kind_of_body(body: bytes, shown: str) -> None:
    assert failure_from_response(502, {}, body).message.endswith(shown)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 600) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "metadata", "raw", "detail"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(st.binary(max_size=30) | json_values.map(orjson.dumps), st.integers(100, 599))
def test_no_body_makes_the_reading_of_a_failure_fail(body: bytes, status: int) -> None:
    failure = failure_from_response(status, {}, body, 0.0)

    assert failure.message.isprintable()
    assert 0 < len(failure.message) <= 500


@pytest.mark.parametrize("text", ["key" * 20_000, "<" * 60_000, "sk-" * 20_000, "a1" * 30_000])
def test_a_body_made_to_be_slow_is_not(text: str) -> None:
    assert len(failure_from_response(500, {}, text.encode()).message) <= 500
