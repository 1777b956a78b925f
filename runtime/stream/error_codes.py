"""Which code a refused request has: what a body says of itself before words, words before status.

Every server words its errors in its own way, and a free text quotes strangers: a rate limit's may
name the page where more can be bought, and a refused prompt may talk of money. So the error's own
code decides first. A wait that is asked for says that a limit passes. Text counts only where
nothing else speaks, and only under statuses that it goes with.
"""

from __future__ import annotations

import re

from refold.runtime.stream.error_body import Said

_DECISIVE = {
    "context_length_exceeded": "CONTEXT_WINDOW_EXCEEDED",
    "exceed_context_size_error": "CONTEXT_WINDOW_EXCEEDED",
    "context_window_exceeded": "CONTEXT_WINDOW_EXCEEDED",
    "model_context_window_exceeded": "CONTEXT_WINDOW_EXCEEDED",
    "content_filter": "CONTENT_FILTER",
    "content_policy_violation": "CONTENT_FILTER",
    "data_inspection_failed": "CONTENT_FILTER",
    "insufficient_quota": "QUOTA",
    "insufficient_user_quota": "QUOTA",
    "insufficient_balance": "QUOTA",
    "insufficient_credits": "QUOTA",
    "billing_error": "QUOTA",
    "billing_hard_limit_reached": "QUOTA",
    "billing_not_active": "QUOTA",
    "payment_required": "QUOTA",
    "arrearage": "QUOTA",
    "overloaded_error": "OVERLOADED",
    "engine_overloaded_error": "OVERLOADED",
}
"""A name that says more than the status it comes with."""

_PASSES = frozenset(
    (
        *("rate_limit_exceeded", "rate_limit_error", "rate_limit", "rate_limited", "tokens"),
        *("requests", "too_many_requests", "throttling", "throttlingexception"),
        *("throttling.ratequota", "limit_requests", "limit_burst_rate", "engine_overloaded"),
    )
)
"""Names of limits that pass by themselves; they count under 429 and where there is no status."""

_OVERFLOW = re.compile(
    r"context[ _]?(length|window|size|limit)|maximum (context|prompt|input|sequence|model) length"
    r"|(prompt|input|inputs|messages?|conversation|text)( is| are)? too (long|large)"
    r"|too many (input |prompt )?tokens|reduce the length|input length should"
    r"|tokens? counts?\b.{0,60}\bexceed"
    r"|\b(prompt|input|inputs|messages?|request)\b.{0,60}\bexceed.{0,40}(length|limit|token|context)"
    r"|exceed.{0,40}\btoken limit"
    r"|\binputs?`? (tokens|length) \+"
    r"|\b\d[\d,_.]{3,}\b.{0,40}\btokens?\b.{0,60}(exceed|greater|larger|more than|limit|maximum|>)"
    r"|(exceed|limit of|maximum of|at most|max(imum)? is).{0,60}\b\d[\d,_.]{3,}\b.{0,20}\btokens?"
    r"|超长|过长|超出.{0,12}(长度|限制|上限)|超过.{0,12}(长度|限制|上限)"
)
_NO_OVERFLOW = re.compile(
    r"too many (tokens|requests), please|throttl|tokens per (minute|second|hour|day)|per[- ]minute"
    r"|(?<!\+ )(?<!\+ .)max_?(completion_|output_|new_)?_?tokens\W.{0,60}"
    r"(too (large|high|big)|must be|at most|less than|supports|invalid|exceeds? the)"
)
"""What sounds alike: a limit on how fast, or on how much may be answered."""

_THROTTLED = re.compile(r"too many (tokens|requests), please|throttl")

_FILTERED = re.compile(
    r"content (filter|policy|management policy)|moderation|content exists risk"
    r"|inappropriate content"
)
_SPENT = re.compile(r"insufficient (balance|credit|fund|quota)|credit balance|out of credits")
_MAY_BE_SPENT = re.compile(
    _SPENT.pattern + r"|current quota|billing|(spend|spending|usage|monthly) limit"
)

_TELLING = (
    ("RATE_LIMIT", (400, 403, 429, None), _THROTTLED, None),
    ("CONTEXT_WINDOW_EXCEEDED", (400, 413, 422, 500, None), _OVERFLOW, _NO_OVERFLOW),
    ("CONTENT_FILTER", (400, 403, None), _FILTERED, None),
    ("QUOTA", (400,), _SPENT, None),  # whose text may quote what was said to the model
    ("QUOTA", (403, 429, None), _MAY_BE_SPENT, None),
)
"""Words that say more than the status: the statuses they go with, and what they must not be."""

_STATUSES = {
    401: "AUTH",
    402: "QUOTA",
    403: "AUTH",
    408: "TIMEOUT",
    409: "SERVER",
    429: "RATE_LIMIT",
    503: "OVERLOADED",
    504: "TIMEOUT",
    529: "OVERLOADED",
}

_NAMES = {
    "authentication_error": "AUTH",
    "invalid_api_key": "AUTH",
    "permission_error": "AUTH",
    "permission_denied": "AUTH",
    "unauthenticated": "AUTH",
    "rate_limit_error": "RATE_LIMIT",
    "rate_limit_exceeded": "RATE_LIMIT",
    "resource_exhausted": "RATE_LIMIT",
    "service_unavailable": "OVERLOADED",
    "unavailable_error": "OVERLOADED",
    "unavailable": "OVERLOADED",
    "timeout_error": "TIMEOUT",
    "deadline_exceeded": "TIMEOUT",
    "invalid_request_error": "INVALID_REQUEST",
    "invalid_argument": "INVALID_REQUEST",
    "badrequesterror": "INVALID_REQUEST",
    "not_found_error": "INVALID_REQUEST",
    "request_too_large": "INVALID_REQUEST",
}
"""What a name means when there is no status."""


def code_of(said: Said, status: int | None, *, waits: bool = False) -> str:
    """The failure's code for what was said with `status`, None when no status is known.

    `waits` says that the server asks to wait, which nobody asks of who has nothing left.
    """
    named = [_DECISIVE[name] for name in sorted(said.names) if name in _DECISIVE]
    if named:
        return named[0]
    if status in (429, None) and (said.names & _PASSES or waits or said.wait_ms is not None):
        return "RATE_LIMIT"
    text = said.text.lower()
    for code, statuses, pattern, unless in _TELLING:
        if status in statuses and pattern.search(text) and not (unless and unless.search(text)):
            return code
    if status is not None:
        return _STATUSES.get(status, "SERVER" if status >= 500 else "INVALID_REQUEST")
    return next((_NAMES[name] for name in sorted(said.names) if name in _NAMES), "SERVER")
