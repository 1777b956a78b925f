"""What a provider, or the way to it, did wrong."""

from __future__ import annotations

import calendar
import math
from collections.abc import Mapping
from email.utils import parsedate_tz

import attrs

from refold.runtime.errors import Broken
from refold.runtime.stream.error_body import (
    MESSAGE_LIMIT,
    Said,
    parsed,
    plain,
    sentence,
    without,
)
from refold.runtime.stream.error_codes import code_of

RETRYABLE: frozenset[str] = frozenset(
    (
        "RATE_LIMIT",
        "OVERLOADED",
        "SERVER",
        "TIMEOUT",
        "TRANSPORT",
        "STREAM_CLOSED",
        "EMPTY_RESPONSE",
    )
)
"""The codes after which the same request may succeed when it is sent again."""

LASTING: frozenset[str] = frozenset(
    (
        "AUTH",
        "MISSING_CREDENTIAL",
        "QUOTA",
        "INVALID_REQUEST",
        "CONTEXT_WINDOW_EXCEEDED",
        "CONTENT_FILTER",
        "NO_ADAPTER",
        "ABORTED",
    )
)
"""The codes after which it will not."""


@attrs.frozen
class Failure:
    """A failed request as data; `retry_after_ms` is the server's wish.

    `code` is RATE_LIMIT, OVERLOADED, SERVER, TIMEOUT, TRANSPORT, STREAM_CLOSED or EMPTY_RESPONSE,
    after which the same request may succeed; or AUTH, MISSING_CREDENTIAL, QUOTA, INVALID_REQUEST,
    CONTEXT_WINDOW_EXCEEDED, CONTENT_FILTER, MALFORMED_RESPONSE, NO_ADAPTER or ABORTED, after which
    it is not sent again.
    """

    code: str
    message: str
    status: int | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None


@attrs.define(eq=False)
class LlmFailure(Broken):
    """A request that did not end in a complete answer."""

    failure: Failure

    def __str__(self) -> str:
        return f"{self.failure.code}: {self.failure.message}"


def failure_from_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: float | None = None,
    key: str | None = None,
) -> Failure:
    """The failure that an HTTP response other than a success reports.

    `now` is seconds since the epoch; without it a `retry-after` that is a date is left out. Header
    names count in any case. The API `key`, quoted, is removed. Never raises, whatever is said.
    """
    said = Said.of(parsed(body), key)
    lower = {name.lower(): value for name, value in headers.items()}
    wait = retry_after_ms(lower, now)
    wait = said.wait_ms if wait is None else wait
    code = code_of(said, status, waits=wait is not None)
    named = lower.get("x-request-id") or lower.get("request-id") or said.request_id
    return Failure(
        code,
        sentence(code, said, f" (HTTP {status}{_wait_told(wait)})"),
        status,
        wait,
        _request_id(without(key, named)),
    )


def failure_from_error(error: object, key: str | None = None) -> Failure:
    """The failure that an error object inside a stream reports; never raises."""
    said = Said.of(error, key)
    code = code_of(said, said.status)
    wait, request_id = said.wait_ms, _request_id(said.request_id)
    return Failure(code, sentence(code, said), said.status, wait, request_id)


def _wait_told(wait_ms: int | None) -> str:
    return "" if wait_ms is None else f"; it asks to wait {wait_ms / 1000:g} s"


def _request_id(found: str) -> str | None:
    return plain(found)[:MESSAGE_LIMIT] or None


def retry_after_ms(headers: Mapping[str, str], now: float | None = None) -> int | None:
    """How long the server asks to wait, in milliseconds; a date in the past is 0.

    `headers` has lower-case names: `retry-after-ms`, else `retry-after` in seconds or as an HTTP
    date, which needs `now` in seconds since the epoch.
    """
    wait = _number(headers.get("retry-after-ms"))
    if wait is None:
        asked = headers.get("retry-after")
        seconds = _number(asked)
        if seconds is None and asked is not None and now is not None:
            seconds = _seconds_until(asked, now)
        wait = None if seconds is None else seconds * 1000
    return None if wait is None else max(0, math.ceil(wait))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if abs(number) < 1e12 else None


def _seconds_until(date: str, now: float) -> float | None:
    parsed = parsedate_tz(date)
    if parsed is None:
        return None
    try:
        return calendar.timegm(parsed[:9]) - (parsed[9] or 0) - now
    except (ValueError, OverflowError):
        return None
