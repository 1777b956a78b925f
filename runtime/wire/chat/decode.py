"""Decoding a stream of chat completions: bytes in, chunks out, no I/O.

Servers that speak this wire differ in a hundred small ways; each that is known has a test of its
own. Four rules keep them apart from faults: what is missing is unknown, never zero; a stream that
does not say that it is over was cut; what is told again is not told twice; and an answer in an
unexpected form is read, or refused once, since it is paid for either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import attrs

from refold.runtime.errors import NotLosslessJson
from refold.runtime.json import Json
from refold.runtime.messages import Block, ReasoningBlock, TextBlock
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Usage,
    UsageChunk,
)
from refold.runtime.stream.failures import Failure, LlmFailure, failure_from_error
from refold.runtime.wire.chat.calls import Call, CallPiece, Calls
from refold.runtime.wire.chat.event import (
    as_list,
    as_object,
    as_string,
    content,
    counted,
    is_error,
    is_json,
    parsed,
    readable,
    reasoning,
)
from refold.runtime.wire.chat.finish_reasons import PLAIN, kind_of
from refold.runtime.wire.chat.whole_body import begins_as_body, payloads
from refold.runtime.wire.sse import SseEvent, SseSplitter

ANSWER_BYTES = 128 * 2**20
"""The longest answer that is read, in bytes of its stream."""


@attrs.define(eq=False)
class _Prose:
    """The text or the reasoning of the answer: this wire has one of each."""

    index: int
    kind: Literal["text", "reasoning"]
    pieces: list[str] = attrs.Factory(list)

    def block(self) -> Block:
        text = "".join(self.pieces)
        return TextBlock(text) if self.kind == "text" else ReasoningBlock(text)


class ChatDecoder:
    """Turns the body of a streamed answer into chunks; one decoder for one answer.

    Ends of blocks, usage and finish are held back until the terminal event, so that a stream that
    was cut never looks complete. How the bytes are split between calls changes nothing: a failure
    behind chunks that came with it is raised by the next call. The API `key` is taken out of what
    the provider reports.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key = key
        self._events = SseSplitter()
        self._prose: dict[str, _Prose] = {}
        self._calls = Calls()
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._done = False
        self._failure: Failure | None = None
        self._read = 0
        self._start: bytes | None = b""  # of a response of which the form is not known yet
        self._body: list[bytes] | None = None  # of one that is no stream

    @property
    def done(self) -> bool:
        """The answer is complete: nothing more is read from the stream."""
        return self._done

    @property
    def failure(self) -> Failure | None:
        """What the next call raises, once there is nothing more to read."""
        return self._failure

    def feed(self, data: bytes) -> list[Chunk]:
        """The chunks that `data` completes.

        Raises `LlmFailure`: what the provider reports, or MALFORMED_RESPONSE for what nobody can
        read.
        """
        chunks = self._guarded(self._fed(data))
        if self._failure is not None and not chunks:
            raise LlmFailure(self._failure)
        return chunks

    def close(self) -> list[Chunk]:
        """The bytes ended: what was held back. Raises `LlmFailure`, STREAM_CLOSED for a cut stream.

        Without [DONE] a stream is whole when it gave both a finish reason and usage. Of a stream
        that is not, an event without its blank line is lost.
        """
        chunks = self._guarded(self._closed())
        if self._failure is not None:
            raise LlmFailure(self._failure)
        return chunks

    def _guarded(self, chunks: Iterator[Chunk]) -> list[Chunk]:
        made: list[Chunk] = []
        if self._failure is None:
            try:
                for chunk in chunks:
                    made.append(chunk)  # noqa: PERF402 - what came before a failure is kept
            except LlmFailure as error:
                self._failure = error.failure
        return made

    def _fed(self, data: bytes) -> Iterator[Chunk]:
        self._read += len(data)
        if self._read > ANSWER_BYTES:
            raise _malformed(f"more than {ANSWER_BYTES} bytes")
        if self._start is not None:
            data = self._start + data
            is_body = begins_as_body(data)
            self._start = data if is_body is None else None
            self._body = [] if is_body else None
        if self._start is not None:
            return
        if self._body is not None:
            self._body.append(data)
        else:
            yield from self._decoded(self._events.feed(data))

    def _decoded(self, events: list[SseEvent]) -> Iterator[Chunk]:
        for event in events:
            if self._done:
                return
            if not event.data.strip():
                continue  # a heartbeat
            if _is_done(event):
                yield from self._finish()
            else:
                yield from self._event(event)

    def _closed(self) -> Iterator[Chunk]:
        if self._body is not None:
            yield from self._whole(payloads(b"".join(self._body)))
            return
        # An event that the end of the stream cut in two is no fault of its own.
        whole = [event for event in self._events.close() if _is_done(event) or is_json(event.data)]
        yield from self._decoded(whole)
        if self._done:
            return
        if self._read and not self._events.seen:
            raise _malformed("no event; check the base URL")
        if self._reason is None or self._usage is None:
            raise LlmFailure(Failure("STREAM_CLOSED", _CLOSED))
        yield from self._finish()

    def _whole(self, found: list[dict[str, Any]]) -> Iterator[Chunk]:
        """What came as a body and no stream: one whole answer, or its pieces, one a line."""
        for payload in found:
            yield from self._payload(payload)
        if self._reason is None and not self._says_messages(found):
            raise _malformed("JSON and no answer; check the base URL")
        yield from self._finish()

    @staticmethod
    def _says_messages(found: list[dict[str, Any]]) -> bool:
        choices = [as_object(choice) for one in found for choice in as_list(one.get("choices"))]
        return any(isinstance(choice.get("message"), dict) for choice in choices)

    def _event(self, event: SseEvent) -> Iterator[Chunk]:
        if event.name == "error":
            raise LlmFailure(failure_from_error(readable(event.data), self._key))
        try:
            payload = parsed(event.data)
        except ValueError:
            if event.name not in ("", "message"):
                return
            raise _malformed("an event that is not JSON") from None
        if not isinstance(payload, dict):
            raise _malformed("an event that is not an object")
        yield from self._payload(payload)

    def _payload(self, payload: dict[str, Any]) -> Iterator[Chunk]:
        if is_error(payload):
            raise LlmFailure(failure_from_error(payload, self._key))
        self._usage = counted(payload, self._usage)
        for choice in map(as_object, as_list(payload.get("choices"))):
            # Only the first answer is wanted, should `n` have asked for more.
            if choice.get("index") in (None, 0):
                self._usage = counted(choice, self._usage)
                yield from self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> Iterator[Chunk]:
        whole = as_object(choice.get("message"))
        delta = as_object(choice.get("delta")) or whole
        again = delta is whole
        yield from self._said("reasoning", reasoning(delta), again=again)
        text = content(delta.get("content")) + as_string(delta.get("refusal"))
        yield from self._said("text", text or as_string(choice.get("text")), again=again)
        for piece in _call_pieces(delta):
            yield from self._call(piece)
        reason = as_string(choice.get("finish_reason"))
        if reason:
            kind_of(reason)  # a server that gave up has nothing more to say
            self._reason = reason

    def _said(
        self, kind: Literal["text", "reasoning"], text: str, *, again: bool
    ) -> Iterator[Chunk]:
        """Tell a piece; `again` it is all of it, with what was told before."""
        prose = self._prose.get(kind)
        if again and prose is not None:
            so_far = "".join(prose.pieces)
            text = text.removeprefix(so_far) if text.startswith(so_far) else ""
        if not text:
            return
        if prose is None:
            prose = self._prose[kind] = _Prose(self._free_index(), kind)
            yield BlockStart(prose.index, kind)
        prose.pieces.append(text)
        delta = TextDelta if kind == "text" else ReasoningDelta
        yield delta(prose.index, text)

    def _call(self, piece: CallPiece) -> Iterator[Chunk]:
        if piece.is_empty():
            return
        free = self._free_index()
        call = self._calls.take(piece, free)
        if call is None:
            return
        if call.index == free:
            yield BlockStart(free, "tool-call")
        if call.id and call.name:
            yield from call.untold()

    def _free_index(self) -> int:
        return len(self._prose) + len(self._calls.all)

    def _finish(self) -> Iterator[Chunk]:
        reason = self._reason or ""
        kind = kind_of(reason)
        for call in self._calls.settle(self._free_index()):
            yield BlockStart(call.index, "tool-call")
        if kind == "stop" and self._calls.all:
            kind = "tool-calls"
        if kind == "tool-calls" and not all(call.name for call in self._calls.all):
            raise _malformed("a tool call without a name")
        replay_state = self._replay_state()
        for call in self._calls.all:
            yield from call.untold(over=True)
        blocks: list[_Prose | Call] = [*self._prose.values(), *self._calls.all]
        for block in sorted(blocks, key=lambda block: block.index):
            yield BlockEnd(block.index, block.block())
        if self._usage is not None:
            yield UsageChunk(self._usage)
        self._done = True
        yield Finish(FinishReason(kind, None if reason in PLAIN else reason[:80]), replay_state)

    def _replay_state(self) -> Json | None:
        state: dict[str, Any] = {}
        if "reasoning" in self._prose:
            state["reasoning_content"] = "".join(self._prose["reasoning"].pieces)
        extra = {call.id: call.extra for call in self._calls.all if call.extra}
        if extra:
            state["tool_calls"] = extra
        try:
            return Json.of(state) if state else None
        except NotLosslessJson:
            raise _malformed("a tool call with fields that cannot be kept") from None


_CLOSED = "the stream ended before the answer did; nothing of it was acted on, so send it again"


def _call_pieces(delta: dict[str, Any]) -> list[CallPiece]:
    """What a delta says about calls, also in the wire's old form, of one function."""
    found = delta.get("tool_calls")
    entries = [found] if isinstance(found, dict) else as_list(found)
    old = delta.get("function_call")
    if isinstance(old, dict) and not entries:
        entries = [{"index": 0, "function": old}]
    return [CallPiece.of(as_object(entry)) for entry in entries]


def _is_done(event: SseEvent) -> bool:
    return event.data.strip() in (b"[DONE]", b'"[DONE]"')


def _malformed(found: str) -> LlmFailure:
    return LlmFailure(Failure("MALFORMED_RESPONSE", f"the provider's stream holds {found}"))
