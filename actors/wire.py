"""The way to a provider: exact bytes out over HTTP, chunks in (design 4.1, 4.4).

httpx2 keeps no limit of its own here: every wait is bounded by `actors.answer`. Whatever goes wrong
is one `LlmFailure`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import attrs
import httpx2
import trio

from actors.answer import (
    ERROR_BYTES,
    ERROR_SECONDS,
    LINGER_SECONDS,
    HttpStream,
    Phase,
    Timeouts,
    Wait,
    transport_failure,
)
from runtime.llm.chunks import Chunk
from runtime.llm.providers import InvalidProvider, Provider, is_sendable

__all__ = [
    "CLOSE_SECONDS",
    "ERROR_BYTES",
    "ERROR_SECONDS",
    "KEPT_CONNECTIONS",
    "KEPT_SECONDS",
    "LINGER_SECONDS",
    "HttpModel",
    "Model",
    "Phase",
    "Stream",
    "Timeouts",
    "close_client",
    "make_client",
    "open_client",
]

CLOSE_SECONDS = 1.0
KEPT_SECONDS = 30.0
KEPT_CONNECTIONS = 20


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


def make_client() -> httpx2.AsyncClient:
    """A client to share between models, to be closed with `close_client`.

    It takes no proxy from the environment, follows no redirect and has no limits, so that nothing
    but the `Timeouts` of a model ends a request. Making it loads certificates, some 40 ms.
    """
    return httpx2.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        limits=httpx2.Limits(
            max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEPT_SECONDS
        ),
    )


async def close_client(client: httpx2.AsyncClient) -> None:
    """Close the client's connections, cancelled or not."""
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await client.aclose()


@asynccontextmanager
async def open_client() -> AsyncIterator[httpx2.AsyncClient]:
    """A client for the length of a block."""
    client = make_client()
    try:
        yield client
    finally:
        await close_client(client)


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
    timeouts: Timeouts = attrs.field(factory=Timeouts)

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
        wait = Wait(self.url, self.timeouts)
        answer = HttpStream(await self._post(body, wait), wait, self.key)
        try:
            await answer.check()
            yield answer
        finally:
            await answer.close()

    async def _post(self, body: bytes, wait: Wait) -> httpx2.Response:
        attempt = _Attempt(wait)
        try:
            return await self._send(body, attempt)
        except httpx2.TransportError as error:
            if attempt.socket is not None or isinstance(error, httpx2.ConnectError):
                raise transport_failure(self.url, error) from error
        try:
            return await self._send(body, _Attempt(wait))
        except httpx2.TransportError as error:
            raise transport_failure(self.url, error) from error

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


@attrs.define(eq=False)
class _Attempt:
    """What httpx2 tells on the way: the socket, when it is a new one, and when it is sent to."""

    wait: Wait
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
