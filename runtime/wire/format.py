"""A wire format as one record: how a request is written, where it goes, how its answer is read.

A version of a format is a promise about bytes. Providers cache the beginning of what they were
sent, and a seal in the log holds the digest of it, so whatever would change the bytes of a history
that may have been sent already is a new version, and every version stays callable for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from refold.runtime.errors import Refused
from refold.runtime.messages import Message
from refold.runtime.request_header import EpochHeader
from refold.runtime.stream.chunks import Chunk
from refold.runtime.stream.failures import Failure

QUIRKS = "refold"
"""The key of `config.extra` that is never sent: how a provider wants its bodies written."""


@attrs.define(eq=False)
class ExtraRefused(Refused):
    """A value in `config.extra` that this wire cannot send as it stands."""

    key: str
    problem: str

    def __str__(self) -> str:
        return f"config.extra: {self.key} {self.problem}"


class MessageEncoder(Protocol):
    """Writes the messages of one body that grows from request to request.

    A format may write some neighbours together, as one *run*. The bytes of a run depend on its
    messages and on the header alone, and a finished run never changes: so bytes that were given
    out once begin every later body, and one message more costs one message more.
    """

    def add(self, message: Message) -> bytes:
        """Take the next message; returns the bytes that are final now, separators included."""
        ...

    def unfinished(self) -> bytes:
        """What stands behind the final bytes as long as nothing more is added; changes nothing."""
        ...


class StreamDecoder(Protocol):
    """Turns the body of one streamed answer into chunks, however its bytes are split."""

    @property
    def done(self) -> bool:
        """The answer is complete: nothing more is read from the stream."""
        ...

    @property
    def failure(self) -> Failure | None:
        """What the next call raises, once there is nothing more to read."""
        ...

    def feed(self, data: bytes) -> list[Chunk]:
        """The chunks that `data` completes; raises `LlmFailure`."""
        ...

    def close(self) -> list[Chunk]:
        """The bytes ended: what was held back; raises `LlmFailure` where the answer was cut."""
        ...


@attrs.frozen
class WireFormat:
    """One version of a wire format, both ways; a body is opening + messages + closing.

    `name` is how seals name it. Requests are POSTed to `path` under the provider's base URL with
    `headers`, which are made with the API key, None where the provider wants none; `decoder` is
    made with it too, to take it out of what an answer says. `opening` refuses headers that no body
    can hold with `ExtraRefused` and `NotLosslessJson`.
    """

    name: str
    path: str
    headers: Callable[[str | None], dict[str, str]]
    opening: Callable[[EpochHeader], bytes]
    messages: Callable[[EpochHeader], MessageEncoder]
    closing: bytes
    decoder: Callable[[str | None], StreamDecoder]
