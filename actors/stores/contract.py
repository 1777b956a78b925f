"""The contract of a store (design 5.1).

There is no "unknown" outcome: a store resolves it or keeps waiting, and an append whose outcome
cannot be known poisons its grant. Reading never needs a grant and never changes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from runtime.envelope import Event
from runtime.events import SessionRecovered
from runtime.storage.header import SessionHeader
from runtime.storage.reader import LogReader


class Grant(Protocol):
    """The right to append to one log; taking it fenced every older one."""

    @property
    def header(self) -> SessionHeader: ...

    @property
    def term(self) -> int:
        """The fencing number, one more than the last owner's."""
        ...

    @property
    def recovered(self) -> SessionRecovered | None:
        """What taking the grant cut from a torn tail."""
        ...

    def events(self) -> Iterator[Event]:
        """The events that stood in the log when the grant was taken."""
        ...

    async def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        """Add one batch of encoded events, all or none, the first at `expected_seq`.

        Not cancellable. Raises `SeqMismatch`, `StoreFull` (nothing was kept), `LogFailed`.
        """
        ...

    async def sync(self) -> int:
        """Make what was appended durable; returns the highest durable seq.

        Not cancellable. Raises `LogFailed`, after which nothing is tried again.
        """
        ...

    async def release(self, reason: str) -> None:
        """Give the log back; safe to call again."""
        ...


class Store(Protocol):
    """Sessions by id."""

    async def create(self, header: SessionHeader) -> Grant:
        """A new session; raises `AlreadyExists`. It leaves no trace before its first append."""
        ...

    async def acquire(self, session_id: str) -> Grant:
        """Open for writing and repair; raises `NotFound`, `SessionBusy`, `LogCorrupt`."""
        ...

    async def fork(self, source: str, at: int | None, header: SessionHeader) -> SessionHeader:
        """Copy `source` up to the `turn/end` at seq `at` (None: the last); no event is decoded."""
        ...

    async def list(self) -> list[str]: ...

    def reader(self, session_id: str) -> LogReader:
        """Follow a log through a descriptor of its own."""
        ...

    def report(self, session_id: str, name: str, content: bytes) -> str | None:
        """Keep a report beside the log; returns where, None where the store has no such place."""
        ...
