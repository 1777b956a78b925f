"""What a request is sent to, and what it takes to leave.

Every check of a request looks at a digest, and a digest travels beside the body that it was taken
of. So the last word is spoken where the body leaves: `Model.open` wants a pass, which names one
body by its digest and one provider by its name, and `admit` hashes the bytes in hand, right before
the socket. What is changed, swapped or misled on the way there does not leave, whatever the
session's mode is.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import attrs

from refold.runtime.errors import Broken
from refold.runtime.stream.chunks import Chunk
from refold.runtime.wire.format import WireFormat


@attrs.frozen
class Clearance:
    """The permission to send one body to one provider; only the invariants actor gives it.

    `boundary` is the seq of the step that asks, `wire_digest` the body's SHA-256; both and
    `provider` are what the stored log says.
    """

    boundary: int
    provider: str
    wire_digest: str


@attrs.frozen
class Uncleared:
    """The pass of a session whose requests are not checked before they leave (`off`, `audit`).

    It names what the seal names.
    """

    boundary: int
    provider: str
    wire_digest: str


Pass: TypeAlias = Clearance | Uncleared


@attrs.define(eq=False)
class NotAdmitted(Broken):
    """A body that its pass does not name; nothing of it was sent."""

    problem: str

    def __str__(self) -> str:
        return f"the request was not sent: {self.problem}"


def admit(clearance: Pass, provider: str, body: bytes) -> None:
    """Let `body` leave for `provider`, or raise `NotAdmitted`."""
    if clearance.provider != provider:
        raise NotAdmitted(
            f"it is for the provider {clearance.provider!r} and was given to {provider!r}"
        )
    if clearance.wire_digest != hashlib.sha256(body).hexdigest():
        raise NotAdmitted("its bytes are not those that its seal names")


class Stream(Protocol):
    """One answer as it arrives."""

    async def receive(self) -> list[Chunk]:
        """One or more chunks, or [] once the answer is complete; raises `LlmFailure`.

        After a failure or a cancellation nothing more comes; leave the stream.
        """
        ...


class Model(Protocol):
    """What a request is sent to: bytes in, a stream of chunks out."""

    @property
    def provider_name(self) -> str:
        """The name under which it is asked for."""
        ...

    @property
    def format(self) -> WireFormat:
        """What its requests are written in."""
        ...

    def open(self, body: bytes, clearance: Pass) -> AbstractAsyncContextManager[Stream]:
        """Send exactly `body`, which must be what `clearance` names; leaving hangs up.

        Entering raises `NotAdmitted`; entering and receiving raise `LlmFailure`.
        """
        ...
