"""The envelope of a record: drafts that may become events, and events.

An `Event` carries its own encoded bytes, made once: the same bytes go to disk, to clients and
into digests. Its typed data is built when it is first asked for.

Nothing is written that a reader would not take, or would take for something else: `draft` encodes
what it is given, structures that back as a reader does, and keeps what came of it. So whatever a
caller says wrong is refused in the caller's own task, the log writer meets no value that it cannot
encode, and a live fold sees the object that a replay will see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import attrs
import orjson

from refold.runtime import typed_json
from refold.runtime.errors import InvalidEvent, LegacyEvent
from refold.runtime.events import BUILT_IN, CATALOGUE, LEGACY_TYPE, SURFACE, UnknownEvent, type_of
from refold.runtime.json import Json, encode
from refold.runtime.odd_events import read_odd

HEADER_REASONS = ("initial", "resume", "change")


@attrs.frozen
class Replace:
    """Take the place of the surface nodes from `start` to `end`, inclusive, by position."""

    start: int
    end: int


SurfaceOp: TypeAlias = Literal["append"] | Replace


@attrs.frozen
class Event:
    """One record of a log; equal to another when their bytes are."""

    type: str = attrs.field(eq=False)
    seq: int = attrs.field(eq=False)
    time: int = attrs.field(eq=False)
    source_event_seqs: tuple[int, ...] | None = attrs.field(eq=False)
    surface_op: SurfaceOp | None = attrs.field(eq=False)
    encoded: bytes = attrs.field(repr=False)
    _known: object = attrs.field(default=None, eq=False, repr=False, alias="known")

    @cached_property
    def data(self) -> Any:
        """The typed data: a class of the catalogue, or `UnknownEvent`.

        A structural event of another version has what `refold.runtime.odd_events` reads of it.
        """
        if self._known is not None:
            return self._known
        data = orjson.loads(self.encoded)["data"]
        typed = _structure(self.type, data, self.seq)
        if isinstance(typed, UnknownEvent):
            return read_odd(self.type, data) or typed
        return typed


@attrs.frozen
class InBatch:
    """The event that the draft at `index` (from 0) of the same `append` becomes, for `cites`."""

    index: int


@attrs.frozen
class Draft:
    """An event that has no place in a log yet; checked and encoded when `draft` makes it.

    `siblings` are the drafts of its own batch that it cites beside `source_event_seqs`.
    """

    type: str
    data: Any
    encoded_data: bytes = attrs.field(repr=False)
    source_event_seqs: tuple[int, ...] | None = None
    surface_op: SurfaceOp | None = None
    siblings: tuple[int, ...] = ()

    def placed(self, first: int) -> Draft:
        """This draft in a batch whose first event gets the seq `first`; raises `InvalidEvent`."""
        if not self.siblings:
            return self
        cited = (*(self.source_event_seqs or ()), *(first + at for at in self.siblings))
        made = attrs.evolve(self, source_event_seqs=cited, siblings=())
        _check_surface_fields(made, None)
        return made

    def at(self, seq: int, time: int) -> Event:
        """The event that this draft becomes at `seq`, with `time` in epoch ms as its label."""
        cited, surface_op, fields = self.source_event_seqs, self.surface_op, b""
        if cited is not None:
            fields = b',"sourceEventSeqs":' + orjson.dumps(cited)
        if isinstance(surface_op, Replace):
            op = {"op": "replace", "start": surface_op.start, "end": surface_op.end}
            fields += b',"surfaceOp":' + orjson.dumps(op)
        elif surface_op is not None:
            fields += b',"surfaceOp":"append"'
        head = b'{"type":%b,"seq":%d,"time":%d,"data":' % (orjson.dumps(self.type), seq, time)
        encoded = b"%b%b%b}" % (head, self.encoded_data, fields)
        return Event(self.type, seq, time, cited, surface_op, encoded, self.data)


def draft(
    data: object,
    *,
    cites: Sequence[int | InBatch] | None = None,
    replaces: Replace | None = None,
) -> Draft:
    """A draft of typed `data`; surface types are appended unless they replace something.

    `cites` are the seqs that this event was made from, or drafts of the batch that it is appended
    with. The draft's `data` is what a reader will find: lists are tuples in it. Raises
    `NotLosslessJson`, and `InvalidEvent` for what no reader would take as such an event.
    """
    type_ = type_of(data)
    try:
        encoded, read = typed_json.read_back(data, own=type_ in BUILT_IN)
    except typed_json.Misfit as misfit:
        raise InvalidEvent(type_, f"does not have the shape of its type: {misfit}") from None
    surface_op: SurfaceOp | None = None
    if type_ in SURFACE:
        surface_op = "append" if replaces is None else _checked_range(replaces, type_)
    elif cites is not None or replaces is not None:
        raise InvalidEvent(type_, "is log-only and cannot carry surface fields")
    if cites is None:
        return Draft(type_, read, encoded, None, surface_op)
    seqs, siblings = _checked_cites(cites, type_)
    return Draft(type_, read, encoded, seqs, surface_op, siblings)


def _checked_cites(
    cites: Sequence[int | InBatch], type_: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The seqs and the siblings among `cites`."""
    seqs: list[int] = []
    siblings: list[int] = []
    for cited in cites if isinstance(cites, list | tuple) else (None,):
        at = cited.index if isinstance(cited, InBatch) else cited
        if type(at) is not int or at < 0:
            raise InvalidEvent(type_, "cites what is neither a seq nor a draft of its batch")
        (siblings if isinstance(cited, InBatch) else seqs).append(at)
    if (not seqs and not siblings) or len({*seqs}) < len(seqs) or len({*siblings}) < len(siblings):
        raise InvalidEvent(type_, "cites nothing, or something twice")
    return tuple(seqs), tuple(siblings)


