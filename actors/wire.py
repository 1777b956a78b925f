"""The way to a provider: exact bytes out over HTTP, chunks in (design 4.1, 4.4).

httpx2 keeps no limit of its own here: connect, silence and total are deadlines of Trio cancel
scopes around each wait, never around code of the caller. Whatever goes wrong is one `LlmFailure`.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, Protocol, TypeAlias

import attrs
import httpx2
import trio

from runtime.llm.chat_stream import ChatDecoder
from runtime.llm.chunks import Chunk
from runtime.llm.error_body import parsed, plain
from runtime.llm.failures import (
    Failure,
    LlmFailure,
    failure_from_error,
    failure_from_response,
)
from runtime.llm.providers import InvalidProvider, Provider, is_sendable

LINGER_SECONDS = 0.5
"""How long the body may take to end after the terminal event, so that its connection is kept."""

CLOSE_SECONDS = 1.0
ERROR_SECONDS = 5.0
ERROR_BYTES = 65536
KEPT_SECONDS = 30.0
KEPT_CONNECTIONS = 20

Phase: TypeAlias = Literal["connect", "silence"]


class Stream(Protocol):
    """One answer as it arrives."""

    async def receive(self) -> list[Chunk]:
        """One or more chunks, or [] once the answer is complete; raises `LlmFailure`.

        After a failure or a cancellation nothing more comes; leave the stream.
        """
        ...


class Model(Protocol):
    """What a request is sent to: bytes in, a stream of chunks out."""

    def open(self, body: bytes) -> AbstractAsyncContextManager[Stream]:
        """Send exactly `body`; entering and receiving raise `LlmFailure`; leaving hangs up."""
        ...


@attrs.frozen
class Timeouts:
    """Seconds to connect, of silence (a ping is no silence), and for the whole answer."""

    connect: float = 10.0
    silence: float = 300.0
    total: float = 1800.0


@asynccontextmanager
async def open_client() -> AsyncIterator[httpx2.AsyncClient]:
    """A client to share between models; leaving closes its connections, cancelled or not.

    It takes no proxy from the environment, follows no redirect and has no limits, so that nothing
    but the `Timeouts` of a model ends a request.
    """
    client = httpx2.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        limits=httpx2.Limits(
            max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEPT_SECONDS
        ),
    )
    try:
        yield client
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await client.aclose()


def _check_key(model: HttpModel, _field: object, key: str | None) -> None:
    if key is not None and not is_sendable(key):
        raise InvalidProvider(model.provider.name, "was given a key that no header can carry")


def _check_codec(_model: HttpModel, _field: object, provider: Provider) -> None:
    if provider.codec != "chat/1":
        raise InvalidProvider(
            provider.name,
            f"speaks {provider.codec}, which HTTP does not carry; give it the codec chat/1",
        )


@attrs.frozen
class HttpModel:
    """A provider of the codec `chat/1` over HTTP; `key` shows in no repr, error or log.

    Nothing is tried again but a request that met a kept connection which turned out to be closed.
    """

    provider: Provider = attrs.field(validator=_check_codec)
    client: httpx2.AsyncClient = attrs.field(repr=False)
    key: str | None = attrs.field(default=None, repr=False, validator=_check_key)
    timeouts: Timeouts = Timeouts()

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.provider.base_url.rstrip("/") + "/chat/completions"

    @asynccontextmanager
    async def open(self, body: bytes) -> AsyncIterator[Stream]:
        """POST exactly `body`; entering returns when the head of a streamed answer is there.

        Raises `LlmFailure`. Leaving early, or being cancelled at any await, closes the connection
        at once; leaving after the end waits at most `LINGER_SECONDS` to keep it.
        """
        wait = _Wait(self.url, self.timeouts)
        answer = _Answer(await self._post(body, wait), wait, self.key)
        try:
            await answer.check()
            yield answer
        finally:
            await answer.close()

    async def _post(self, body: bytes, wait: _Wait) -> httpx2.Response:
        attempt = _Attempt(wait)
        try:
            return await self._send(body, attempt)
        except httpx2.TransportError as error:
            if attempt.socket is not None or isinstance(error, httpx2.ConnectError):
                raise _transport_failure(self.url, error) from error
        try:
            return await self._send(body, _Attempt(wait))
        except httpx2.TransportError as error:
            raise _transport_failure(self.url, error) from error

    async def _send(self, body: bytes, attempt: _Attempt) -> httpx2.Response:
        request = self.client.build_request(
            "POST",
            self.url,
            content=body,
            headers=self._headers(),
            extensions={"trace": attempt.trace},
        )
        try:
            with attempt.wait.during("connect"):
                return await self.client.send(request, stream=True)
        except BaseException:
            await attempt.abort()
            raise

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            # A compressing proxy would hold back events until its block is full.
            "accept-encoding": "identity",
            "user-agent": "refold",
        }
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        if not self.provider.keep_alive:
            headers["connection"] = "close"
        return headers


class _Wait:
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


@attrs.define(eq=False)
class _Attempt:
    """What httpx2 tells on the way: the socket, when it is a new one, and when it is sent to."""

    wait: _Wait
    socket: Any = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.socket = info["return_value"]
        elif event in ("http11.send_request_headers.started", "http11.send_request_body.complete"):
            self.wait.enter("silence")

    async def abort(self) -> None:
        """Close a new socket, which httpx2 forgets when it is cancelled in the TLS handshake."""
        if self.socket is not None:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.socket.aclose()


class _Answer:
    """The stream of one response."""

    def __init__(self, response: httpx2.Response, wait: _Wait, key: str | None) -> None:
        self._response = response
        self._bytes = response.aiter_raw()
        self._wait = wait
        self._key = key
        self._decoder = ChatDecoder()

    async def check(self) -> None:
        """Raise the `LlmFailure` of a response that is no stream."""
        kind = self._response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not self._response.is_success or kind in ("application/json", "text/html"):
            said = await self._excerpt()
            raise LlmFailure(_refusal(self._wait.url, self._response, kind, said))

    async def receive(self) -> list[Chunk]:
        with _hiding(self._key):
            while not self._decoder.done:
                if self._decoder.failure is not None:
                    raise LlmFailure(self._decoder.failure)
                data = await self._read()
                chunks = self._decoder.feed(data) if data else self._decoder.close()
                if chunks:
                    return chunks
            return []

    async def close(self) -> None:
        """Keep the connection when the answer is complete, else close it."""
        try:
            if self._decoder.done:
                with trio.move_on_after(LINGER_SECONDS), suppress(httpx2.TransportError):
                    await self._drain()
        finally:
            await self._hang_up()

    async def _read(self) -> bytes:
        # A body that breaks off and one that ends say the same: what counts is the terminal event.
        with self._wait.during("silence"), suppress(StopAsyncIteration, httpx2.TransportError):
            return await anext(self._bytes)
        return b""

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


def _refusal(url: str, response: httpx2.Response, kind: str, said: bytes) -> Failure:
    status = response.status_code
    if response.has_redirect_location:
        to = plain(response.headers["location"])
        return Failure("INVALID_REQUEST", f"{url} has moved; set the base URL to {to}", status)
    if not response.is_success:
        return failure_from_response(status, response.headers, said, time.time())
    body = parsed(said)
    if isinstance(body, dict) and body.get("error"):
        return failure_from_error(body)
    problem = f"{url} sent {kind} and no stream of events; check the base URL"
    return Failure("MALFORMED_RESPONSE", f"{problem}: {plain(said[:200].decode(errors='replace'))}")


def _transport_failure(url: str, error: httpx2.TransportError) -> LlmFailure:
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


@contextmanager
def _hiding(key: str | None) -> Iterator[None]:
    """Take `key` out of what a provider says in a stream: some quote a key that they refuse."""
    try:
        yield
    except LlmFailure as error:
        if not key or key not in error.failure.message:
            raise
        message = error.failure.message.replace(key, "[removed]")
        raise LlmFailure(attrs.evolve(error.failure, message=message)) from None
