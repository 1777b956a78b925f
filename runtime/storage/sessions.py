"""The sessions of one store, synchronously, whatever keeps them: JSONL files or SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

from runtime.errors import Refused
from runtime.events import SessionOwner, SessionRecovered
from runtime.storage.address import SCHEME, is_address
from runtime.storage.head import Beside
from runtime.storage.header import SessionHeader
from runtime.storage.jsonl import JsonlFolder
from runtime.storage.lines import StoredRecords
from runtime.storage.port import OS, Port
from runtime.storage.reader import LogReader
from runtime.storage.sqlite import SqliteFile
from runtime.storage.tail import Scan


class Log(Protocol):
    """The writer of one log, for one thread at a time; see `JsonlLog` for what each raises."""

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


class Sessions(Protocol):
    """Every method raises `InvalidSessionId` for an id that is none, `StoreRefused` for files that
    cannot be trusted, and `Unavailable` where the operating system refuses. Reading never takes a
    lock and never changes a log.
    """

    @property
    def address(self) -> str:
        """What `open_sessions` finds it under."""
        ...

    @property
    def reports(self) -> Path:
        """The folder for reports; those of a session begin with its id and a dot and go with it."""
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

    def read(self, session_id: str) -> Scan:
        """What a log holds now; a torn tail is told in `Scan.torn` and left alone.

        Raises as `open` does, without `SessionBusy` and `ForeignLog`.
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

    def adopt(self, header: SessionHeader, lines: bytes) -> None:
        """Make a session, durable and whole, from framed lines that `scan` was content with.

        Raises `AlreadyExists`, `SessionBusy`, `StoreFull`.
        """
        ...

    def delete(self, session_id: str) -> None:
        """Remove a log with all that stands beside it; done again, it completes what a crash cut.

        Raises `NotFound`, `SessionBusy`.
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

    def raw(self, session_id: str) -> bytes:
        """The stored bytes of a log, header and lines, unjudged; raises `NotFound`.

        Of a SQLite file that is itself damaged, what can be read of them.
        """
        ...

    def list(self) -> list[str]:
        """The ids of the sessions, damaged ones too, sorted."""
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
        """The ids, sorted, whose head file vouches for a log of which nothing is left.

        Nothing here removes a log before its head file.
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

    def beside(self, session_id: str) -> Beside: ...

    def close(self) -> None:
        """Let go of what is shared; for when every log is closed."""
        ...


@attrs.define(eq=False)
class NoSuchStore(Refused):
    """A store's address that nothing is found under."""

    where: str

    def __str__(self) -> str:
        return (
            f"{self.where!r} names no store; give a folder's path, or sqlite:///FILE "
            "(sqlite:////FILE where the path is absolute)"
        )


def open_sessions(where: str | Path, port: Port = OS) -> Sessions:
    """The store at `where`: the path of a folder, or `sqlite:///` and the path of a file.

    Nothing is made or read yet. Raises `NoSuchStore`.
    """
    if isinstance(where, Path):
        return JsonlFolder(where, port)
    if not is_address(where):
        raise NoSuchStore(where)
    if where.startswith(SCHEME):
        return SqliteFile(Path(where.removeprefix(SCHEME)), port)
    return JsonlFolder(Path(where), port)
