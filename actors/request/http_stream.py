"""One answer over HTTP: how long each part is waited for, its chunks, and what went wrong.

Connect, silence and total are deadlines of Trio cancel scopes around each wait, never around code
of the caller.
"""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

import attrs
import httpx2
import trio

from refold.runtime.stream.chunks import Chunk
from refold.runtime.stream.error_body import plain, without
from refold.runtime.stream.failures import Failure, LlmFailure, failure_from_response
from refold.runtime.wire.format import StreamDecoder

LINGER_SECONDS = 0.5
"""How long the body may take to end after the terminal event, so that its connection is kept."""

ERROR_SECONDS = 5.0
ERROR_BYTES = 65536

GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

NO_CONTENT = (204, 205, 304)
"""Statuses of a success that can hold no answer."""

Phase: TypeAlias = Literal["connect", "silence"]


@attrs.frozen
class Timeouts:
    """Seconds to connect, of silence (a ping is no silence), and for the whole answer."""

    connect: float = 10.0
    silence: float = 300.0
    total: float = 1800.0


class Deadlines:
    """The limits of one request: each wait gets a scope that ends with its phase or the total."""

    def __init__(self, url: str, timeouts: Timeouts) -> None:
        self.url = url
        self._timeouts = timeouts
        self._total_ends = trio.current_time() + timeouts.total
        self._scope = trio.CancelScope()
        self._phase: Phase = "connect"

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Bound the waits inside; raises `LlmFailure` TIMEOUT that names the limit."""
        with trio.CancelScope() as self._scope:
            self.enter(phase)
            yield
        if self._scope.cancelled_caught:
            raise LlmFailure(Failure("TIMEOUT", self._sentence()))

    def enter(self, phase: Phase) -> None:
        """Go on to `phase`, whose time begins now."""
        self._phase = phase
        seconds = self._timeouts.connect if phase == "connect" else self._timeouts.silence
        self._scope.deadline = min(trio.current_time() + seconds, self._total_ends)

    def _sentence(self) -> str:
        if trio.current_time() >= self._total_ends:
            what, limit = f"the answer of {self.url} was not complete", self._timeouts.total
            return f"{what} after {limit:g} s in total; ask for less or raise the total limit"
        if self._phase == "connect":
            what, limit = f"could not connect to {self.url}", self._timeouts.connect
            return f"{what} within {limit:g} s; check the address and the network"
        what, limit = f"{self.url} was silent", self._timeouts.silence
        return f"{what} for {limit:g} s; try again or raise the silence limit"


class HttpStream:
    """The stream of one response; `key` is taken out of what the body says in a failure."""

    def __init__(
        self,
        response: httpx2.Response,
        deadlines: Deadlines,
        decoder: StreamDecoder,
        key: str | None,
    ) -> None:
        self._response = response
        self._bytes = response.aiter_raw()
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        # Some servers compress although they are asked not to.
        self._unpack = zlib.decompressobj(GZIP_OR_ZLIB) if packed in ("gzip", "deflate") else None
        self._deadlines = deadlines
        self._key = key
        self._decoder = decoder

    async def check(self) -> None:
        """Raise the `LlmFailure` of a response that can hold no answer.

        A success is judged by what it holds and not by its name: see `receive`. What an error says
        is read for at most `ERROR_SECONDS` and about `ERROR_BYTES`.
        """
        if not self._response.is_success or self._response.status_code in NO_CONTENT:
            said = await self._excerpt()
            raise LlmFailure(_refusal(self._deadlines.url, self._response, said, self._key))

    async def receive(self) -> list[Chunk]:
        """The next chunks, or [] once the answer is complete; raises `LlmFailure`.

        Cancelling it ends the answer: nothing more comes.
        """
        while not self._decoder.done:
            if self._decoder.failure is not None:
                raise LlmFailure(self._decoder.failure)
            data = b""
            # A body that breaks off and one that ends say the same: what counts is the terminal
            # event.
            with (
                self._deadlines.during("silence"),
                suppress(StopAsyncIteration, httpx2.TransportError),
            ):
                data = await anext(self._bytes)
            chunks = self._decoder.feed(self._plain(data)) if data else self._decoder.close()
            if chunks:
                return chunks
        return []

    async def close(self) -> None:
        """Keep the connection when the answer is complete, else close it, cancelled or not.

        To keep it takes at most `LINGER_SECONDS`; to close it waits for nothing.
        """
        try:
            if self._decoder.done:
                with trio.move_on_after(LINGER_SECONDS), suppress(httpx2.TransportError):
                    await self._drain()
        finally:
            await self._hang_up()

    async def _drain(self) -> None:
        async for _ in self._bytes:
            pass

    async def _hang_up(self) -> None:
        with trio.CancelScope(shield=True) as scope, suppress(httpx2.TransportError):
            # Reading on under cancellation ends the nested generators of httpx2 from the inside,
            # and the innermost closes the socket; closing the outermost instead would leave some
            # to the garbage collector, which warns.
            scope.cancel()
            await self._drain()

    def _plain(self, data: bytes) -> bytes:
        try:
            return data if self._unpack is None else self._unpack.decompress(data)
        except zlib.error:
            problem = f"{self._deadlines.url} sent packed bytes that cannot be unpacked"
            raise LlmFailure(Failure("MALFORMED_RESPONSE", problem)) from None

    async def _excerpt(self) -> bytes:
        seen = b""
        with trio.move_on_after(ERROR_SECONDS), suppress(httpx2.TransportError, LlmFailure):
            async for data in self._bytes:
                seen += self._plain(data)
                if len(seen) >= ERROR_BYTES:
                    break
        return seen.replace(self._key.encode(), b"[removed]") if self._key else seen


def _refusal(url: str, response: httpx2.Response, said: bytes, key: str | None) -> Failure:
    status = response.status_code
    if response.has_redirect_location:
        to = without(key, plain(response.headers["location"]))
        return Failure("INVALID_REQUEST", f"{url} has moved; set the base URL to {to}", status)
    if status in NO_CONTENT:
        problem = f"{url} sent no answer (HTTP {status}); check the base URL"
        return Failure("MALFORMED_RESPONSE", problem, status)
    return failure_from_response(status, response.headers, said, time.time(), key)


def transport_failure(url: str, error: httpx2.TransportError) -> LlmFailure:
    """What to raise when a request to `url` met `error` before the head of an answer."""
    if _is_tls(error):
        problem = "does not speak TLS as it should; check the address and its certificate"
        return LlmFailure(Failure("TRANSPORT", f"{url} {problem}"))
    if isinstance(error, httpx2.ConnectError):
        return LlmFailure(Failure("TRANSPORT", f"cannot reach {url}; is the server running?"))
    return LlmFailure(Failure("TRANSPORT", f"{url} hung up before it answered; try again"))


def _is_tls(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None
