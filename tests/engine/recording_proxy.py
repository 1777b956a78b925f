"""A proxy on loopback that keeps the body of every request and passes all bytes through.

It runs on plain threads and sockets: no code between the socket and the record is what is tested.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

PATIENCE = 30.0
"""Seconds of silence after which a relay gives up, so that no broken test hangs for ever."""


class RecordingProxy:
    """Stands before the server at `target`, for clients that send one request a connection.

    Use it as a context manager. `bodies` are the request bodies in the order in which they came.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.bodies: list[bytes] = []

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
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(PATIENCE)
                self._start(self._relay, client)

    def _relay(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target, PATIENCE) as server:
            head, body = read_request(client)
            self.bodies.append(body)
            server.sendall(head + body)
            while data := server.recv(65536):
                client.sendall(data)


def read_request(client: socket.socket) -> tuple[bytes, bytes]:
    """The bytes of a request up to its blank line, and those of its body."""
    with client.makefile("rb") as stream:
        head, length = b"", 0
        for line in stream:
            head += line
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            if line == b"\r\n":
                break
        return head, stream.read(length)
