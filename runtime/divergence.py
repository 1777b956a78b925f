"""Comparing two requests by their bodies, and naming the event that made them part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import orjson

from refold.runtime.envelope import Event, Replace
from refold.runtime.errors import Refused
from refold.runtime.json_diff import Difference, compare_headers
from refold.runtime.prefix import common_prefix
from refold.runtime.projection import derive_event_message
from refold.runtime.request import Request, rebuild_request
from refold.runtime.request_header import EpochHeader, RequestHeader
from refold.runtime.step_names import StepSpan
from refold.runtime.surface import SurfaceManager
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.known_formats import FORMATS, UNSEALED
from refold.runtime.wire.request_encoder import Encoded, encode_request


@attrs.define(eq=False)
class UnknownCodec(Refused):
    """A request whose bytes this version cannot write."""

    codec: str
    step: str

    def __str__(self) -> str:
        return (
            f"step {self.step} was sent with codec {self.codec!r}, which this refold does not "
            f"know ({', '.join(FORMATS)}); read it with the version that wrote it"
        )


@attrs.frozen
class StepRequest:
    """A step's request, rebuilt from its log.

    `origins` holds, beside each derived message, the seq of the event that it was made from.
    """

    events: Sequence[Event] = attrs.field(repr=False)
    step: StepSpan
    request: Request
    origins: tuple[int, ...]

    @property
    def codec(self) -> str:
        """The codec that its seal names; without a seal, the one that would be used today."""
        return UNSEALED.name if self.step.seal is None else self.step.seal.codec

    @property
    def format(self) -> WireFormat:
        """Raises `UnknownCodec`."""
        if self.codec not in FORMATS:
            raise UnknownCodec(self.codec, self.step.name)
        return FORMATS[self.codec]

    def encode(self) -> Encoded:
        """The body and both digests; raises `UnknownCodec`."""
        return encode_request(self.request, self.format)


def rebuild_step(events: Sequence[Event], step: StepSpan) -> StepRequest:
    """The request of `step`; raises what `rebuild_request` raises."""
    request = rebuild_request(events, step.boundary)
    surface = SurfaceManager()
    for event in events[: step.boundary]:
        if event.surface_op is not None:
            surface.apply(event)
    projected = (seq for seq in surface.nodes if derive_event_message(events[seq]) is not None)
    return StepRequest(events, step, request, tuple(projected))


@attrs.frozen
class Divergence:
    """The first byte in which two bodies differ.

    `path` is a JSON pointer into the body. `cause` is the event that made it: the request header,
    a replacement, or the event of the first message that differs. It stands in the log of the
    second step; in one log, it is what happened between the two, whichever was named first.

    With `codecs` the history is the same there, and written in the second of the two where it was
    written in the first before; `cause` is the header of the loop instance that brought it.
    """

    offset: int
    path: str
    cause: Event
    codecs: tuple[str, str] | None = None


@attrs.frozen
class Comparison:
    """How two request bodies relate; `kept_bytes` of the first begin the second.

    `kept_share` leaves the first body's ending out, its `closing_bytes`: 1 means that nothing of it
    was lost.
    """

    bodies: tuple[bytes, bytes] = attrs.field(repr=False)
    kept_bytes: int
    kept_share: float
    divergence: Divergence | None
    closing_bytes: int
    header_drift: tuple[Difference, ...]

    @property
    def relation(self) -> str:
        """`same`, `continues` (the second the first), `precedes` or `diverges`."""
        one, other = self.bodies
        if self.divergence is not None:
            return "diverges"
        if one == other:
            return "same"
        return "continues" if len(one) < len(other) else "precedes"


def kept_share(kept_bytes: int, body_bytes: int, codec_name: str) -> float:
    """How much of a body begins the next one, 0 to 1; a body's fixed ending never counts."""
    closing = len(FORMATS[codec_name].closing) if codec_name in FORMATS else 0
    whole = body_bytes - closing
    return min(kept_bytes, whole) / whole if whole > 0 else 1.0


def compare_steps(one: StepRequest, other: StepRequest) -> Comparison:
    """Compare the wire bodies of two steps, of one log or of two; raises `UnknownCodec`."""
    bodies = one.encode().body, other.encode().body
    kept = common_prefix(*bodies)
    closing = len(one.format.closing)
    ends = len(bodies[0]) - closing, len(bodies[1]) - len(other.format.closing)
    divergence = None
    if kept < min(ends):
        divergence = _divergence(one, other, bodies, kept)
    drift = compare_headers(one.request.header, other.request.header)
    share = kept_share(kept, len(bodies[0]), one.codec)
    return Comparison(bodies, kept, share, divergence, closing, tuple(drift))


