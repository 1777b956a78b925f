"""Request bodies that continue one another: each message is encoded once (design 2.7, 4.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import attrs

from runtime import codec
from runtime.difference import common_prefix
from runtime.header import EpochHeader
from runtime.llm.wires import Wire
from runtime.messages import Message
from runtime.request import CANONICAL_TAIL, canonical_head


class Continued:
    """Both encodings of one growing request: canonical as a running hash, wire as `write` says.

    `write` is given the wire body's bytes in order, without the tail.
    """

    def __init__(self, wire: Wire, header: EpochHeader, write: Callable[[bytes], object]) -> None:
        self.header = header
        self._wire = wire
        self._write = write
        self._canonical = hashlib.sha256(canonical_head(header))
        self._canonical_separator = b""
        self._separator = wire.separator(header)
        write(wire.head(header))
        for message in header.message_prefix:
            self.add(message)

    def add(self, message: Message) -> None:
        """Encode the next message, both ways, for good."""
        self._canonical.update(self._canonical_separator + codec.canonical(message))
        self._write(self._separator + self._wire.message(message, self.header.config))
        self._canonical_separator = self._separator = b","

    def request_digest(self) -> str:
        """The canonical digest with everything added so far."""
        ended = self._canonical.copy()
        ended.update(CANONICAL_TAIL)
        return ended.hexdigest()

    def continues(self, header: EpochHeader) -> bool:
        """Whether `header` spells the same bytes as the one that this encoding began with."""
        return header is self.header or codec.canonical(header) == codec.canonical(self.header)


@attrs.frozen
class Encoded:
    """One request, ready to seal: the body, both digests, and what it shares with the last one."""

    body: bytes = attrs.field(repr=False)
    request_digest: str
    wire_digest: str
    shared_prefix_bytes: int


class RequestEncoder:
    """Encodes the requests of one session, one after the other.

    A request costs its new messages, one copy and one hash of the body. A header change or a
    replacement (a new `generation`) starts anew.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._kept = bytearray()
        self._continued: Continued | None = None
        self._generation = 0
        self._count = 0

    def encode(self, header: EpochHeader, derived: Sequence[Message], generation: int) -> Encoded:
        """The request of `header` and the derived messages; `generation` is the surface's."""
        previous = None
        if not self._goes_on(header, generation):
            previous = self._body()
            self._restart(header, generation)
        kept = len(self._kept)
        continued = self._add(derived)
        body = self._body()
        if previous is None:
            shared = kept if len(self._kept) > kept else len(body)
        else:
            shared = common_prefix(previous, body)
        digest = hashlib.sha256(body).hexdigest()
        return Encoded(body, continued.request_digest(), digest, shared)

    def _goes_on(self, header: EpochHeader, generation: int) -> bool:
        continued = self._continued
        return (
            continued is not None and generation == self._generation and continued.continues(header)
        )

    def _restart(self, header: EpochHeader, generation: int) -> None:
        kept = bytearray()
        # A header that this codec refuses leaves the encoding as it was.
        continued = Continued(self._wire, header, kept.extend)
        self._kept, self._continued = kept, continued
        self._generation, self._count = generation, 0

    def _add(self, derived: Sequence[Message]) -> Continued:
        assert self._continued is not None
        for message in derived[self._count :]:
            self._continued.add(message)
        self._count = len(derived)
        return self._continued

    def _body(self) -> bytes:
        return b"".join((self._kept, self._wire.tail)) if self._kept else b""
