"""Where the sessions of these tests live: one of the kinds of store, in a folder of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs

from refold.faults import BrokenPromise, Journal, check_promises
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import SessionOwner
from refold.runtime.storage import Record, open_sessions

KINDS = ["jsonl", "sqlite"]


@attrs.frozen
class Place:
    """A store of some kind in `folder`; `session` is the one that is looked at."""

    kind: str
    folder: Path
    session: str

    @property
    def store(self) -> str:
        """What a runtime is opened with."""
        return f"sqlite:///{self.file}" if self.kind == "sqlite" else str(self.folder)

    @property
    def file(self) -> Path:
        """What holds the session's log."""
        return self.folder / ("s.db" if self.kind == "sqlite" else f"{self.session}.jsonl")

    def replace_lock(self) -> None:
        """What somebody does who believes that a lock file is in the way."""
        (self.folder / ("s.db.lock" if self.kind == "sqlite" else ".lock")).unlink()

    def is_locked(self) -> bool:
        """Whether a process is within a transaction, so that SQLite lets nobody else write."""
        if self.kind != "sqlite":
            return False
        with closing(sqlite3.connect(self.file, 0, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            db.execute("ROLLBACK")
            return False

    def raw(self) -> bytes:
        """The log, byte for byte."""
        with closing(open_sessions(self.store)) as sessions:
            return sessions.raw(self.session)

    def records(self) -> list[Record]:
        with closing(open_sessions(self.store)) as sessions:
            return [*sessions.read(self.session).records]

    def events(self) -> list[Event]:
        return [decode_line(record.encoded) for record in self.records()]

    def terms(self) -> list[int]:
        owners = [event.data for event in self.events() if isinstance(event.data, SessionOwner)]
        return [owner.term for owner in owners]

    def broken_promises(self, journal: Journal) -> list[BrokenPromise]:
        with closing(open_sessions(self.store)) as sessions:
            return check_promises(sessions, journal)


def journal_of(lines: list[bytes]) -> Journal:
    """What a program of these tests said that it was told, among other things."""
    return Journal.read(b"".join(b"%s\n" % line for line in lines if line[:1] == b"["))
