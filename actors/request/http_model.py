"""A model over HTTP: exact bytes out, and the answer that comes back as a stream.

httpx2 keeps no limit of its own here: every wait is bounded by a deadline of `http_stream`.
Whatever goes wrong on the way is one `LlmFailure`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import trio

from refold.actors.request.http_stream import Deadlines, HttpStream, Timeouts, transport_failure
from refold.actors.request.model import Pass, admit
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.providers import InvalidProvider, Provider, is_sendable

CLOSE_SECONDS = 1.0
KEPT_SECONDS = 30.0
KEPT_CONNECTIONS = 20


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
    if provider.codec == "script":
        raise InvalidProvider(provider.name, "speaks script, which HTTP does not carry")


@attrs.frozen
class HttpModel:
    """A provider over HTTP; `key` shows in no repr, error or log.

    Nothing is tried again but a request that met a kept connection which turned out to be closed.
    """

    provider: Provider = attrs.field(validator=_check_codec)
    client: httpx2.AsyncClient = attrs.field(repr=False)
    key: str | None = attrs.field(default=None, repr=False, validator=_check_key)
    timeouts: Timeouts = attrs.field(factory=Timeouts)

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.provider.base_url.rstrip("/") + self.format.path

    @property
    def provider_name(self) -> str:
        return self.provider.name

    @property
    def format(self) -> WireFormat:
        return self.provider.format

    @asynccontextmanager
    async def open(self, body: bytes, clearance: Pass) -> AsyncIterator[HttpStream]:
        """POST exactly `body`; entering returns when the head of a streamed answer is there.

        Raises `NotAdmitted` and `LlmFailure`. Leaving early, or being cancelled at any await,
        closes the connection at once; leaving after the end waits at most `LINGER_SECONDS` to keep
        it.
        """
        deadlines = Deadlines(self.url, self.timeouts)
        response = await self._post(body, clearance, deadlines)
        stream = HttpStream(response, deadlines, self.format.decoder(self.key), self.key)
        try:
            await stream.check()
            yield stream
        finally:
            await stream.close()

    async def _post(self, body: bytes, clearance: Pass, deadlines: Deadlines) -> httpx2.Response:
        headers = {**self.format.headers(self.key), "user-agent": "refold"}
        if not self.provider.keep_alive:
            headers["connection"] = "close"
        again = False
        while True:
            attempt = _Attempt(deadlines)
            admit(clearance, self.provider_name, body)
            request = self.client.build_request(
                "POST",
                self.url,
                content=body,
                headers=headers,
                extensions={"trace": attempt.trace},
            )
            try:
                with deadlines.during("connect"):
                    return await self.client.send(request, stream=True)
            except httpx2.TransportError as error:
                await attempt.abort()
                fresh = attempt.socket is not None or isinstance(error, httpx2.ConnectError)
                if fresh or again:
                    raise transport_failure(self.url, error) from error
                again = True  # a kept connection had been closed
            except BaseException:
                await attempt.abort()
                raise


@attrs.define(eq=False)
class _Attempt:
    """What httpx2 tells on the way: the socket, when it is a new one, and when it is sent to."""

    deadlines: Deadlines
    socket: Any = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.socket = info["return_value"]
        elif event in ("http11.send_request_headers.started", "http11.send_request_body.complete"):
            self.deadlines.enter("silence")

    async def abort(self) -> None:
        """Close a new socket, which httpx2 forgets when it is cancelled in the TLS handshake."""
        if self.socket is not None:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.socket.aclose()
