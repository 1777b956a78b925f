"""Opening a log to read: naming sessions, and what is said of the state of their logs."""

from __future__ import annotations

from pathlib import Path

import attrs

from refold.cli.exits import CANNOT_OPEN, DAMAGE, USAGE, say
from refold.render import plural
from runtime.envelope import Event, decode_line
from runtime.errors import RefoldError, Refused
from runtime.storage import (
    FileCorrupt,
    LogCorrupt,
    MaintainedStore,
    Scan,
    Torn,
    check_session_id,
    open_sessions,
)

SUFFIX = ".jsonl"
"""What the name of a log's file ends with."""


@attrs.define(eq=False)
class NoSuchSession(Refused):
    """A name that no session of the store has or begins with."""

    exit_code = CANNOT_OPEN
    wanted: str
    store: str
    count: int

    def __str__(self) -> str:
        if not self.count:
            return (
                f"there are no sessions in {self.store}; "
                "name another store with --store or REFOLD_STORE"
            )
        return (
            f"no session in {self.store} is called {self.wanted!r} or begins so; "
            f"it has {plural(self.count, 'session')}, and `last` is the newest"
        )


@attrs.define(eq=False)
class AmbiguousSession(Refused):
    """The beginning of more than one session's id."""

    exit_code = USAGE
    wanted: str
    found: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(self.found[:5]) + (", ..." if len(self.found) > 5 else "")
        return f"{self.wanted!r} begins {len(self.found)} ids; write more of one of {names}"


@attrs.frozen
class Place:
    """A session in a store."""

    store: MaintainedStore
    session: str


def locate(store: MaintainedStore, name: str) -> Place:
    """Where the session that `name` names is: an id, a beginning of one, `last`, or a file.

    An id wins over a beginning and over `last`. Raises `InvalidSessionId`, `NoSuchSession`,
    `AmbiguousSession`.
    """
    if name.endswith(SUFFIX):
        path = Path(name)
        folder = open_sessions(path.parent)
        return Place(folder, check_session_id(path.name.removesuffix(SUFFIX)))
    check_session_id(name)
    if name in store.names():  # also a log of which too little is left to be listed
        return Place(store, name)
    ids = store.list()
    if name == "last" and ids:
        return Place(store, max(ids, key=lambda found: (store.written_at(found), found)))
    found = tuple(known for known in ids if known.startswith(name))
    if len(found) > 1:
        raise AmbiguousSession(name, found)
    if not found:
        raise NoSuchSession(name, store.address, len(ids))
    return Place(store, found[0])


def check_store(store: MaintainedStore) -> None:
    """Raise `FileCorrupt` before anything is written to a store whose file is damaged."""
    problems = store.problems()
    if problems:
        raise FileCorrupt(store.address, problems[0])


@attrs.frozen
class StoredLog:
    """The bytes of a log that make sense, and the damage after them, if any."""

    place: Place
    scan: Scan
    damage: RefoldError | None

    @property
    def session(self) -> str:
        return self.place.session


def open_log(place: Place) -> StoredLog:
    """Read a log without changing it; a torn tail is told on standard error.

    Raises `LogCorrupt` if nothing of the log is readable, and what `MaintainedStore.read` raises.
    """
    try:
        log = StoredLog(place, place.store.read(place.session), None)
    except LogCorrupt as damage:
        if damage.readable is None:
            raise
        log = StoredLog(place, damage.readable, damage)
    if log.damage is None and log.scan.torn is not None:
        say(_torn_note(log, log.scan.torn))
    return log


def _torn_note(log: StoredLog, torn: Torn) -> str:
    if torn.missing_newline:
        return f"the last line of {log.session} lost its newline; its event is whole and counts"
    last = len(log.scan.records) - 1
    after = f"after seq {last}" if last >= 0 else "before the first event"
    return (
        f"{log.session} has a torn tail ({torn.reason}): {plural(torn.dropped_bytes, 'byte')} "
        f"{after} are not part of the log; they are left as they are"
    )


@attrs.frozen
class ReadLog:
    """A log's events as far as they make sense, and the damage after them, if any."""

    place: Place
    scan: Scan
    events: tuple[Event, ...]
    damage: RefoldError | None

    @property
    def session(self) -> str:
        return self.place.session

    def complete(self) -> None:
        """To be called when all that is readable was used: raises the damage, if there is any."""
        if self.damage is not None:
            raise self.damage


def read_log(store: MaintainedStore, name: str) -> ReadLog:
    """Locate and open a log and decode its events; raises as `locate` and `open_log` do."""
    log = open_log(locate(store, name))
    events: list[Event] = []
    damage = log.damage
    try:
        events.extend(decode_line(record.encoded) for record in log.scan.records)
    except DAMAGE as error:
        damage = error
    return ReadLog(log.place, log.scan, tuple(events), damage)
