"""Dispatch: the one way in which a conversation request leaves.

Build the request from the log, seal it, flush, have it cleared, send exactly those bytes, write
down what comes back. It runs in the task of the step that asked; a loop gets the finished message
and can write neither the seal nor the answer.

The order is the promise:

    log --> header, messages --> body, digests --> request/sealed --> flush --> cleared --> sent

- The seal is durable before a byte leaves. A crash between the two leaves a seal whose request was
  never sent, which does no harm; the other way round a model would have been asked something that
  no log knows.
- What is cleared is what is sent. Nothing is encoded again between the two, and a retry sends the
  same bytes again, so one seal stands for all attempts of a step. A digest travels beside its
  body, so the bytes in hand are hashed once more where they leave.
- In `audit` the check runs beside the request, and the answer may be there before the verdict. It
  is shown as it streams, but no message is kept before the verdict has come.
- However an attempt ends, text that was visible is kept as an interrupted message, shielded and
  for a few seconds at most: somebody read it, so it belongs to the history that the next request
  tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.kernel import Ref, open_flat_nursery
from refold.actors.log.live_log import Sealed
from refold.actors.log.session_log import SessionLog, StepBoundary
from refold.actors.request.answer_writer import Answer, AnswerWriter, Recording
from refold.actors.request.invariants import Clear, InvariantViolation, Report
from refold.actors.request.model import Model, NotAdmitted, Pass, Uncleared
from refold.actors.request.retries import Retries
from refold.runtime.envelope import draft
from refold.runtime.errors import NoRequestHeader
from refold.runtime.events import RequestSealed
from refold.runtime.request import Request
from refold.runtime.request_header import EpochHeader
from refold.runtime.stream.chunk_logging import ChunkLogging
from refold.runtime.stream.chunks import Chunk
from refold.runtime.stream.failures import LlmFailure
from refold.runtime.wire.known_formats import FORMATS
from refold.runtime.wire.request_encoder import RequestEncoder

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
        clearance: Ref[Clear | Report] | None,
        mode: Invariants,
        find_model: Callable[[str], Model],
        chunks: ChunkLogging,
        retries: Retries,
        listeners: list[Callable[[Chunk], None]],
    ) -> None:
        self._log, self._clearance = log, clearance
        self._find_model = find_model
        self._mode: Invariants = mode
        self._chunks: ChunkLogging = chunks
        self._retries = retries
        self._encoder = RequestEncoder()
        self.listeners = listeners

    def continue_from(self, sealed: Sealed) -> None:
        """After a resume or in a fork: go on from the bytes of the log's last sealed request.

        In a codec that nobody here can write there are none to go on from.
        """
        if sealed.codec in FORMATS:
            derived, generation = sealed.derived.derive_messages(), sealed.generation
            self._encoder.encode(FORMATS[sealed.codec], sealed.header, derived, generation)

    def let_go(self) -> None:
        """Drop the encoded request; for parking."""
        self._encoder = RequestEncoder()

    def check(self, header: EpochHeader) -> None:
        """Raise what makes `header` one that no request can hold: `ExtraRefused` and others."""
        self._find_model(header.config.provider).format.opening(header)

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
        request = Request(header, session.derive_messages())
        generation = session.surface.replace_generation
        encoded = self._encoder.encode(model.format, header, request.derived, generation)
        seal = RequestSealed(
            boundary.turn,
            boundary.step,
            model.format.name,
            encoded.request_digest,
            encoded.wire_digest,
            len(encoded.body),
            encoded.shared_prefix_bytes,
            self._mode,
        )
        (sealed,) = await self._log.append(draft(seal), flush=True)
        offer = Clear(boundary, request, encoded, sealed.seq, self._log.live.durable_seq)
        recording = Recording(self._log, boundary, header, self._chunks, self.listeners)
        try:
            match self._mode:
                case "off":
                    return await self._send(offer, _uncleared(offer), model, recording)
                case "audit":
                    return await self._audited(offer, model, recording)
                case _:
                    cleared = await self._checker(offer).ask(offer)
                    return await self._send(offer, cleared, model, recording)
        except NotAdmitted as refused:
            raise await self._violation(offer, refused.problem) from refused

    def _checker(self, offer: Clear) -> Ref[Clear | Report]:
        if self._clearance is None:
            problem = f"there is nobody to clear it, and the mode is {self._mode}"
            raise InvariantViolation(self._log.session_id, offer.boundary.seq, problem)
        return self._clearance

    async def _violation(self, offer: Clear, problem: str) -> InvariantViolation:
        """The violation that `problem` is, with a report where there is an actor to make one."""
        if self._clearance is not None:
            try:
                await self._clearance.ask(Report(offer, problem))
            except InvariantViolation as violation:
                return violation
        return InvariantViolation(self._log.session_id, offer.boundary.seq, problem)

    async def _audited(self, offer: Clear, model: Model, recording: Recording) -> Answer:
        """Check beside the request; a violation closes the stream before anything is kept."""
        checker, cleared = self._checker(offer), trio.Event()
        answers: list[Answer] = []
        failures: list[LlmFailure] = []

        @enable_ki_protection
        async def send() -> None:
            try:
                answers.append(
                    await self._send(offer, _uncleared(offer), model, recording, cleared)
                )
            except LlmFailure as failure:  # a request that failed is checked all the same
                failures.append(failure)

        async with open_flat_nursery() as nursery:
            nursery.start_soon(send)
            try:
                await checker.ask(offer)
            except InvariantViolation as violation:
                violation.beside = True
                raise
            cleared.set()
        if failures:
            raise failures[0]
        return answers[0]

    async def _send(
        self,
        offer: Clear,
        clearance: Pass,
        model: Model,
        recording: Recording,
        cleared: trio.Event | None = None,
    ) -> Answer:
        """Send one body until it is answered or given up; no message is kept before `cleared`."""
        attempt = 0
        while True:
            attempt += 1
            writer = AnswerWriter(recording)
            try:
                async with model.open(offer.encoded.body, clearance) as stream:
                    await writer.follow(stream)
                if cleared is not None:
                    await cleared.wait()
                return await writer.finish()
            except LlmFailure as error:
                delay = self._retries.delay(attempt, error.failure)
                if delay is None:
                    await _keep(writer, cleared)
                    raise
                await writer.void(attempt, error.failure, delay)
            except BaseException:
                await _keep(writer, cleared)
                raise
            await trio.sleep(delay)


def _uncleared(offer: Clear) -> Uncleared:
    provider = offer.request.header.config.provider
    return Uncleared(offer.boundary.seq, provider, offer.encoded.wire_digest)


async def _keep(writer: AnswerWriter, cleared: trio.Event | None) -> None:
    if cleared is None or cleared.is_set():
        with trio.move_on_after(KEEP_SECONDS, shield=True):
            await writer.keep_interrupted()
