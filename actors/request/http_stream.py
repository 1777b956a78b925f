"""One answer over HTTP: how long each part is waited for, its chunks, and what went wrong.

Connect, silence and total are deadlines of Trio cancel scopes around each wait, never around code
of the caller.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

import attrs
import httpx2
import trio

from refold.runtime.stream.chunks import Chunk
from refold.runtime.stream.error_body import parsed, plain, without
from refold.runtime.stream.failures import (
    Failure,
    LlmFailure,
    failure_from_error,
    failure_from_response,
)
from refold.runtime.wire.format import StreamDecoder

LINGER_SECONDS = 0.5
"""How long the body may take to end after the terminal event, so that its connection is kept."""

ERROR_SECONDS = 5.0
ERROR_BYTES = 65536

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
        self._deadlines = deadlines
        self._key = key
        self._decoder = decoder

    async def check(self) -> None:
        """Raise the `LlmFailure` of a response that is no stream.

        What an error says is read for at most `ERROR_SECONDS` and about `ERROR_BYTES`.
        """
        kind = self._response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not self._response.is_success or kind in ("application/json", "text/html"):
            said = await self._excerpt()
            raise LlmFailure(_refusal(self._deadlines.url, self._response, kind, said, self._key))

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
            chunks = self._decoder.feed(data) if data else self._decoder.close()
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

    async def _excerpt(self) -> bytes:
        seen = b""
        with trio.move_on_after(ERROR_SECONDS), suppress(httpx2.TransportError):
            async for data in self._bytes:
                seen += data
                if len(seen) >= ERROR_BYTES:
                    break
        return seen.replace(self._key.encode(), b"[removed]") if self._key else seen


def _refusal(
    url: str, response: httpx2.Response, kind: str, said: bytes, key: str | None
) -> Failure:
    status = response.status_code
    if response.has_redirect_location:
        to = without(key, plain(response.headers["location"]))
        return Failure("INVALID_REQUEST", f"{url} has moved; set the base URL to {to}", status)
    if not response.is_success:
        return failure_from_response(status, response.headers, said, time.time(), key)
    body = parsed(said)
    if isinstance(body, dict) and body.get("error"):
        return failure_from_error(body, key)
    problem = f"{url} sent {kind} and no stream of events; check the base URL"
    return Failure("MALFORMED_RESPONSE", f"{problem}: {plain(said[:200].decode(errors='replace'))}")


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
