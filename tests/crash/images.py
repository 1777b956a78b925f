"""Images of a SQLite store's files at each commit, and the states that a power cut could leave.

SQLite does its own writing, so what it wrote is seen in the files after each transaction. What of
it was safe is known from its rules: a commit with `synchronous=FULL` that wrote anything syncs the
write-ahead log, a checkpoint syncs that log before it touches the file and the file before it lets
the log be used again, and a log that is begun anew has its header synced first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from refold.runtime.storage import SessionHeader, SqliteFile
from refold.runtime.storage.sqlite import database
from refold.runtime.storage.sqlite.database import Database
from refold.runtime.storage.sqlite.names import SqliteNames
from refold.runtime.storage.sqlite.row_log import SqliteLog
from refold.runtime.storage.sqlite.schema import prepare
from tests.runtime.storage.logs import event

PAGE, SECTOR, FRAME, WAL_HEADER = 4096, 512, 4096 + 24, 32

CHECKPOINT_PAGES = 12
"""After so many pages SQLite makes a checkpoint; few, so that scripts have many."""


@attrs.define
class Journal:
    """What was written to each session, batch by batch, and what the store called durable."""

    written: dict[str, list[bytes]] = attrs.field(factory=dict)
    ends: dict[str, set[int]] = attrs.field(factory=dict)
    acknowledged: dict[str, int] = attrs.field(factory=dict)
    leaving: set[str] = attrs.field(factory=set)
    gone: set[str] = attrs.field(factory=set)

    def copy(self) -> Journal:
        written = {name: [*events] for name, events in self.written.items()}
        ends = {name: {*found} for name, found in self.ends.items()}
        return Journal(written, ends, {**self.acknowledged}, {*self.leaving}, {*self.gone})


@attrs.frozen
class Moment:
    """Two contents of one file between which the power may fail, beside what is fixed.

    `old` is safe; of `new` anything may be missing. `is_log`: the file is the write-ahead log.
    """

    is_log: bool
    old: bytes = attrs.field(repr=False)
    new: bytes = attrs.field(repr=False)
    other: bytes = attrs.field(repr=False)
    shm: bytes = attrs.field(repr=False)
    heads: dict[str, bytes]
    journal: Journal


@attrs.frozen
class State:
    kind: str
    db: bytes = attrs.field(repr=False)
    wal: bytes = attrs.field(repr=False)
    shm: bytes | None = attrs.field(repr=False)
    moment: Moment


class Recorder:
    """Writes to a store and keeps an image of its files at each commit."""

    def __init__(self, path: Path) -> None:
        self.layout = SqliteNames(path)
        self.store = SqliteFile(path)
        self.journal, self.moments = Journal(), list[Moment]()
        self._db = self._wal = self._now = b""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While it lasts, every transaction of every store is noted."""
        with pytest.MonkeyPatch.context() as patch:
            transaction = Database.transaction

            @contextmanager
            def noted(inner: Database, *, durable: bool) -> Iterator[object]:
                with transaction(inner, durable=durable) as db:
                    [(level,)] = db.execute("PRAGMA synchronous").fetchall()
                    yield db
                self._note(is_full=level == 2)

            def prepared(db: object, path: Path) -> None:
                prepare(db, path)  # type: ignore[arg-type]  # it is a connection
                db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")  # type: ignore[attr-defined]  # as above
                self._db = self._db or path.read_bytes()

            patch.setattr(Database, "transaction", noted)
            patch.setattr(database, "prepare", prepared)
            yield

    def _note(self, *, is_full: bool) -> None:
        """A commit, of which nothing is safe before its sync, and a checkpoint after it."""
        db, wal = self.layout.path.read_bytes(), self.layout.wal.read_bytes()
        if wal[:WAL_HEADER] != self._wal[:WAL_HEADER]:
            self._wal = wal[:WAL_HEADER] + self._wal[WAL_HEADER:]
        self._keep(True, self._wal, wal, self._db)
        if is_full and wal != self._now:
            self._wal = wal
        if db != self._db:  # a checkpoint: the log was synced before
            self._keep(False, self._db, db, wal)
            self._db, self._wal = db, wal
        self._now = wal

    def _keep(self, is_log: bool, old: bytes, new: bytes, other: bytes) -> None:
        shm = self.layout.path.with_name(self.layout.path.name + "-shm").read_bytes()
        heads = {}
        if self.layout.beside_folder.exists():
            heads = {head.name: head.read_bytes() for head in self.layout.beside_folder.iterdir()}
        self.moments.append(Moment(is_log, old, new, other, shm, heads, self.journal.copy()))

    def append(self, log: SqliteLog, *sizes: int) -> None:
        name = log.header.id
        events = self.journal.written.setdefault(name, [])
        batch = [event(len(events) + place, text="x" * size) for place, size in enumerate(sizes)]
        events += batch
        self.journal.ends.setdefault(name, {0}).add(len(events))
        log.append(batch)
        self.believe()

    def sync(self, log: SqliteLog) -> None:
        log.sync()
        self.believe()

    def believe(self) -> None:
        """Take the store's word for what is durable."""
        for log in self.store.rounds.logs:
            self.journal.acknowledged[log.header.id] = log.durable_seq + 1

    def end_turn(self, log: SqliteLog) -> None:
        events = self.journal.written[log.header.id]
        batch = [event(len(events), "turn/end")]
        events += batch
        self.journal.ends[log.header.id].add(len(events))
        log.append(batch)
        self.believe()

    def close(self, log: SqliteLog) -> None:
        log.close()
        self.journal.acknowledged[log.header.id] = log.durable_seq + 1

    def die(self, log: SqliteLog) -> None:
        """End a log as a killed process does: what it wrote is in the cache and not on the disk."""
        self.store.rounds.logs.pop(log)
        self.store._locks.release(log.header.id)

    def fork(self, source: str, name: str) -> None:
        self.journal.written[name] = [*self.journal.written[source]]
        count = len(self.journal.written[name])
        self.journal.ends[name] = {count}
        self.store.fork(source, None, SessionHeader(name, 1))
        self.journal.acknowledged[name] = count

    def delete(self, name: str) -> None:
        self.journal.leaving.add(name)
        self.store.delete(name)
        self.journal.gone.add(name)

    def rest(self) -> None:
        """Close the store: a checkpoint of everything, after which there is no log."""
        wal = self.layout.wal.read_bytes()
        shm = self.layout.path.with_name(self.layout.path.name + "-shm").read_bytes()
        self.store.close()
        db = self.layout.path.read_bytes()
        heads = {head.name: head.read_bytes() for head in self.layout.beside_folder.iterdir()}
        journal = self.journal.copy()
        self.moments.append(Moment(False, self._db, db, wal, shm, heads, journal))
        for left in (wal, b""):  # it is removed as a whole
            self.moments.append(Moment(True, left, left, db, shm, heads, journal))
        self._db, self._wal, self._now = db, b"", b""


