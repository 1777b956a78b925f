"""Opening a log to read: naming sessions, and what is said of the state of their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from refold.cli.shared.exit_codes import DAMAGE, DAMAGED, USAGE, CannotDo, say
from refold.cli.shared.last_use import newest_first
from refold.render import plural
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import NoSuchStep, RefoldError
from refold.runtime.step_names import StepSpan, find_step
from refold.runtime.storage import (
    FileCorrupt,
    LogCorrupt,
    MaintainedStore,
    Record,
    Scan,
    Torn,
    check_session_id,
    open_sessions,
)
from refold.runtime.storage.believable import believable
from refold.runtime.storage.session_header import from_file_name

SUFFIX = ".jsonl"
"""What the name of a log's file ends with."""


@attrs.frozen
class Place:
    """A session in a store."""

    store: MaintainedStore
    session: str


def locate(store: MaintainedStore, name: str) -> Place:
    """Where the session that `name` names is: an id, a beginning of one, `last`, or a file.

    An id wins over a beginning and over `last`. Raises `InvalidSessionId`, `CannotDo`.
    """
    if name.endswith(SUFFIX) and name not in store.names():
        path = Path(name)
        folder = open_sessions(path.parent)
        return Place(folder, check_session_id(from_file_name(path.name.removesuffix(SUFFIX))))
    check_session_id(name)
    if name in store.names():  # also a log of which too little is left to be listed
        return Place(store, name)
    ids = store.list()
    if name == "last":  # of what is no file, such as a link, nobody knows when it was written
        written = [found for found in ids if store.written_at(found)]
        if written:
            return Place(store, newest_first(store, written)[0])
    found = tuple(known for known in ids if known.startswith(name))
    if len(found) > 1:
        names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise CannotDo(f"{name!r} begins {len(found)} ids; write more of one of {names}", USAGE)
    if found:
        return Place(store, found[0])
    if not ids:
        where = "name another store with --store or REFOLD_STORE"
        raise CannotDo(f"there are no sessions in {store.address}; {where}")
    raise CannotDo(
        f"no session in {store.address} is called {name!r} or begins so; "
        f"it has {plural(len(ids), 'session')}, and `last` is the newest"
    )


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

    def behind(self) -> Iterator[Event]:
        """What can still be believed behind the damage, in order, with gaps in the seqs."""
        if self.damage is None:
            return
        yield from decoded(self.scan.records[len(self.events) :])
        if not self.scan.foreign:
            yield from decoded(believable(self.place.store.raw(self.session), self.scan))

    def find_step(self, wanted: str) -> StepSpan:
        """The step that `wanted` names.

        Raises `NoSuchStep`, and `CannotDo` where damage may hide it.
        """
        try:
            return find_step(self.events, wanted)
        except NoSuchStep:
            if self.damage is None:
                raise
            raise CannotDo(
                f"step {wanted} is not among the {plural(len(self.events), 'event')} before the "
                f"damage, and no request behind it can be rebuilt; {self.damage}",
                DAMAGED,
            ) from None

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


def decoded(records: Iterable[Record]) -> Iterator[Event]:
    """The events of these records; one that makes no sense is passed over."""
    for record in records:
        with suppress(*DAMAGE):
            yield decode_line(record.encoded)
