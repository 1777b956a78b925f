"""What a provider, or the way to it, did wrong."""

from __future__ import annotations

import calendar
import math
from collections.abc import Mapping
from email.utils import parsedate_tz
from enum import StrEnum
from typing import Self

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


class Code(StrEnum):
    """Why a request failed, or a turn ended in `error`: the values of `Failure.code` and of
    `EndReason.code`.

    Each member is its own name as text. `meaning` is a sentence, `again` whether refold sends the
    same request again by itself. A log from elsewhere may hold others.
    """

    meaning: str
    again: bool

    def __new__(cls, name: str, again: bool, meaning: str) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.again, member.meaning = name, again, meaning
        return member

    RATE_LIMIT = "RATE_LIMIT", True, "A limit on requests or tokens that passes by itself."
    OVERLOADED = "OVERLOADED", True, "The provider has too much to do."
    SERVER = "SERVER", True, "The provider failed, or gave up in the middle of its answer."
    TIMEOUT = "TIMEOUT", True, "Connecting, a silence or the whole answer took too long."
    TRANSPORT = "TRANSPORT", True, "There was no connection, or it was lost before an answer."
    STREAM_CLOSED = "STREAM_CLOSED", True, "The answer broke off before its end."
    EMPTY_RESPONSE = "EMPTY_RESPONSE", True, "The model said nothing; sent again once."
    MALFORMED_RESPONSE = "MALFORMED_RESPONSE", False, "An answer that nobody here can read."
    AUTH = "AUTH", False, "The key is wrong or may not do this."
    MISSING_CREDENTIAL = "MISSING_CREDENTIAL", False, "The variable of the key is not set."
    QUOTA = "QUOTA", False, "The account has no credit left."
    INVALID_REQUEST = "INVALID_REQUEST", False, "The provider refused the model or its settings."
    CONTEXT_WINDOW_EXCEEDED = (
        "CONTEXT_WINDOW_EXCEEDED",
        False,
        "The history is longer than the model can read: go on in a fork from an earlier end.",
    )
    CONTENT_FILTER = (
        "CONTENT_FILTER",
        False,
        "The provider withheld its answer or refused the text.",
    )
    NO_ADAPTER = "NO_ADAPTER", False, "Nothing here speaks to this provider."
    ABORTED = "ABORTED", False, "The answer was given up."
    INVARIANT = "INVARIANT", False, "What would have been sent was not what the log says."
    SESSION_FAILED = "SESSION_FAILED", False, "The session itself failed, as its message says."
    UNKNOWN = "UNKNOWN", False, "Code of the program failed: a seam, say; the program's log has it."


RETRYABLE: frozenset[str] = frozenset(code.value for code in Code if code.again)
"""The codes after which the same request may succeed when it is sent again."""

OF_TURNS: frozenset[str] = frozenset(("INVARIANT", "SESSION_FAILED", "UNKNOWN"))
"""The codes that a turn ends with and no request."""

LASTING: frozenset[str] = frozenset(Code) - RETRYABLE - OF_TURNS
"""The codes after which it will not."""


@attrs.frozen
class Failure:
    """A failed request as data; `retry_after_ms` is the server's wish.

    `code` is one of `Code` or, in a log from elsewhere, any text.
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
