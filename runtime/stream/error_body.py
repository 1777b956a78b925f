"""What the body of a failed request says, in words that may be shown.

It is a stranger's text: it is cut, made printable and rid of the key.
"""

from __future__ import annotations

import math
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

    `text` is as the provider wrote it, not yet fit to be shown; `names` are in lower case;
    `wait_ms` is how long it asks to wait before the request is sent again, in milliseconds.
    """

    text: str = ""
    names: frozenset[str] = frozenset()
    status: int | None = None
    request_id: str = ""
    wait_ms: int | None = None

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
            text = body if isinstance(body, str) else ""
            return cls(text, wait_ms=_wait_in_words(text))
        error = body.get("error")
        fields = error if isinstance(error, dict) else body
        if isinstance(error, str):
            fields = {**body, "message": error}
        named = (fields.get(key) for key in ("code", "type", "status"))
        request_id = body.get("request_id")
        text = _told(fields) or _told(body)
        wait = _wait_in_details(fields.get("details"))
        return cls(
            text,
            frozenset(name.lower() for name in named if isinstance(name, str)),
            _status(fields.get("code")),
            request_id if isinstance(request_id, str) else "",
            _wait_in_words(text) if wait is None else wait,
        )


def without(key: str | None, text: str) -> str:
    """`text` with the key taken out of it."""
    return text.replace(key, "[removed]") if key else text


_TOLD_UNDER = ("message", "detail", "msg", "error_msg", "error_message", "errors", "description")


def _told(fields: Mapping[str, Any]) -> str:
    """The error in words, with those of the provider behind a router."""
    main = next((fields[key] for key in _TOLD_UNDER if fields.get(key)), "")
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(main, list) and len(main) == 1:
        main = main[0]
    words = main if isinstance(main, str) else orjson.dumps(main).decode()
    return f"{words} {raw}" if isinstance(raw, str) else words


_UNITS = {"milli": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_TIME = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s{0,2}"
    r"(?:(milli|ms|s|m|h|d)(?:seconds?|econds?|ecs?|inutes?|ins?|ours?|rs?|ays?)?)(?![a-z])"
)
_WAIT = re.compile(
    rf"\b(?:retry|again|wait|available|resets?)\b[^.\d]{{0,20}}((?:{_TIME}\s{{0,2}})+)",
    re.IGNORECASE,
)


def _wait_in_words(text: str) -> int | None:
    """The wait that a sentence asks for: "try again in 1m30.5s", "retry after 20 seconds"."""
    found = _WAIT.search(text[:_READ])
    return None if found is None else milliseconds(found[1])


def _wait_in_details(details: object) -> int | None:
    """The wait of a `RetryInfo`, as Google's servers send it."""
    for detail in details if isinstance(details, list) else []:
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (wait := milliseconds(delay)) is not None:
            return wait
    return None


def milliseconds(text: str) -> int | None:
    """A length of time in words, such as `1m30.5s` or `20 seconds`; None for what is none."""
    parts = re.findall(_TIME, text, re.IGNORECASE)
    if not parts:
        return None
    return math.ceil(sum(float(number) * _UNITS[unit.lower()] for number, unit in parts))


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
