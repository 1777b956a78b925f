"""Dispatch: the one way in which a conversation request leaves (design 3.3).

Build the request from the log, seal it, flush, have it cleared, send exactly those bytes, write
down what comes back. It runs in the task of the step that asked; a loop gets the finished message
and can write neither the seal nor the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import trio
from trio.lowlevel import enable_ki_protection

from actors.answer_writer import Answer, AnswerWriter
from actors.invariants import Clear
from actors.kernel import Ref, open_flat_nursery
from actors.retries import Retries
from actors.session_log import SessionLog, StepBoundary
from actors.wire import Model
from runtime.envelope import draft
from runtime.errors import NoRequestHeader
from runtime.events import RequestSealed
from runtime.header import EpochHeader
from runtime.llm.body import Encoded, RequestEncoder
from runtime.llm.chunks import Chunk
from runtime.llm.failures import LlmFailure
from runtime.llm.trace import Setting
from runtime.llm.wires import CHAT
from runtime.messages import Message
from runtime.request import build_request

Invariants: TypeAlias = Literal["full", "enforce", "audit", "off"]
"""How a request is checked: before it leaves (twice in `full`), beside it, or not at all."""

KEEP_SECONDS = 5.0
"""How long a cancelled step may take to write down what was streamed."""


class Dispatch:
    """One session's dispatch; one request is in flight at a time.

    `listeners` are given every chunk of every attempt as it comes.
    """

    def __init__(
        self,
        log: SessionLog,
        clearance: Ref[Clear] | None,
        mode: Invariants,
        find_model: Callable[[str], Model],
        chunks: Setting,
        retries: Retries,
        listeners: list[Callable[[Chunk], None]],
    ) -> None:
        self._log, self._clearance = log, clearance
        self._find_model = find_model
        self._mode: Invariants = mode
        self._chunks: Setting = chunks
        self._retries = retries
        self._encoder = RequestEncoder(CHAT)
        self.listeners = listeners

    def continue_from(
        self, header: EpochHeader, derived: tuple[Message, ...], generation: int
    ) -> None:
        """After a resume or in a fork: go on from the bytes of the log's last sealed request."""
        self._encoder.encode(header, derived, generation)

    def let_go(self) -> None:
        """Drop the encoded request; for parking."""
        self._encoder = RequestEncoder(CHAT)

    async def dispatch(self, boundary: StepBoundary) -> Answer:
        """Send the request of the open step and return its answer, logged.

        Raises `LlmFailure` once retries are used up (what was visible is kept as an interrupted
        message), `InvariantViolation` (nothing was sent, or in `audit` the stream was closed and
        nothing is kept), and what an append raises. Cancelled while the answer streams, it keeps
        the visible text as an interrupted message first.
        """
        header = self._log.live.session.header
        if header is None:
            raise NoRequestHeader(boundary.seq)
        model = self._find_model(header.config.provider)
        session = self._log.live.session
        derived, generation = session.derive_messages(), session.surface.replace_generation
        encoded = self._encoder.encode(header, derived, generation)
        seal_seq = await self._seal(boundary, encoded)
        durable = self._log.live.durable_seq
        offer = Clear(boundary, build_request(header, derived), encoded, seal_seq, durable)
        attempts = _Attempts(self._log, boundary, header, self._chunks, self.listeners)
        if self._mode == "audit":
            return await self._audited(offer, attempts, model)
        if self._clearance is not None:
            await self._clearance.ask(offer)
        return await attempts.run(model, encoded.body, self._retries)

    async def _seal(self, boundary: StepBoundary, encoded: Encoded) -> int:
        seal = RequestSealed(
            boundary.turn,
            boundary.step,
            CHAT.name,
            encoded.request_digest,
            encoded.wire_digest,
            len(encoded.body),
            encoded.shared_prefix_bytes,
            self._mode,
        )
        (event,) = await self._log.append(draft(seal), flush=True)
        return event.seq

    async def _audited(self, offer: Clear, attempts: _Attempts, model: Model) -> Answer:
        """Check beside the request; a violation closes the stream before anything is kept."""
        attempts.cleared = trio.Event()
        answers: list[Answer] = []
        failures: list[LlmFailure] = []

        @enable_ki_protection
        async def send() -> None:
            try:
                answers.append(await attempts.run(model, offer.encoded.body, self._retries))
            except LlmFailure as failure:  # a request that failed is checked all the same
                failures.append(failure)

        async with open_flat_nursery() as nursery:
            nursery.start_soon(send)
            assert self._clearance is not None
            await self._clearance.ask(offer)
            attempts.cleared.set()
        if failures:
            raise failures[0]
        return answers[0]


class _Attempts:
    """Sends one body until it is answered or given up.

    With `cleared` set to an event, no message is kept before it has happened.
    """

    def __init__(
        self,
        log: SessionLog,
        boundary: StepBoundary,
        header: EpochHeader,
        chunks: Setting,
        listeners: list[Callable[[Chunk], None]],
    ) -> None:
        self._log, self._boundary, self._header = log, boundary, header
        self._chunks: Setting = chunks
        self._listeners = listeners
        self.cleared: trio.Event | None = None

    async def run(self, model: Model, body: bytes, retries: Retries) -> Answer:
        attempt = 0
        while True:
            attempt += 1
            writer = AnswerWriter(
                self._log, self._boundary, self._header, self._chunks, self._listeners
            )
            try:
                return await self._attempt(writer, model, body)
            except LlmFailure as error:
                delay = retries.delay(attempt, error.failure)
                if delay is None:
                    await self._keep(writer)
                    raise
                await writer.void(attempt, error.failure, delay)
            except BaseException:
                await self._keep(writer)
                raise
            await trio.sleep(delay)

    async def _attempt(self, writer: AnswerWriter, model: Model, body: bytes) -> Answer:
        async with model.open(body) as stream:
            await writer.follow(stream)
        if self.cleared is not None:
            await self.cleared.wait()
        return await writer.finish()

    async def _keep(self, writer: AnswerWriter) -> None:
        if self.cleared is not None and not self.cleared.is_set():
            return
        with trio.move_on_after(KEEP_SECONDS, shield=True):
            await writer.keep_interrupted()
