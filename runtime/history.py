"""A session: one log with its surface, header and derived messages.

`History` accepts or refuses one event by its envelope, the surface rules and the legacy rules;
the relational rules between events live in `refold.runtime.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from refold.runtime.envelope import Draft, Event
from refold.runtime.errors import SeqGap
from refold.runtime.messages import Message
from refold.runtime.projection import derive_event_message
from refold.runtime.request_header import EpochHeader, RequestHeader
from refold.runtime.surface import SurfaceManager, SurfaceMark


@attrs.frozen
class Mark:
    """A moment of a session: replacements make new lists, so old ones only need to be cut."""

    surface: SurfaceMark
    lists: tuple[tuple[list[Any], int], ...]
    header: EpochHeader | None
    next_seq: int


@attrs.frozen
class PastMessages:
    """The messages that a session derived at one moment, whatever it appends or replaces later.

    A replacement makes a new list, so an old one only needs to be cut.
    """

    _kept: list[Message] = attrs.field(factory=list)
    _count: int = 0

    def derive_messages(self) -> tuple[Message, ...]:
        return tuple(self._kept[: self._count])


class History:
    """One log in memory, folded as it grows.

    `retain=False` keeps the folds and lets the events go: a writer's session, whose events stand
    in the store. A refused event leaves the log, the surface, the caches and the header as they
    were.
    """

    def __init__(self, events: Iterable[Event] = (), *, retain: bool = True) -> None:
        self._events: list[Event] | None = [] if retain else None
        self._surface = SurfaceManager()
        self._projected: list[Message | None] = []  # beside the surface's nodes, one for one
        self._messages: list[Message] = []
        self._header: EpochHeader | None = None
        self._next_seq = 0
        for event in events:
            self.replay(event)

    @property
    def events(self) -> Sequence[Event]:
        """Every event so far; only of a session that retains them."""
        assert self._events is not None, "this session keeps folds only"
        return self._events

    @property
    def next_seq(self) -> int:
        return self._next_seq

    @property
    def surface(self) -> SurfaceManager:
        return self._surface

    @property
    def header(self) -> EpochHeader | None:
        """The latest request header snapshot."""
        return self._header

    def check(self, draft: Draft) -> tuple[int, ...]:
        """Refuse `draft` as the next event, or return the nodes that it would replace."""
        return self._surface.shadowed(draft, self._next_seq)

    def append(self, draft: Draft, time: int) -> Event:
        """Commit `draft` as the next event, labelled with `time` (epoch ms); raises its refusal."""
        self.check(draft)
        event = draft.at(self._next_seq, time)
        self.take(event)
        return event

    def replay(self, event: Event) -> None:
        """Commit a stored event; raises `SeqGap` or the refusal that an append would meet."""
        if event.seq != self._next_seq:
            raise SeqGap(self._next_seq, event.seq)
        self._surface.shadowed(event, event.seq)
        self.take(event)

    def pass_over(self, seq: int) -> None:
        """Go on at `seq`: what stands before it, and was not replayed, is in no fold."""
        assert seq >= self._next_seq
        assert self._events is None, "a session that retains its events has them all"
        self._next_seq = seq

    def mark(self) -> Mark:
        """This moment, for `restore`; costs the same however long the log is."""
        lists = (self._projected, self._messages, [] if self._events is None else self._events)
        kept = tuple((items, len(items)) for items in lists)
        return Mark(self._surface.mark(), kept, self._header, self._next_seq)

    def restore(self, mark: Mark) -> None:
        """Forget every event since `mark`, as if it had been refused."""
        for items, length in mark.lists:
            del items[length:]
        self._projected, self._messages = mark.lists[0][0], mark.lists[1][0]
        self._surface.restore(mark.surface)
        self._header, self._next_seq = mark.header, mark.next_seq

    def take(self, event: Event) -> None:
        """Fold the next event, which `check` let pass."""
        if event.surface_op is not None:
            message = derive_event_message(event)
            replaced = self._surface.apply(event)
            if replaced is None:
                self._projected.append(message)
                if message is not None:
                    self._messages.append(message)
            else:
                before, after = self._projected[: replaced.start], self._projected[replaced.stop :]
                self._projected = [*before, message, *after]
                self._messages = [kept for kept in self._projected if kept is not None]
        elif event.type == "request/header":
            assert isinstance(event.data, RequestHeader)
            self._header = event.data.header
        if self._events is not None:
            self._events.append(event)
        self._next_seq += 1

    def derive_messages(self) -> tuple[Message, ...]:
        """The messages of the surface in order: immutable, shared, in a tuple that never grows."""
        return tuple(self._messages)

    def derived_so_far(self) -> PastMessages:
        """Today's messages, for later; costs nothing now."""
        return PastMessages(self._messages, len(self._messages))
