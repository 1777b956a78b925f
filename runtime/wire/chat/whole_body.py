"""The payloads of an answer that came as no stream of events, though one was asked for.

Some servers and gateways send one JSON object, or one a line, under any content type. The answer
is paid for by then: it is read, or refused once, and not asked for again because of its form.
"""

from __future__ import annotations

from typing import Any

from refold.runtime.stream.error_body import plain
from refold.runtime.stream.failures import Failure, LlmFailure
from refold.runtime.wire.chat.event import parsed

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
EXCERPT = 200


def begins_as_body(start: bytes) -> bool | None:
    """Whether a response that begins like this is no stream of events; None: not known yet."""
    bare = start.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if not bare or (len(start) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(start)):
        return None
    return bare[:1] in (b"{", b"[", b"<")


def payloads(body: bytes) -> list[dict[str, Any]]:
    """The objects of a body: one, or one a line, or those of a list.

    Raises `LlmFailure`: STREAM_CLOSED for JSON that was cut, else MALFORMED_RESPONSE.
    """
    bare = body.removeprefix(_BYTE_ORDER_MARK).strip()
    found = _lines(bare) or _whole(bare)
    if found is None:
        if bare.startswith(b"<"):
            excerpt = plain(bare[:EXCERPT].decode(errors="replace"))
            raise LlmFailure(Failure("MALFORMED_RESPONSE", f"{_NO_ANSWER}: {excerpt}"))
        raise LlmFailure(Failure("STREAM_CLOSED", _CUT))
    return found


def _lines(bare: bytes) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] = []
    for line in bare.splitlines():
        try:
            value = parsed(line) if line.strip() else {}
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        found.append(value)
    return found


def _whole(bare: bytes) -> list[dict[str, Any]] | None:
    try:
        value = parsed(bare)
    except ValueError:
        return None
    found = value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, dict)]


_NO_ANSWER = "the provider sent a page and no answer; check the base URL"
_CUT = "the answer came as one body and was cut; nothing of it was acted on, so send it again"
