"""A request and how it is rebuilt from a log.

Its messages come from the events strictly before the boundary, its header from the fold up to the
seal (docs/design/log.md, "Rebuilding a request").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import takewhile

import attrs

from refold.runtime import typed_json
from refold.runtime.envelope import Event
from refold.runtime.errors import NoRequestHeader, NoSuchStep
from refold.runtime.history import History
from refold.runtime.json import encode
from refold.runtime.messages import Message
from refold.runtime.request_header import EpochHeader, RequestHeader
from refold.runtime.standing import STEP_ENDS


@attrs.frozen
class Request:
    """What a model is asked, immutable all the way down: a header and the derived messages."""

    header: EpochHeader
    derived: tuple[Message, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages: the header's own prefix, then the derived ones."""
        return self.header.message_prefix + self.derived

    def canonical_bytes(self) -> bytes:
        """Compact JSON in the order config, system, tools, messages."""
        messages = b",".join(map(typed_json.canonical, self.messages))
        return canonical_head(self.header) + messages + CANONICAL_TAIL

    def digest(self) -> str:
        """The `requestDigest`: SHA-256 of the canonical bytes, as lowercase hex."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()


CANONICAL_TAIL = b"]}"


def canonical_head(header: EpochHeader) -> bytes:
    """The canonical bytes of a request up to its first message; no prefix messages in it."""
    fields = typed_json.unstructure(attrs.evolve(header, message_prefix=()))
    return encode(fields)[:-1] + b',"messages":['


def fold_request_header(
    events: Iterable[Event], start: EpochHeader | None = None
) -> EpochHeader | None:
    """The latest snapshot among `events`, else `start`."""
    folded = start
    for event in events:
        if isinstance(event.data, RequestHeader):
            folded = event.data.header
    return folded


_SEALING = STEP_ENDS | {"request/sealed", "assistant/chunk", "assistant/message", "tool/call"}


def rebuild_request(log: Iterable[Event], step_start_seq: int) -> Request:
    """The request of the step that starts at `step_start_seq`, from the log alone.

    Its messages are derived from the events strictly before the boundary; its header is the fold
    up to the step's `request/sealed`, or in logs without seals up to the step's first chunk,
    assistant message, call or end. Raises `NoSuchStep`, `NoRequestHeader`, and what `History`
    refuses.
    """
    events = iter(log)
    session = History(retain=False)
    for event in events:
        if event.seq == step_start_seq:
            if event.type != "step/start":
                break
            rest = takewhile(lambda event: event.type not in _SEALING, events)
            header = fold_request_header(rest, session.header)
            if header is None:
                raise NoRequestHeader(step_start_seq, session.derive_messages())
            return Request(header, session.derive_messages())
        session.replay(event)
    raise NoSuchStep(f"at seq {step_start_seq}")
