"""What the body of a failed request says, in words that may be shown.

It is a stranger's text: it is cut, made printable and rid of the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs
import orjson

MESSAGE_LIMIT = 500
"""The longest message of a failure, in characters."""

# As much of a text is searched for keys: searching is not linear, and the text is a stranger's.
_READ = 4 * MESSAGE_LIMIT


@attrs.frozen
class Said:
    """The parts of an error body that tell anything; a part that it lacks is empty.

    `text` is as the provider wrote it, not yet fit to be shown; `names` are in lower case.
    """

    text: str = ""
    names: frozenset[str] = frozenset()
    status: int | None = None
    request_id: str = ""

    @classmethod
    def of(cls, body: object, key: str | None = None) -> Said:
        """Read `{"error": ...}` around an object or text, a bare object, a list of one, or text.

        Some providers quote a `key` that they refuse: it is taken out before anything is cut.
        """
        said = cls._read(body)
        return attrs.evolve(
            said, text=without(key, said.text), request_id=without(key, said.request_id)
        )

    @classmethod
    def _read(cls, body: object) -> Said:
        if isinstance(body, list) and body:
            body = body[0]
        if not isinstance(body, dict):
            return cls(body if isinstance(body, str) else "")
        error = body.get("error") or body
        fields = error if isinstance(error, dict) else {**body, "message": error}
        named = (fields.get(key) for key in ("code", "type", "status"))
        request_id = body.get("request_id")
        return cls(
            _told(fields),
            frozenset(name.lower() for name in named if isinstance(name, str)),
            _status(fields.get("code")),
            request_id if isinstance(request_id, str) else "",
        )


def without(key: str | None, text: str) -> str:
    """`text` with the key taken out of it."""
    return text.replace(key, "[removed]") if key else text


def _told(fields: Mapping[str, Any]) -> str:
    """The error in words, with those of the provider behind a router."""
    main = next((fields[key] for key in ("message", "detail", "msg") if fields.get(key)), "")
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    words = main if isinstance(main, str) else orjson.dumps(main).decode()
    return f"{words} {raw}" if isinstance(raw, str) else words


def _status(code: object) -> int | None:
    """The HTTP status that some servers put into an error's code, as a number or as digits."""
    number = int(code) if isinstance(code, str) and re.fullmatch(r"\d{3}", code) else code
    return number if isinstance(number, int) and 400 <= number < 600 else None


def parsed(body: bytes) -> object:
    """An error body as JSON, else as text without HTML tags; never raises."""
    try:
        return orjson.loads(body)
    except ValueError:
        text = body.decode(errors="replace")
        return re.sub(r"<[^<>]*>", " ", text) if text.lstrip().startswith("<") else text


_LEADS = {
    "AUTH": "the provider refused the credential; check the API key and what it may use",
    "QUOTA": "the account has no quota or credit left; top it up or use another provider",
    "RATE_LIMIT": "the provider's rate limit is reached; send fewer requests",
    "OVERLOADED": "the provider is overloaded; try again later",
    "SERVER": "the provider failed; try again",
    "TIMEOUT": "the provider ran out of time; try again",
    "INVALID_REQUEST": "the provider refused the request; check the model and its settings",
    "CONTEXT_WINDOW_EXCEEDED": "the request is larger than the model's context window; shorten it",
    "CONTENT_FILTER": "the provider's content filter refused the request; change its text",
}

# A name that says more than the status it comes with.
_DECISIVE = {
    "context_length_exceeded": "CONTEXT_WINDOW_EXCEEDED",
    "exceed_context_size_error": "CONTEXT_WINDOW_EXCEEDED",
    "content_filter": "CONTENT_FILTER",
    "content_policy_violation": "CONTENT_FILTER",
    "insufficient_quota": "QUOTA",
    "billing_error": "QUOTA",
    "billing_hard_limit_reached": "QUOTA",
    "overloaded_error": "OVERLOADED",
    "engine_overloaded_error": "OVERLOADED",
}

# Words that say more than the status; each with the statuses that it is looked for under.
_TELLING = (
    (
        "CONTEXT_WINDOW_EXCEEDED",
        (400, 413, 422, 500, None),
        (
            r"context (length|window|size)|maximum context|(prompt|input) is too long"
            r"|too many (input |prompt )?tokens|reduce the length"
        ),
    ),
    (
        "CONTENT_FILTER",
        (400, 403, None),
        r"content (filter|policy|management policy)|moderation|content exists risk",
    ),
    (
        "QUOTA",
        (400, 403, 429, None),
        (
            r"insufficient (balance|credit|fund|quota)|credit balance|current quota|billing"
            r"|(spend|spending|usage|monthly) limit"
        ),
    ),
)

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

# What a name means when there is no status.
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


def code_of(said: Said, status: int | None) -> str:
    """The failure's code for what was said with `status`, None when no status is known."""
    named = [_DECISIVE[name] for name in sorted(said.names) if name in _DECISIVE]
    text = said.text.lower()
    telling = [
        code
        for code, statuses, pattern in _TELLING
        if status in statuses and re.search(pattern, text)
    ]
    decided = [*named, *telling]
    if decided:
        return decided[0]
    if status is not None:
        return _STATUSES.get(status, "SERVER" if status >= 500 else "INVALID_REQUEST")
    return next((_NAMES[name] for name in sorted(said.names) if name in _NAMES), "SERVER")


# Providers echo the key that they refuse, whole or with stars. A key has one of these shapes: a
# known prefix, a place after a word that announces it, or a long run of letters and digits.
_SECRET = re.compile(
    r"""
    \b(?:sk|pk|rk|ak|gsk|xai|hf|nvapi|pplx|csk|fw|r8|tok|key)[-_][\w*.~+/-]{6,}
    | \bAIza[\w*-]{8,}
    | (?<=bearer\ ) \S+
    | (?<=basic\ ) \S+
    | (?<=key) ["'`]? (?:\ provided|\ is)? \s* [:=]? \s* ["'`(]* (?=[\w.~+/-]*[\d*]) [\w*.~+/=-]{8,}
    | (?<=token) ["'`]? \s* [:=]? \s* ["'`(]* (?=[\w.~+/-]*[\d*]) [\w*.~+/=-]{8,}
    | \b(?=\w*\d)(?=\w*[a-z])\w{24,}
    """,
    re.IGNORECASE | re.VERBOSE,
)


def sentence(code: str, said: Said, aside: str = "") -> str:
    """What went wrong and what to do, then the provider's words: one line, safe to show and log.

    Control characters and whatever looks like a key are taken out; at most `MESSAGE_LIMIT`
    characters are left.
    """
    # Cut only after keys are taken out: half a key is a secret that no shape gives away.
    told = plain(_SECRET.sub(" [removed] ", plain(said.text)[:_READ]))
    message = f"{_LEADS[code]}{aside}" + (f": {told}" if told else "")
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"


def plain(text: str) -> str:
    """`text` on one line without what a terminal would obey or JSON cannot carry."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
