"""Server-sent events out of bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Lines are cut before anything is decoded, so a character that two reads share stays whole. Lines end
with LF, CRLF or CR; comments, `id` and `retry` are left out.
"""

from __future__ import annotations

import attrs

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIELDS = (b"", b"data", b"event", b"id", b"retry")


@attrs.frozen
class SseEvent:
    """One event: its `data` lines joined with LF, and its name (empty when it has none)."""

    data: bytes
    name: str = ""


class SseSplitter:
    """Cuts a byte stream into events; how the bytes are split between calls makes no difference."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._after_cr = False
        self._at_start = True
        self._data: list[bytes] = []
        self._name = ""
        self.seen = False
        """Whether any line was one of a stream of events."""

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes, in their order."""
        first, *rest = self._unified(data).split(b"\n")
        self._line.append(first)
        events = []
        for following in rest:
            events += self._end_line()
            self._line = [following]
        return events

    def close(self) -> list[SseEvent]:
        """The bytes ended: the event that lacks only its blank line, if there is one.

        The standard drops it; servers that end without that blank line are common.
        """
        return self._end_line() + self._dispatch()

    def _unified(self, data: bytes) -> bytes:
        """`data` with LF as the only line end."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" not in data:
            return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _end_line(self) -> list[SseEvent]:
        line = b"".join(self._line)
        self._line = []
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        self.seen = self.seen or field in _FIELDS
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode(errors="replace")
        return []

    def _dispatch(self) -> list[SseEvent]:
        events = [SseEvent(b"\n".join(self._data), self._name)] if self._data else []
        self._data = []
        self._name = ""
        return events
