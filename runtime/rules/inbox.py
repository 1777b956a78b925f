"""The inbox: a session's durable pending input, its order, and rule 9.

An entry is pending while no message cites it and no `inbox/removed` names it. What is pending at a
fork's beginning is its parent's and stays with it, as do the keys: see `leave_parent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

import attrs

from refold.runtime.envelope import Draft, Event
from refold.runtime.errors import Refused
from refold.runtime.events import InboxQueued, InboxRemoved, TurnStart
from refold.runtime.messages import Block
from refold.runtime.rules.table import Problem

KINDS, TARGETS = ("prompt", "steer", "inject"), ("turn", "step")
"""Of the entries that this version can turn into messages."""


@attrs.define(eq=False)
class KeyUsed(Refused):
    """An idempotency key that the log knows already; the first entry under it stands at `seq`."""

    key: str
    seq: int

    def __str__(self) -> str:
        return f"the idempotency key {self.key!r} was used at seq {self.seq}, whose answer stands"


@attrs.define(eq=False)
class KeyConflict(Refused):
    """An idempotency key under which something else was said first, at `seq`."""

    key: str
    seq: int

    def __str__(self) -> str:
        return (
            f"under the idempotency key {self.key!r} something else was said at seq {self.seq}; "
            "a key stands for one input: say this under a key of its own"
        )


def next_prompts(waiting: Mapping[int, InboxQueued], *, steered: bool) -> frozenset[int]:
    """The prompts that one turn takes of what waits, in the order in which it came.

    Those that may be joined go together up to the first that wants a turn of its own, which then
    goes alone. Steering that waits too, as `steered` says, goes before such a one.
    """
    prompts = {seq: bool(one.own_turn) for seq, one in waiting.items() if one.kind == "prompt"}
    joined = list(takewhile(lambda seq: not prompts[seq], prompts))
    return frozenset(joined if joined or steered else list(prompts)[:1])


@attrs.frozen
class InboxMark:
    pending: dict[int, InboxQueued]
    foreign: frozenset[int] = frozenset()
    taken: tuple[bool, ...] = ()


@attrs.frozen
class Known:
    """The first entry under a key: its seq, and a hash of its content for this process."""

    seq: int
    _content: int

    def has(self, content: tuple[Block, ...]) -> bool:
        """Whether that entry said the same."""
        return hash(content) == self._content


class Inbox:
    """The live fold; `pending` keeps the order in which entries were queued."""

    def __init__(self) -> None:
        self._pending: dict[int, InboxQueued] = {}
        self._foreign: set[int] = set()  # pending too, of a kind that no turn here can take
        self._queued: set[int] = set()
        self._by_key: dict[str, Known] = {}
        self._taken: tuple[bool, ...] = ()
        """Of each prompt that the last turn took, whether it wanted a turn of its own.

        A recovery turn goes on with those of the turn before it.
        """

    @property
    def pending(self) -> Mapping[int, InboxQueued]:
        """What a turn may take; not what another version queued as a kind of its own."""
        return self._pending

    def leave_parent(self) -> None:
        """Forget every entry and key: what follows is a fork's own."""
        self._pending.clear()
        self._foreign.clear()
        self._queued.clear()
        self._by_key.clear()
        self._taken = ()

    def first(self, idempotency_key: str | None) -> Known | None:
        """The entry that was queued under this key first, pending or not."""
        return None if idempotency_key is None else self._by_key.get(idempotency_key)

    def said(self, entry: InboxQueued) -> int | None:
        """The seq at which the same was said first under the entry's key, pending or not.

        None for a key that is new, or without one; raises `KeyConflict` where something else was.
        """
        key = entry.idempotency_key
        first = None if key is None else self._by_key.get(key)
        if key is None or first is None:
            return None
        if not first.has(entry.content):
            raise KeyConflict(key, first.seq)
        return first.seq

    def problem(self, event: Draft | Event) -> Problem:
        named = self._named(event)
        gone = [seq for seq in named if seq not in self._pending and seq not in self._foreign]
        if gone:
            return 9, f"inbox entry {gone[0]} is not pending"
        new = self._takes(event)
        taken = (*self._taken, *new)
        if new and len(taken) > 1 and any(taken):
            return 9, "a prompt with a turn of its own would share it with another one"
        return None

    def apply(self, event: Event) -> None:
        if isinstance(event.data, TurnStart) and event.data.trigger.kind != "recovery":
            self._taken = ()
        self._taken += self._takes(event)
        for seq in self._named(event):
            self._pending.pop(seq, None)
            self._foreign.discard(seq)
        data = event.data if event.type == "inbox/queued" else None
        if isinstance(data, InboxQueued):
            if data.kind in KINDS and data.target in TARGETS:
                self._pending[event.seq] = data
            else:
                self._foreign.add(event.seq)
            self._queued.add(event.seq)
            if data.idempotency_key is not None:
                known = Known(event.seq, hash(data.content))
                self._by_key.setdefault(data.idempotency_key, known)

    def _named(self, event: Draft | Event) -> tuple[int, ...]:
        """The entries that `event` takes: as a message that cites them, or by removal."""
        if event.type == "inbox/removed" and isinstance(event.data, InboxRemoved):
            return event.data.queued_seqs
        if event.surface_op is None or not self._queued:
            return ()
        return tuple(seq for seq in event.source_event_seqs or () if seq in self._queued)

    def _takes(self, event: Draft | Event) -> tuple[bool, ...]:
        """Of each pending prompt that `event` cites, whether it wants a turn of its own."""
        if event.type == "inbox/removed":
            return ()
        cited = [self._pending[seq] for seq in self._named(event) if seq in self._pending]
        return tuple(bool(entry.own_turn) for entry in cited if entry.kind == "prompt")

    def mark(self) -> InboxMark:
        return InboxMark(dict(self._pending), frozenset(self._foreign), self._taken)

    def restore(self, mark: InboxMark, next_seq: int) -> None:
        """Forget every event from `next_seq` on."""
        late = {seq for seq in self._queued if seq >= next_seq}
        self._queued -= late
        self._by_key = {key: at for key, at in self._by_key.items() if at.seq not in late}
        self._pending, self._foreign = dict(mark.pending), set(mark.foreign)
        self._taken = mark.taken
