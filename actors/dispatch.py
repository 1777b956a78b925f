"""Dispatch: the one way in which a conversation request leaves (design 3.3).

Build the request from the log, seal it, flush, have it cleared, send exactly those bytes, write
down what comes back. It runs in the task of the step that asked; a loop gets the finished message
and can write neither the seal nor the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import attrs
import trio

from actors.invariants import Clear
from actors.kernel import Ref
from actors.session_log import SessionLog, StepBoundary
from actors.wire import Model, Stream
from runtime.envelope import Draft, draft
from runtime.errors import NoRequestHeader
from runtime.events import AssistantChunk, AssistantMessage, RequestSealed
from runtime.header import EpochHeader
from runtime.llm.assembler import Assembler
from runtime.llm.body import Encoded, RequestEncoder
from runtime.llm.chunks import Chunk, FinishKind
from runtime.llm.grammar import Grammar
from runtime.llm.trace import Setting, Trace
from runtime.llm.wires import Wire
from runtime.messages import Provenance
from runtime.request import Request, build_request

Invariants: TypeAlias = Literal["full", "enforce", "off"]

TRACE_SECONDS = 1.0
"""How long logged chunks may wait for company before they are appended."""

KEEP_SECONDS = 5.0
"""How long a cancelled step may take to write down what was streamed."""


@attrs.frozen
class Answer:
    """A model's finished answer: the logged message, and how the stream finished."""

    message: AssistantMessage
    finish: FinishKind


class Dispatch:
    """One session's dispatch; one request is in flight at a time."""

    def __init__(
        self,
        log: SessionLog,
        clearance: Ref[Any] | None,
        mode: Invariants,
        find_model: Callable[[str], Model],
        wire: Wire,
        chunks: Setting,
        last_request: Callable[[], tuple[Request, int] | None],
    ) -> None:
        self._log, self._clearance = log, clearance
        self._find_model, self._wire = find_model, wire
        self._mode: Invariants = mode
        self._chunks: Setting = chunks
        self._encoder = RequestEncoder(wire)
        self._last_request: Callable[[], tuple[Request, int] | None] | None = last_request

    async def dispatch(self, boundary: StepBoundary) -> Answer:
        """Send the request of the open step and return its answer, logged.

        Raises `LlmFailure` (what was visible is kept as an interrupted message),
        `InvariantViolation` (nothing was sent), and what an append raises. Cancelled while the
        answer streams, it keeps the visible text as an interrupted message first.
        """
        header = self._log.live.session.header
        if header is None:
            raise NoRequestHeader(boundary.seq)
        model = self._find_model(header.config.provider)
        encoded = self._encode(header)
        await self._seal(boundary, header, encoded)
        answer = _Writing(self._log, boundary, header, self._chunks)
        try:
            async with model.open(encoded.body) as stream:
                await answer.follow(stream)
            return await answer.finish()
        except BaseException:
            with trio.move_on_after(KEEP_SECONDS, shield=True):
                await answer.keep_interrupted()
            raise

    def _encode(self, header: EpochHeader) -> Encoded:
        self._continue_last_request()
        session = self._log.live.session
        generation = session.surface.replace_generation
        return self._encoder.encode(header, session.derive_messages(), generation)

    def _continue_last_request(self) -> None:
        """After a resume or in a fork: go on from the bytes of the log's last sealed request."""
        find, self._last_request = self._last_request, None
        found = None if find is None else find()
        if found is not None:
            request, generation = found
            derived = request.messages[len(request.header.message_prefix) :]
            self._encoder.encode(request.header, derived, generation)

    async def _seal(self, boundary: StepBoundary, header: EpochHeader, encoded: Encoded) -> None:
        seal = RequestSealed(
            boundary.turn,
            boundary.step,
            self._wire.name,
            encoded.request_digest,
            encoded.wire_digest,
            len(encoded.body),
            encoded.shared_prefix_bytes,
            self._mode,
        )
        (event,) = await self._log.append(draft(seal), flush=True)
        if self._clearance is not None:
            request = build_request(header, self._log.live.session.derive_messages())
            durable = self._log.live.durable_seq
            offer = Clear(boundary, request, encoded, event.seq, durable)
            await self._clearance.ask(offer)


class _Writing:
    """Writes one answer into the log while it streams."""

    def __init__(
        self, log: SessionLog, boundary: StepBoundary, header: EpochHeader, chunks: Setting
    ) -> None:
        self._log, self._boundary = log, boundary
        self._provenance = Provenance(header.config.provider, header.config.model)
        self._assembler, self._grammar = Assembler(), Grammar()
        self._trace = Trace(chunks)
        self._held: list[Chunk] = []
        self._logged: list[int] = []
        self._appended_at = trio.current_time()

    async def follow(self, stream: Stream) -> None:
        """Take the stream to its end; what is traced goes to the log about once a second."""
        while chunks := await stream.receive():
            now = trio.current_time()
            for chunk in chunks:
                self._grammar.check(chunk)
                self._assembler.feed(chunk)
                self._held += self._trace.feed(chunk, now)
            if self._held and now - self._appended_at >= TRACE_SECONDS:
                await self._append_held()

    async def _append_held(self) -> None:
        events = await self._log.append(*self._held_drafts())
        self._held = []
        self._logged += [event.seq for event in events]
        self._appended_at = trio.current_time()

    def _held_drafts(self) -> Sequence[Draft]:
        turn, step = self._boundary.turn, self._boundary.step
        return [draft(AssistantChunk(turn, step, chunk)) for chunk in self._held]

    async def finish(self) -> Answer:
        """Append the finished message, citing its chunks."""
        whole = self._assembler.finished()
        provenance = attrs.evolve(self._provenance, replay_state=whole.replay_state)
        message = AssistantMessage(
            self._boundary.turn, self._boundary.step, whole.content, provenance, whole.usage
        )
        await self._append_message(message)
        return Answer(message, whole.finish)

    async def keep_interrupted(self) -> None:
        """Append the visible text of a stream that broke off, or only its chunks."""
        content = self._assembler.interrupted()
        self._held += self._trace.flush()
        if content:
            await self._append_message(
                AssistantMessage(
                    self._boundary.turn,
                    self._boundary.step,
                    content,
                    self._provenance,
                    self._assembler.usage,
                    interrupted=True,
                )
            )
        elif self._held:
            await self._append_held()

    async def _append_message(self, message: AssistantMessage) -> None:
        self._held += self._trace.flush()
        chunks = tuple(self._held_drafts())

        def drafts(first: int) -> tuple[Draft, ...]:
            cited = (*self._logged, *range(first, first + len(chunks)))
            return (*chunks, draft(message, cites=cited or None))

        await self._log.append_from(drafts)