def _checked_range(replaces: Replace, type_: str) -> Replace:
    ends = (replaces.start, replaces.end) if type(replaces) is Replace else ()
    if not ends or any(type(end) is not int or end < 0 for end in ends):
        raise InvalidEvent(type_, "replaces what is not a range from one seq to another")
    return replaces


def parse_draft(record: Mapping[str, Any]) -> Draft:
    """A draft from its JSON form: `type`, `data`, and `sourceEventSeqs`, `surfaceOp` where given.

    `data` is kept as it is. Raises `LegacyEvent`, `InvalidEvent`, `NotLosslessJson`.
    """
    type_, data, seqs, surface_op = _parse_fields(record, None)
    encoded = encode(data)
    typed = _structure(type_, data, None)
    if isinstance(typed, UnknownEvent) and type_ in CATALOGUE:
        raise InvalidEvent(type_, "does not have the fields of its type")
    return Draft(type_, typed, encoded, seqs, surface_op)


def decode_event(record: Mapping[str, Any], encoded: bytes) -> Event:
    """An event from a parsed stored record and its own bytes (without framing).

    Surface events and headers are checked whole at once; the data of log-only events is built
    when asked for. Raises `LegacyEvent`, `InvalidEvent`.
    """
    seq, time = record.get("seq"), record.get("time")
    type_, data, seqs, surface_op = _parse_fields(record, seq)
    if type(seq) is not int or seq < 0 or type(time) is not int:
        raise InvalidEvent(type_, "needs an integer seq from 0 and an integer time", None)
    known = None
    if type_ in SURFACE or type_ == "request/header":
        known = _structure(type_, data, seq)
    return Event(type_, seq, time, seqs, surface_op, encoded, known)