def play(recorder: Recorder, chance: random.Random, rounds: int) -> None:
    """A scripted life of several sessions: small and large batches, forks, deletions, reopening."""
    store = recorder.store
    logs = {name: store.create(SessionHeader(name, 1)) for name in ("a", "b", "c")}
    for number in range(rounds):
        name = chance.choice(sorted(logs))
        log = logs[name]
        sizes = [chance.choice((20, 300, 3000, 9000)) for _ in range(chance.randint(1, 3))]
        recorder.append(log, *sizes)
        if chance.random() < 0.4:
            recorder.sync(log)
        if number % 7 == 6:
            recorder.end_turn(log)
            recorder.fork(name, f"fork{number}")
        if number % 11 == 10:
            recorder.close(log)
            logs[name] = store.open(name)
            recorder.believe()
        if number % 5 == 4:
            recorder.die(log)
            logs[name] = store.open(name)
            recorder.believe()
        if number % 16 == 15:
            forks = {found for found in recorder.journal.written if found.startswith("fork")}
            recorder.delete(min(forks - recorder.journal.gone))
        if number % 24 == 23:
            for log in logs.values():
                recorder.close(log)
            recorder.rest()
            logs = {name: store.open(name) for name in logs if name in store.list()}
            recorder.believe()
    for log in logs.values():
        recorder.close(log)
    recorder.rest()


def states(moment: Moment, chance: random.Random, many: int) -> Iterator[State]:
    """About so many states of each kind that a power cut at a moment may leave."""
    for kind, content in _contents(moment, chance, many):
        db, wal = (moment.other, content) if moment.is_log else (content, moment.other)
        shm = moment.shm if chance.random() < 0.2 else None
        yield State(kind, db, wal, shm, moment)


def _contents(moment: Moment, chance: random.Random, many: int) -> Iterator[tuple[str, bytes]]:
    old, new = moment.old, moment.new
    what = "log" if moment.is_log else "checkpoint"
    yield f"{what}: nothing of it", old
    yield f"{what}: all of it", new
    first = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    start = min(len(old), len(new)) if first is None else first
    if start >= len(new):
        return
    for cut in _cuts(start, len(new), moment.is_log, chance, many):
        yield f"{what}: cut at a byte", new[:cut] + old[cut:]
    for size, name in ((SECTOR, "sector"), (PAGE, "block")):
        places = range(start - start % size, len(new), size)
        for place in chance.sample(places, min(many, len(places))):
            yield f"{what}: {name} kept old", _without(old, new, [place], size, old)
            yield f"{what}: {name} of zeros", _without(old, new, [place], size, b"")
        for _ in range(many if len(places) > 2 else 0):
            lost = chance.sample(places, chance.randint(2, len(places)))
            yield f"{what}: several {name}s kept old", _without(old, new, lost, size, old)


def _cuts(start: int, end: int, is_log: bool, chance: random.Random, many: int) -> list[int]:
    """Places from `start` to `end`: the bounds of frames and pages and beside them, and others."""
    size, begin = (FRAME, WAL_HEADER) if is_log else (PAGE, 0)
    bounds = {at + step for at in range(begin, end + 1, size) for step in (-1, 0, 1, 24)}
    near = [at for at in sorted(bounds) if start < at <= end]
    others = [chance.randint(start, end) for _ in range(many)]
    return sorted({*chance.sample(near, min(many, len(near))), *others})


def _without(old: bytes, new: bytes, places: list[int], size: int, instead: bytes) -> bytes:
    """`new` whose parts at some places never reached the disk; `instead` is what stands there.

    Nothing is zero that was safe and is the same as before.
    """
    content = bytearray(new)
    for place in places:
        end = min(place + size, len(new))
        kept = instead[place:end] if instead else _common(old, new, place, end)
        content[place:end] = kept + bytes(end - place - len(kept))
    return bytes(content)


def _common(old: bytes, new: bytes, place: int, end: int) -> bytes:
    at = place
    while at < end and at < len(old) and old[at] == new[at]:
        at += 1
    return new[place:at]
