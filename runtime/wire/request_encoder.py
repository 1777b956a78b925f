"""Request bodies that continue one another: each message is encoded once.

Two accounts are kept of one growing request. The canonical one hashes to the `requestDigest`: the
request as the log tells it, the same for every wire. The wire's is the body as its format writes
it, and hashes to the `wireDigest`. Both are running hashes over final bytes, copied and ended for
each request, so a request costs its new messages and one copy of the body, however long the
session is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import attrs

from refold.runtime import typed_json
from refold.runtime.messages import Message
from refold.runtime.prefix import common_prefix
from refold.runtime.request import CANONICAL_TAIL, Request, canonical_head
from refold.runtime.request_header import EpochHeader
from refold.runtime.wire.format import WireFormat


@attrs.frozen
class Digests:
    """What a request's two encodings hash to, SHA-256 as lowercase hex."""

    request: str
    wire: str


class Continued:
    """Both encodings of one growing request, as running hashes.

    `keep` is given the body's final bytes in order, for whoever wants the body itself.
    """

    def __init__(
        self, format_: WireFormat, header: EpochHeader, keep: Callable[[bytes], object] | None
    ) -> None:
        self._format, self._header, self._keep = format_, header, keep
        self._canonical = hashlib.sha256(canonical_head(header))
        self._separator = b""
        self._wire = hashlib.sha256()
        self._final(format_.opening(header))
        self._messages = format_.messages(header)
        for message in header.message_prefix:
            self.add(message)

    def add(self, message: Message) -> None:
        """Encode the next message, both ways, for good."""
        self._canonical.update(self._separator + typed_json.canonical(message))
        self._separator = b","
        self._final(self._messages.add(message))

    def _final(self, encoded: bytes) -> None:
        self._wire.update(encoded)
        if self._keep is not None:
            self._keep(encoded)

    def ending(self) -> bytes:
        """What stands behind the final bytes in the body of the request as it is now."""
        return self._messages.unfinished() + self._format.closing

    def digests(self) -> Digests:
        """The digests with everything added so far."""
        canonical, wire = self._canonical.copy(), self._wire.copy()
        canonical.update(CANONICAL_TAIL)
        wire.update(self.ending())
        return Digests(canonical.hexdigest(), wire.hexdigest())

    def continues(self, format_: WireFormat, header: EpochHeader) -> bool:
        """Whether this began in the same format, with a header that spells the same bytes."""
        same = header is self._header or typed_json.canonical(header) == typed_json.canonical(
            self._header
        )
        return format_ is self._format and same


@attrs.frozen
class Encoded:
    """One request, ready to seal: the body, both digests, and what it shares with the last one."""

    body: bytes = attrs.field(repr=False)
    request_digest: str
    wire_digest: str
    shared_prefix_bytes: int


class RequestEncoder:
    """Encodes the requests of one session, one after the other.

    A request costs its new messages and one copy of the body. Another format, another header or a
    replacement (a new `generation`) starts anew; what the body shares with the one before is
    counted all the same.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._ending = b""
        self._continued: Continued | None = None
        self._generation = 0
        self._count = 0

    def encode(
        self,
        format_: WireFormat,
        header: EpochHeader,
        derived: Sequence[Message],
        generation: int = 0,
    ) -> Encoded:
        """The request of `header` and the derived messages; `generation` is the surface's."""
        previous, continued = None, self._continued
        if (
            continued is None
            or generation != self._generation
            or not continued.continues(format_, header)
        ):
            previous, kept = bytes(self._kept) + self._ending, bytearray()
            # A header that this format refuses leaves the encoding as it was.
            continued = Continued(format_, header, kept.extend)
            self._kept, self._continued = kept, continued
            self._generation, self._count = generation, 0
        final, ending = len(self._kept), self._ending
        for message in derived[self._count :]:
            continued.add(message)
        self._count = len(derived)
        self._ending = continued.ending()
        body = b"".join((self._kept, self._ending))
        if previous is None:
            shared = final + common_prefix(ending, body[final : final + len(ending)])
        else:
            shared = common_prefix(previous, body)
        digests = continued.digests()
        return Encoded(body, digests.request, digests.wire, shared)


def encode_request(request: Request, format_: WireFormat) -> Encoded:
    """One request by itself, from its first byte."""
    return RequestEncoder().encode(format_, request.header, request.derived)