def decode_line(line: bytes) -> Event:
    """An event from the bytes of one unframed record; raises as `decode_event` does."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidEvent("?", f"is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise InvalidEvent("?", "is not a JSON object")
    return decode_event(record, line)


_JUDGED = frozenset({*SURFACE, LEGACY_TYPE, "request/header"})

_PLAIN = frozenset({"type", "seq", "time", "data"})

_ENVELOPE = frozenset({"type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp"})


def _parse_fields(
    record: Mapping[str, Any], seq: int | None
) -> tuple[str, Any, tuple[int, ...] | None, SurfaceOp | None]:
    type_ = record.get("type")
    if not isinstance(type_, str) or "data" not in record:
        raise InvalidEvent(str(type_), "needs a type and data", seq)
    if record.keys() == _PLAIN and type_ not in _JUDGED:
        return type_, record["data"], None, None
    refuse_legacy(type_, record["data"], seq)
    if not record.keys() <= _ENVELOPE:
        unknown = ", ".join(sorted(record.keys() - _ENVELOPE))
        problem = f"has unknown envelope fields: {unknown}; if a newer refold wrote it, upgrade"
        raise InvalidEvent(type_, problem, seq)
    fields = _Fields(type_, _parse_seqs(record, type_, seq), _parse_op(record, type_, seq))
    _check_surface_fields(fields, seq)
    return type_, record["data"], fields.source_event_seqs, fields.surface_op


@attrs.frozen
class _Fields:
    type: str
    source_event_seqs: tuple[int, ...] | None
    surface_op: SurfaceOp | None


def refuse_legacy(type_: str, data: object, seq: int | None) -> None:
    """Raise `LegacyEvent` for header vocabulary that is refused everywhere.

    Who passed over it would fold another header than its writer sent.
    """
    if type_ == LEGACY_TYPE:
        raise LegacyEvent(type_, LEGACY_TYPE, seq)
    if type_ == "request/header":
        reason = data.get("reason") if isinstance(data, Mapping) else None
        if reason not in HEADER_REASONS:
            raise LegacyEvent(type_, f"request/header with reason {reason!r}", seq)


def _parse_seqs(record: Mapping[str, Any], type_: str, seq: int | None) -> tuple[int, ...] | None:
    if "sourceEventSeqs" not in record:
        return None
    seqs = record["sourceEventSeqs"]
    if not isinstance(seqs, list | tuple) or any(type(s) is not int or s < 0 for s in seqs):
        raise InvalidEvent(type_, "has sourceEventSeqs that is not a list of seqs", seq)
    return tuple(seqs)


def _parse_op(record: Mapping[str, Any], type_: str, seq: int | None) -> SurfaceOp | None:
    if "surfaceOp" not in record:
        return None
    op = record["surfaceOp"]
    if op == "append":
        return "append"
    if isinstance(op, Mapping) and op.keys() == {"op", "start", "end"} and op["op"] == "replace":
        start, end = op["start"], op["end"]
        if all(type(value) is int and value >= 0 for value in (start, end)):
            return Replace(start, end)
    raise InvalidEvent(type_, "has a surfaceOp that is neither append nor a replacement", seq)


_NO_MESSAGE = (
    "is log-only here and cannot carry surface fields; if a newer refold wrote it as a message, "
    "upgrade"
)


def _check_surface_fields(event: Draft | _Fields, seq: int | None) -> None:
    if event.type in SURFACE:
        if event.surface_op is None:
            raise InvalidEvent(event.type, "is a surface event and lacks its surfaceOp", seq)
    elif event.surface_op is not None or event.source_event_seqs is not None:
        raise InvalidEvent(event.type, _NO_MESSAGE, seq)
    seqs = event.source_event_seqs
    if seqs is not None and (not seqs or len(set(seqs)) != len(seqs)):
        raise InvalidEvent(event.type, "has sourceEventSeqs that is empty or has doubles", seq)


def _structure(type_: str, data: object, seq: int | None) -> object:
    cls = CATALOGUE.get(type_)
    try:
        if cls is not None:
            return typed_json.structure(data, cls)
    except typed_json.Misfit as misfit:
        if type_ in SURFACE or type_ == "request/header":
            raise InvalidEvent(
                type_, f"does not have the shape of its type: {misfit}", seq
            ) from None
    return UnknownEvent(Json.of(data))
