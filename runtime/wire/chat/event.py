"""Reading one event of a stream of chat completions, whatever server wrote it."""

from __future__ import annotations

import json
from typing import Any

import attrs
import orjson

from refold.runtime.json import clean_text
from refold.runtime.stream.chunks import Usage


def parsed(data: bytes) -> Any:
    """The JSON of one event; raises `ValueError`.

    What orjson refuses but servers send is repaired: lone surrogates in escapes and bytes that are
    not UTF-8 become U+FFFD, NaN and the infinities null.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        text = data.decode(errors="replace")
        return _cleaned(json.loads(text, parse_constant=lambda _name: None))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return value


def is_json(data: bytes) -> bool:
    try:
        parsed(data)
    except ValueError:
        return False
    return True


def readable(data: bytes) -> Any:
    """The JSON of one event, or its text when it is none."""
    try:
        return parsed(data)
    except ValueError:
        return data.decode(errors="replace")


def as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_string(value: object) -> str:
    return value if isinstance(value, str) else ""


def content(found: object) -> str:
    """Text as one string, or as a list of parts of which only those with text count."""
    parts = "".join(as_string(as_object(part).get("text")) for part in as_list(found))
    return as_string(found) or parts


def reasoning(delta: dict[str, Any]) -> str:
    """Reasoning under the first of its names that holds any: some servers send it under two."""
    details = map(as_object, as_list(delta.get("reasoning_details")))
    detailed = (as_string(part.get("text")) or as_string(part.get("summary")) for part in details)
    return (
        as_string(delta.get("reasoning_content"))
        or as_string(delta.get("reasoning"))
        or "".join(detailed)
    )


def is_error(payload: dict[str, Any]) -> bool:
    """Whether a payload tells of an error, in the words of some server, and is no answer."""
    if payload.get("error") or payload.get("object") == "error":
        return True
    if "choices" in payload or "usage" in payload:
        return False
    told = [payload.get(key) for key in ("detail", "errors", "error_msg")]
    return any(told) or bool(as_string(payload.get("message")))


def counted(found: dict[str, Any], before: Usage | None) -> Usage | None:
    """The usage that a payload or a choice reports, put over what was reported before.

    A later count stands, but a zero for a count that is known: some servers end with empty ones.
    """
    told = usage(found.get("usage")) or usage(as_object(found.get("x_groq")).get("usage"))
    if told is None or before is None:
        return told or before
    pairs = zip(attrs.astuple(told), attrs.astuple(before), strict=True)
    return Usage(*(new if new or old is None else old for new, old in pairs))


def usage(found: object) -> Usage | None:
    """Token counts that do not overlap, or None when `found` counts nothing."""
    counts = as_object(found)
    prompt = as_object(counts.get("prompt_tokens_details"))
    read = _count(prompt.get("cached_tokens"))
    if read is None:
        read = _count(counts.get("prompt_cache_hit_tokens"))
    written = _count(prompt.get("cache_write_tokens"))
    total = _count(counts.get("prompt_tokens"))
    counted = Usage(
        # The prompt's count holds what was read from the cache and what was written to it.
        input_tokens=None if total is None else max(0, total - (read or 0) - (written or 0)),
        output_tokens=_count(counts.get("completion_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=_count(
            as_object(counts.get("completion_tokens_details")).get("reasoning_tokens")
        ),
    )
    return None if counted == Usage() else counted


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