def _divergence(
    one: StepRequest, other: StepRequest, bodies: tuple[bytes, bytes], kept: int
) -> Divergence:
    path = _parting(orjson.loads(bodies[0]), orjson.loads(bodies[1]))
    earlier, later = _in_log_order(one, other)
    if one.codec != other.codec:
        rewritten = encode_request(one.request, other.format).body
        if common_prefix(rewritten, bodies[1]) > kept:  # in one codec they would not part there
            return Divergence(kept, path, _instance(later), (one.codec, other.codec))
    return Divergence(kept, path, _cause(earlier, later, path, kept))


def _instance(side: StepRequest) -> Event:
    """The header event with which the loop instance that made the request of `side` began."""
    headers = [event for event, _ in _headers_up_to_request(side)]
    return next((one for one in headers if one.data.reason != "change"), headers[-1])


def _parting(one: Any, other: Any, path: str = "") -> str:
    """The JSON pointer at which two values that differ part, in the order of their bytes."""
    if isinstance(one, dict) and isinstance(other, dict):
        for (key, value), (key_there, value_there) in zip(one.items(), other.items(), strict=False):
            if key != key_there:
                return _pointer(path, key_there if key in other else key)
            if orjson.dumps(value) != orjson.dumps(value_there):
                return _parting(value, value_there, _pointer(path, key))
        longer = max(one, other, key=len)
        return _pointer(path, list(longer)[min(len(one), len(other))])
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(map(orjson.dumps, one), map(orjson.dumps, other), strict=False)
        shared = min(len(one), len(other))
        index = next((i for i, (left, right) in enumerate(pairs) if left != right), shared)
        deeper = index < shared
        return (
            _parting(one[index], other[index], f"{path}/{index}") if deeper else f"{path}/{index}"
        )
    return path


def _pointer(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _in_log_order(one: StepRequest, other: StepRequest) -> tuple[StepRequest, StepRequest]:
    if one.events is other.events and other.step.boundary < one.step.boundary:
        return other, one
    return one, other


def _cause(one: StepRequest, other: StepRequest, path: str, offset: int) -> Event:
    index = _derived_index(other, path)
    if index is None or index != _derived_index(one, path):
        return _header_behind(other, offset)
    left, right = (side.events[side.origins[index]] for side in (one, other))
    if derive_event_message(left) == derive_event_message(right):
        return _header_behind(other, offset)
    if isinstance(right.surface_op, Replace):
        return right
    return _what_took_away(left, other) or right


def _derived_index(side: StepRequest, path: str) -> int | None:
    """Which derived message a pointer leads into; None for the header's part of the body."""
    _, field, *rest = path.split("/")
    if field != "messages" or not rest:
        return None
    header = side.request.header
    index = int(rest[0]) - bool(header.system) - len(header.message_prefix)
    return index if index >= 0 else None


def _header_behind(side: StepRequest, offset: int) -> Event:
    """The header event that first wrote what the body of `side` has at `offset`."""
    cause = None
    for event, header in _headers_up_to_request(side):
        if _writes_the_same(side, header, offset):
            cause = event
        elif cause is not None:
            break
    assert cause is not None, "a request is rebuilt with a header that its log holds"
    return cause


def _writes_the_same(side: StepRequest, header: EpochHeader, offset: int) -> bool:
    """Whether `header` puts at `offset` what the header of `side` puts there."""
    own = side.request.header
    opening = _opening(side, own)
    if offset < len(opening):
        return common_prefix(_opening(side, header), opening) > offset
    return header == own  # past its own bytes, a header decides how messages are written


def _headers_up_to_request(side: StepRequest) -> Iterator[tuple[Event, EpochHeader]]:
    """The header events before the end of the step, the last one first."""
    for event in reversed(side.events[: side.step.end]):
        if isinstance(event.data, RequestHeader):
            yield event, event.data.header


def _opening(side: StepRequest, header: EpochHeader) -> bytes:
    """What a header alone writes at the start of a body."""
    encoded = encode_request(Request(header, ()), side.format)
    return encoded.body.removesuffix(side.format.closing)


def _what_took_away(event: Event, side: StepRequest) -> Event | None:
    """The replacement before `side`'s request that shadowed `event`, if its log holds it."""
    if event.seq >= len(side.events) or side.events[event.seq] != event:
        return None
    surface = SurfaceManager()
    for later in side.events[: side.step.boundary]:
        if later.surface_op is not None:
            if event.seq in surface.shadowed(later, later.seq):
                return later
            surface.apply(later)
    return None
