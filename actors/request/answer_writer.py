"""Writing one answer into the log while it streams.

Displays are told each chunk at once; the log gets them joined. The message cites the chunks of the
attempt that succeeded; what a failed one had said is void by a logged `llm/retry`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from refold.actors.bodies import call_plainly
from refold.actors.log.session_log import SessionLog, StepBoundary
from refold.actors.request.model import Stream
from refold.runtime.envelope import Draft, InBatch, draft
from refold.runtime.events import AssistantChunk, AssistantMessage, LlmRetry
from refold.runtime.messages import Block, Provenance, ReasoningBlock, TextBlock
from refold.runtime.request_header import EpochHeader
from refold.runtime.stream.assembler import Assembler
from refold.runtime.stream.chunk_logging import ChunkLogging, Trace
from refold.runtime.stream.chunk_order import ChunkOrder
from refold.runtime.stream.chunks import Chunk, FinishKind
from refold.runtime.stream.failures import Failure, LlmFailure

_log = logging.getLogger("refold")

TRACE_SECONDS = 1.0
"""How long logged chunks may wait for company before they are appended."""


@attrs.frozen
class Answer:
    """A model's finished answer: the logged message, and how the stream finished."""

    message: AssistantMessage
    finish: FinishKind


@attrs.frozen
class Recording:
    """What an answer is written down with: in which log, for which step and header.

    `chunks` says how much of the stream is logged. `listeners` are given each chunk at once, before
    it is logged; their errors are logged and concern nobody else.
    """

    log: SessionLog
    boundary: StepBoundary
    header: EpochHeader
    chunks: ChunkLogging
    listeners: Sequence[Callable[[Chunk], None]]


class AnswerWriter:
    """Writes one attempt's answer into the log while it streams."""

    def __init__(self, recording: Recording) -> None:
        self._log, self._boundary = recording.log, recording.boundary
        self._listeners = recording.listeners
        config = recording.header.config
        self._provenance = Provenance(config.provider, config.model)
        self._assembler, self._order = Assembler(), ChunkOrder()
        self._trace = Trace(recording.chunks)
        self._held: list[Chunk] = []
        self._logged: list[int] = []
        self._appended_at = trio.current_time()

    async def follow(self, stream: Stream) -> None:
        """Take the stream to its end; what is traced goes to the log about once a second."""
        while chunks := await stream.receive():
            now = trio.current_time()
            for chunk in chunks:
                self._order.check(chunk)
                self._assembler.feed(chunk)
                for listener in tuple(self._listeners):
                    try:
                        call_plainly(partial(listener, chunk))
                    except Exception:  # noqa: BLE001 - a display's error concerns nobody else
                        _log.exception("a listener of session %s failed", self._log.session_id)
                self._held += self._trace.feed(chunk, now)
            if self._held and now - self._appended_at >= TRACE_SECONDS:
                await self._append_held()

    async def void(self, attempt: int, failure: Failure, delay: float) -> None:
        """Log that this attempt's text is void and that the same bytes are sent again."""
        turn, step = self._boundary.turn, self._boundary.step
        self._held += self._trace.flush()
        milliseconds = round(delay * 1000)
        retry = LlmRetry(turn, step, attempt, failure, milliseconds, self._assembler.usage)
        await self._log.append(*self._held_drafts(), draft(retry))
        self._held = []

    async def _append_held(self) -> None:
        events = await self._log.append(*self._held_drafts())
        self._held = []
        self._logged += [event.seq for event in events]
        self._appended_at = trio.current_time()

    def _held_drafts(self) -> Sequence[Draft]:
        turn, step = self._boundary.turn, self._boundary.step
        return [draft(AssistantChunk(turn, step, chunk)) for chunk in self._held]

    async def finish(self) -> Answer:
        """Append the finished message, citing its chunks.

        Raises `LlmFailure`, EMPTY_RESPONSE, for an answer that says nothing and calls nothing; one
        of thoughts alone says nothing. What the limit or the filter of a server cut is no such.
        """
        whole = self._assembler.finished()
        if whole.finish in ("stop", "tool-calls") and not any(map(_says_something, whole.content)):
            raise LlmFailure(Failure("EMPTY_RESPONSE", _EMPTY))
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
        chunks = self._held_drafts()
        cited: list[int | InBatch] = [*self._logged, *map(InBatch, range(len(chunks)))]
        await self._log.append(*chunks, draft(message, cites=cited or None))


def _says_something(block: Block) -> bool:
    match block:
        case TextBlock(text):
            return bool(text.strip())
        case ReasoningBlock():
            return False
    return True


_EMPTY = "the model answered nothing; ask again or use another model"
