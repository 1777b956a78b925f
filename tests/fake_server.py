"""A scripted HTTP/1.1 server on loopback that can do what no well-behaved server does.

It runs on plain threads and sockets, so it shares no code and no event loop with what it tests.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypeAlias

import attrs
import orjson

PATIENCE = 20.0
"""Seconds after which a server thread gives up, so that no broken test hangs for ever."""


TLS_HANDSHAKE = b"\x16"
"""The first byte of a client that wants TLS; plain servers answer it in plain text."""


@attrs.frozen
class Request:
    """One request as it came in, and the number of the connection that brought it."""

    connection: int
    line: str
    headers: dict[str, str]
    body: bytes


class FakeServer:
    """Answers its n-th request with the n-th step; use it as a context manager.

    `waiting` is set whenever a step has gone quiet, `peer_left` when a client hung up meanwhile.
    """

    def __init__(self, *steps: Step) -> None:
        self._steps = steps
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.requests: list[Request] = []
        self.connections = 0
        self.waiting = threading.Event()
        self.peer_left = threading.Event()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(PATIENCE)
                self._sockets.append(sock)
                self.connections += 1
                self._start(Connection(self, sock, self.connections).serve)

    def take(self, request: Request) -> Step:
        """Record a request and say how to answer it."""
        with self._lock:
            self.requests.append(request)
            return self._steps[len(self.requests) - 1]


@attrs.define(eq=False)
class Connection:
    """One client's socket, served until a step or the client ends it."""

    server: FakeServer
    sock: socket.socket
    number: int
    _buffer: bytes = b""

    def serve(self) -> None:
        with suppress(OSError, EOFError), self.sock:
            while True:
                request = self._read_request()
                if not self.server.take(request)(self):
                    return

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait_for(self, gate: threading.Event) -> None:
        """Go quiet until the test opens `gate`."""
        self.server.waiting.set()
        gate.wait(PATIENCE)

    def wait_for_peer(self) -> None:
        """Go quiet until the client hangs up."""
        self.server.waiting.set()
        with suppress(ConnectionError):
            while self.sock.recv(65536):
                pass
        self.server.peer_left.set()

    def reset(self) -> None:
        """Close with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _read_request(self) -> Request:
        if not self._buffer:
            self._buffer = self._receive()
        if self._buffer.startswith(TLS_HANDSHAKE):
            self.send(_head(400, {"connection": "close"}))
            raise EOFError
        line, *fields = self._read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)
        }
        body = self._read_exactly(int(headers.get("content-length", 0)))
        return Request(self.number, line, headers, body)

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._buffer += self._receive()
        head, _, self._buffer = self._buffer.partition(end)
        return head

    def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += self._receive()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return body

    def _receive(self) -> bytes:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError
        return data


Step: TypeAlias = Callable[[Connection], bool]
"""How to answer one request; true keeps the connection."""

Part: TypeAlias = bytes | threading.Event
Ending: TypeAlias = Literal["whole", "cut", "reset", "hang"]


def reply(status: int, body: bytes, **headers: str) -> Step:
    """A complete answer; underscores in header names stand for dashes."""

    def step(connection: Connection) -> bool:
        connection.send(_head(status, {**headers, "content-length": str(len(body))}) + body)
        return True

    return step


def stream(*parts: Part, ending: Ending = "whole", status: int = 200) -> Step:
    """A chunked answer: each part of bytes is one HTTP chunk, each event is waited for.

    It ends as HTTP wants it (`whole`), in the middle of a chunk (`cut`), with a TCP reset
    (`reset`), or not until the client hangs up (`hang`).
    """

    def step(connection: Connection) -> bool:
        headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        connection.send(_head(status, headers))
        for part in parts:
            if isinstance(part, threading.Event):
                connection.wait_for(part)
            else:
                connection.send(b"%x\r\n%s\r\n" % (len(part), part))
        return _end(connection, ending)

    return step


def _end(connection: Connection, ending: Ending) -> bool:
    if ending == "whole":
        connection.send(b"0\r\n\r\n")
    elif ending == "cut":
        connection.send(b"40\r\ndata: ")
    elif ending == "reset":
        connection.reset()
    else:
        connection.wait_for_peer()
    return ending == "whole"


def hang(connection: Connection) -> bool:
    """Say nothing at all until the client hangs up."""
    connection.wait_for_peer()
    return False


def drop(connection: Connection) -> bool:
    """Close without a word."""
    return False


def raw(data: bytes) -> Step:
    """Send `data` as it is and close."""

    def step(connection: Connection) -> bool:
        connection.send(data)
        return False

    return step


def event(payload: object) -> bytes:
    """One server-sent event with JSON data."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(finish_reason: str | None = None, **fields: object) -> bytes:
    """One event of a chat completions stream."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return event({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})


DONE = b"data: [DONE]\n\n"


def answer(text: str) -> Sequence[bytes]:
    """The events of a complete, short chat completions answer."""
    return (delta(role="assistant", content=""), delta(content=text), delta("stop"), DONE)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status} Scripted", *lines, "", ""]).encode()
