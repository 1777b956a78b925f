"""What a store on this machine is, synchronously, whatever keeps its sessions.

The engine uses `LocalStore`; commands use what `MaintainedStore` adds. A kind of store is a folder
of its own beside this, and a row in `kinds`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import attrs

from refold.runtime.errors import Broken
from refold.runtime.events import SessionOwner, SessionRecovered
from refold.runtime.storage.beside import Sidecars
from refold.runtime.storage.errors import LogFailed
from refold.runtime.storage.lines import StoredRecords
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.scan import Scan
from refold.runtime.storage.session_header import SessionHeader

_log = logging.getLogger("refold")

Batches: TypeAlias = Sequence[Sequence[bytes]]


class Log(Protocol):
    """The writer of one log, for one thread at a time; see `JsonlLog` for what each raises."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    @property
    def header(self) -> SessionHeader: ...
    @property
    def records(self) -> StoredRecords:
        """What stood in the log when it was opened."""
        ...

    @property
    def recovered(self) -> SessionRecovered | None: ...
    @property
    def last_owner(self) -> SessionOwner | None: ...
    @property
    def term(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def durable_seq(self) -> int: ...
    def append(self, *batches: Sequence[bytes]) -> None: ...
    def sync(self) -> int: ...
    def close(self) -> None: ...


Failures: TypeAlias = dict[Log, Broken]

SideBySide: TypeAlias = Callable[[Sequence[Callable[[], Failures]]], Iterable[Failures]]
"""How several syncs are done at once."""


@attrs.frozen
class Done:
    """Which logs failed in a round, and how many writes and syncs it took."""

    failures: Failures
    writes: int = 0
    syncs: int = 0


class Rounds(Protocol):
    """How a kind of store writes and syncs many of its logs in one go; for one thread at a time.

    A log that has failed fails alone, unless nobody can know what became of the others.
    """

    def write(self, works: Sequence[tuple[Log, Batches]], *, durable: bool) -> Done:
        """Write the batches of each; with `durable`, sync them if that comes with it."""
        ...

    def sync(self, logs: Sequence[Log], side_by_side: SideBySide) -> Done:
        """Make what was written to these durable, where it is not."""
        ...

    def stop(self) -> None:
        """Give back what rounds hold."""
        ...


def contained(logs: Sequence[Log], work: Callable[[], object]) -> dict[Log, Broken]:
    """What these logs failed with in `work`: what it raises is the failure of each.

    A surprise is logged with its traceback and is the end of these logs; whatever it is, other
    logs go on, and so does the thread that works for all of them.
    """
    try:
        work()
    except Broken as failure:
        return dict.fromkeys(logs, failure)
    except Exception as surprise:  # noqa: BLE001 - it is logged, and told to whoever waits
        _log.exception("%s met an unexpected error", ", ".join(log.name for log in logs))
        reason = f"{type(surprise).__name__}: {surprise}"
        return {log: LogFailed(log.name, reason, log.durable_seq) for log in logs}
    return {}


class LocalStore(Protocol):
    """The sessions of one store, as the engine uses it.

    Every method raises `InvalidSessionId` for an id that is none, `StoreRefused` for files that
    cannot be trusted, and `Unavailable` where the operating system refuses. Reading never takes a
    lock and never changes a log.
    """

    @property
    def rounds(self) -> Rounds:
        """How its open logs are written, many at a time."""
        ...

    def create(self, header: SessionHeader) -> Log:
        """A new log, locked, which leaves no trace before its first append.

        Raises `AlreadyExists`, `SessionBusy`, `NotLosslessJson`.
        """
        ...

    def open(self, session_id: str) -> Log:
        """Lock a log, fence its older owners, repair its tail and make what stands durable.

        Raises `NotFound`, `SessionBusy`, `LogCorrupt`, `LegacyEvent`, `ForeignLog`, `StoreFull`,
        and what `parse_header` raises.
        """
        ...

    def reader(self, session_id: str) -> LogReader:
        """A reader that follows one log; raises `NotFound` while nothing was appended."""
        ...

    def fork(self, source_id: str, seq: int | None, header: SessionHeader) -> None:
        """Make the session of `header` from the events of another up to its `turn/end` at `seq`.

        By default that is the last one. The bytes are copied as they are, no event is decoded, and
        the fork is durable when this returns. A log that is damaged can be forked before the
        damage, where `seq` says so. Raises `NoForkPoint`, `AlreadyExists`,
        `SessionBusy`, `ForeignLog`, `StoreFull` and what `read` raises of the source.
        """
        ...

    def delete(self, session_id: str) -> None:
        """Remove a log with all that stands beside it; done again, it completes what a crash cut.

        Raises `NotFound`, `SessionBusy`.
        """
        ...

    def list(self) -> list[str]:
        """The ids of the sessions, damaged ones too, sorted."""
        ...

    def close(self) -> None:
        """Let go of what is shared; for when every log is closed."""
        ...


class MaintainedStore(LocalStore, Protocol):
    """What commands do with a store besides: look at its logs, judge them, copy and repair them."""

    @property
    def address(self) -> str:
        """What `open_sessions` finds it under."""
        ...

    @property
    def reports(self) -> Path:
        """The folder for reports; those of a session begin with its id and a dot and go with it."""
        ...

    def read(self, session_id: str) -> Scan:
        """What a log holds now; a torn tail is told in `Scan.torn` and left alone.

        Raises as `open` does, without `SessionBusy` and `ForeignLog`.
        """
        ...

    def raw(self, session_id: str) -> bytes:
        """The stored bytes of a log, header and lines, unjudged; raises `NotFound`.

        Of a SQLite file that is itself damaged, what can be read of them.
        """
        ...

    def adopt(self, header: SessionHeader, lines: bytes) -> None:
        """Make a session, durable and whole, from framed lines that `scan` was content with.

        Raises `AlreadyExists`, `SessionBusy`, `StoreFull`.
        """
        ...

    def replace(
        self, header: SessionHeader, lines: bytes, dropped: tuple[int, *tuple[bytes, ...]]
    ) -> str:
        """Put framed lines in the place of a damaged log; returns where a copy of it is kept.

        `dropped` is where the new log ends and what the next opening is to report: the bytes that
        stood behind what is kept, and a `lost_note`. Empty ones are passed over.
        Raises `NotFound`, `SessionBusy`, `StoreFull`.
        """
        ...

    def names(self) -> Sequence[str]:
        """What `list` gives, and whatever else is called as a log would be."""
        ...

    def problems(self) -> tuple[str, ...]:
        """What is wrong with what all sessions share, the first few, a line each.

        A SQLite file is read whole; reading sessions does not visit all its pages, and writing
        does. Nothing is shared in a folder.
        """
        ...

    def is_there(self) -> bool:
        """Whether anything was ever written under the store's address: its folder, or its file."""
        ...

    def vanished(self) -> Sequence[str]:
        """The ids, sorted, whose durable mark vouches for a log of which nothing is left.

        Nothing here removes a log before its mark.
        """
        ...

    def written_at(self, session_id: str) -> int:
        """When a log was last written to, in epoch ns; 0 where nobody knows.

        That is what its file says, or where it is none of its own, its last event or its header.
        """
        ...

    def write_number(self, session_id: str) -> int:
        """A number that grows with every write to any session of the store; 0 where none does.

        Of two sessions that with the larger one was written to later, whatever the clocks said. A
        folder has no such number.
        """
        ...

    def is_held(self, session_id: str) -> bool | None:
        """Whether a session is open for writing, anywhere: its lock is asked and not taken.

        None where the system has no locks that can be asked.
        """
        ...

    def beside(self, session_id: str) -> Sidecars:
        """What stands beside a log."""
        ...
