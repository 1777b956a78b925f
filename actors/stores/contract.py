"""The contract of a store.

There is no "unknown" outcome: a store resolves it or keeps waiting, and an append whose outcome
cannot be known poisons its grant. Reading never needs a grant and never changes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import attrs

from refold.runtime.envelope import Event
from refold.runtime.errors import Broken
from refold.runtime.events import SessionRecovered
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import Durability, SessionHeader


@attrs.frozen
class Progress:
    """The highest seqs that are written, and durable at the log's level; -1 for none."""

    written_seq: int
    durable_seq: int


class Grant(Protocol):
    """The right to append to one log; taking it fenced every older one."""

    @property
    def header(self) -> SessionHeader: ...

    @property
    def durability(self) -> Durability:
        """What its acknowledged events survive; what the header says, if not `strengthen`ed."""
        ...

    def strengthen(self, durability: Durability) -> None:
        """Acknowledge only what survives that, too; for before the first event."""
        ...

    @property
    def term(self) -> int:
        """The fencing number, one more than the last owner's."""
        ...

    @property
    def recovered(self) -> SessionRecovered | None:
        """What taking the grant cut from a torn tail."""
        ...

    @property
    def durable_seq(self) -> int:
        """The highest seq that is durable at the log's level; -1 for none."""
        ...

    def events(self, earlier: Collection[str]) -> Iterator[Event]:
        """The events that stood in the log when the grant was taken, in order.

        Those that are not of the `earlier` types may be left out before the last sealed step, but
        for what a reader of the whole log would refuse: it must be refused here, too.
        """
        ...

    def watch(self, callback: Callable[[Progress], None]) -> None:
        """Call `callback` on the Trio thread whenever more is written or durable."""
        ...

    async def failed(self) -> Broken:
        """Wait until the log has failed, which may never be; what is raised from then on."""
        ...

    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        """Send one batch of encoded events on its way, the first at `expected_seq`.

        It will be in the log whole or not at all, behind every earlier one. Raises `EmptyBatch`,
        `SeqMismatch`, `LogClosed` after `release`, and what an earlier write or sync failed with.
        """
        ...

    async def sync(self) -> int:
        """Make what was appended durable at the log's level; returns the highest such seq.

        Not cancellable. Raises `StoreFull`, `Unavailable`, `LogFailed` or `Fenced`; nothing is
        tried again after any of them. Raises `LogClosed` after `release`.
        """
        ...

    async def release(self) -> None:
        """Give the log back; safe to call again. Its last event says why: `session/released`."""
        ...


class Store(Protocol):
    """Sessions by id."""

    async def create(self, header: SessionHeader) -> Grant:
        """A new session; raises `AlreadyExists`. It leaves no trace before its first append."""
        ...

    async def acquire(self, session_id: str) -> Grant:
        """Open for writing and repair; raises `NotFound`, `SessionBusy`, `LogCorrupt`."""
        ...

    async def fork(self, source: str, at: int | None, header: SessionHeader) -> None:
        """Copy `source` up to the `turn/end` at seq `at` (None: the last); no event is decoded."""
        ...

    async def delete(self, session_id: str) -> None:
        """Remove a session with all that is kept of it; raises `NotFound`, `SessionBusy`."""
        ...

    async def list(self) -> list[str]: ...

    def reader(self, session_id: str) -> LogReader:
        """Follow a log through a descriptor of its own."""
        ...

    async def close(self) -> None:
        """Finish what was sent on its way; for when every grant is released."""
        ...

    def report(self, session_id: str, name: str, content: bytes) -> str | None:
        """Keep a report beside the log; returns where, None where the store has no such place.

        Nobody but its owner can read it, and nothing that is there already is written to. Raises
        `OSError` where it cannot be kept.
        """
        ...
