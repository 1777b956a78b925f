"""Transactions of a SQLite store: what is durable when, who is fenced, and what a failure costs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.storage import (
    Fenced,
    LogClosed,
    LogFailed,
    SeqMismatch,
    SessionHeader,
    SqliteFile,
    StoreFull,
    TooLarge,
    Unavailable,
)
from refold.runtime.storage.local_store import Log
from refold.runtime.storage.sqlite.names import SqliteNames
from tests.runtime.storage.databases import closed, database_of, editing, failing, fill, sql, texts
from tests.runtime.storage.logs import HEADER, event, owner_event

TWIN = SessionHeader("twin", 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def levels(store: SqliteFile, work: Callable[[], object]) -> list[int]:
    """The level of `PRAGMA synchronous` at each commit of the work."""
    database = database_of(store)
    found: list[int] = []
    if database._writer is None:
        fill(store, SessionHeader("warm", 1))
    writer = database._writer
    assert writer is not None

    def note(statement: str) -> None:
        if statement == "COMMIT":
            noted.append(level[-1])
        elif statement.startswith("PRAGMA synchronous ="):
            level.append(2 if "FULL" in statement else 1)

    [(now,)] = writer.execute("PRAGMA synchronous").fetchall()
    level, noted = [now], found
    writer.set_trace_callback(note)
    try:
        work()
    finally:
        writer.set_trace_callback(None)
    [(now,)] = writer.execute("PRAGMA synchronous").fetchall()
    assert now == level[-1]
    return found


def test_a_round_that_must_be_durable_is_synced_and_no_other(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    full, normal = [2], [1]
    assert levels(store, lambda: log.append([event(4)])) == normal
    assert levels(store, log.sync) == full
    assert levels(store, log.sync) == []  # nothing is owed
    assert levels(store, lambda: log.append([event(5)])) == normal
    assert levels(store, log.close) == full
    assert levels(store, lambda: fill(store, TWIN, (1,))) == [1, 2]
    assert levels(store, lambda: store.adopt(SessionHeader("adopted", 1), b"")) == full
    assert levels(store, lambda: store.delete("twin")) == full


def test_opening_makes_durable_what_an_older_owner_only_wrote(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    log.append([event(4)])
    store._locks.release("demo")  # as if its process had died
    store.rounds.logs.clear()
    assert levels(store, lambda: store.open("demo")) == [2]


def test_a_durable_round_makes_earlier_rounds_of_every_log_durable(path: Path) -> None:
    store = closed(path, "a", "b", "c")
    a, b, c = (store.open(name) for name in "abc")
    a.append([event(4)], [event(5)])
    b.append([event(4)])
    assert (a.durable_seq, b.durable_seq) == (3, 3)
    failures = store.rounds.commit([(c, [[event(4)]])], durable=True)
    assert failures == {}
    assert (a.durable_seq, b.durable_seq, c.durable_seq) == (5, 4, 4)
    assert levels(store, a.sync) == []
    a.append([event(6)])
    assert [record.dur for record in store.read("a").records][-3:] == [3, 3, 5]
    for log in (a, b, c):
        log.close()


def test_what_is_committed_behind_a_durable_round_is_not_taken_for_durable(path: Path) -> None:
    # Another thread may append to its log between the commit of a round and the note of it.
    store = closed(path, "a", "b")
    a, b = store.open("a"), store.open("b")
    settle = a.settle

    def late() -> None:
        b.append([event(4)])
        settle()

    a.settle = late  # type: ignore[method-assign]  # on purpose
    store.rounds.commit([(a, [[event(4)]])], durable=True)
    a.settle = settle  # type: ignore[method-assign]  # as above
    assert (a.durable_seq, b.durable_seq, b.next_seq) == (4, 3, 5)
    a.close()
    b.close()


def test_many_logs_are_one_transaction_and_one_refusal_leaves_the_others(path: Path) -> None:
    store = closed(path, "a", "b", "c")
    a, b, c = (store.open(name) for name in "abc")
    c.close()
    failures: dict[Log, RefoldError] = {}

    def write() -> None:
        works = [(a, [[event(4)]]), (b, [[event(9)]]), (c, [[event(4)]])]
        failures.update(store.rounds.commit(works, durable=True))

    assert levels(store, write) == [2]
    assert {log: type(failure) for log, failure in failures.items()} == {
        b: SeqMismatch,
        c: LogClosed,
    }
    assert [len(texts(store, name)) for name in "abc"] == [5, 4, 4]
    b.append([event(4)])
    a.close()
    b.close()


def taken_over(path: Path, name: str = "demo") -> SqliteFile:
    """Another process's store, after someone removed the lock file by force."""
    SqliteNames(path).lock.unlink()
    return SqliteFile(path)


def test_a_log_that_was_taken_over_by_force_adds_nothing_for_ever(path: Path) -> None:
    store = SqliteFile(path)
    old = store.create(HEADER)
    old.append([owner_event(0)])
    old.sync()
    other = taken_over(path)
    new = other.open("demo")
    assert new.term == 2
    new.append([event(1, "session/owner", term=2, owner={"host": "h", "pid": 1, "boot": "b"})])
    for _ in range(3):
        with pytest.raises(Fenced) as fenced:
            old.append([event(1)])
        assert (fenced.value.current_term, fenced.value.durable_seq) == (2, 0)
        with pytest.raises(Fenced):
            old.sync()
    old.close()
    new.append([event(2)])
    new.close()
    with pytest.raises(LogClosed):
        old.append([event(1)])
    assert [record.type for record in other.read("demo").records] == [
        "session/owner",
        "session/owner",
        "assistant/chunk",
    ]


def test_a_fenced_log_fails_alone(path: Path) -> None:
    store = closed(path, "a", "b")
    a, b = store.open("a"), store.open("b")
    taken_over(path).open("a").close()
    failures = store.rounds.commit([(a, [[event(4)]]), (b, [[event(4)]])], durable=True)
    assert [*failures] == [a]
    assert isinstance(failures[a], Fenced)
    b.append([event(5)])
    a.close()
    b.close()
    assert (len(texts(store, "a")), len(texts(store, "b"))) == (4, 6)


def test_a_new_log_whose_id_another_process_used_meanwhile_fails_alone(path: Path) -> None:
    store = closed(path, "b")
    late, b = store.create(HEADER), store.open("b")
    fill(taken_over(path))
    failures = store.rounds.commit([(late, [[event(0)]]), (b, [[event(4)]])], durable=False)
    assert [*failures] == [late]
    assert isinstance(failures[late], Fenced)
    late.close()
    b.close()
    assert len(texts(store)) == 4


def test_a_log_that_was_taken_over_vouches_for_nothing_when_it_closes(path: Path) -> None:
    store = SqliteFile(path)
    fill(store)
    old = store.open("demo")
    other = taken_over(path)
    whole = other.raw("demo")
    header_end = whole.index(b"\n") + 1
    first_end = whole.index(b"\n", header_end) + 1
    other.replace(HEADER, whole[header_end:first_end], (0, b""))
    old.close()
    assert len(texts(other)) == 1
    other.open("demo").close()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM lines WHERE seq = 3",
        "INSERT INTO lines VALUES (1, 4, x'00')",
        "DELETE FROM sessions",
    ],
)
def test_rows_that_another_program_changed_end_the_log(path: Path, change: str) -> None:
    store = closed(path)
    log = store.open("demo")
    sql(path, change)
    with pytest.raises(LogFailed, match="another program changed or deleted it"):
        log.append([event(4)])
    with pytest.raises(LogFailed):
        log.append([event(4)])
    log.close()


@pytest.mark.parametrize("start", ["BEGIN", "COMMIT", "UPDATE syncs"])
def test_an_io_error_of_unknown_outcome_ends_every_log_until_it_is_opened_again(
    path: Path, start: str
) -> None:
    store = closed(path, "a", "b")
    a, b = store.open("a"), store.open("b")
    a.append([event(4)])
    a.sync()
    with failing(store, start, sqlite3.SQLITE_IOERR_FSYNC):
        a.append([event(5)]) if start == "UPDATE syncs" else None
        with pytest.raises(LogFailed, match="on purpose") as failed:
            a.append([event(5)]) if start != "UPDATE syncs" else a.sync()
        assert failed.value.durable_seq == 4
    for log in (a, b):  # the descriptor is never tried again
        with pytest.raises(LogFailed, match="on purpose"):
            log.append([event(log.next_seq)])
    a.close()
    a = store.open("a")  # which writes anew what the failed sync may have lost
    with pytest.raises(LogFailed, match="on purpose"):
        b.append([event(b.next_seq)])
    b.close()
    store.adopt(TWIN, b"")
    assert a.next_seq >= 5
    a.append([event(a.next_seq)])
    a.close()


def test_a_log_that_was_idle_when_the_file_failed_does_not_go_on_once_another_is_opened(
    path: Path,
) -> None:
    """What it had written and not synced may be lost, though the file works again."""
    store = closed(path, "a", "b")
    a, idle = store.open("a"), store.open("b")
    idle.append([event(4)])
    with failing(store, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC), pytest.raises(LogFailed):
        a.append([event(4)])
    a.close()
    a = store.open("a")
    for attempt in (lambda: idle.append([event(5)]), idle.sync):
        with pytest.raises(LogFailed, match="on purpose") as failed:
            attempt()
        assert failed.value.durable_seq == 3
    idle.close()
    a.close()


def test_opening_after_a_failure_writes_what_the_log_holds_anew(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    log.append([event(4)])
    with failing(store, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC), pytest.raises(LogFailed):
        log.append([event(5)])
    log.close()
    with sqlite3.connect(path, isolation_level=None) as reader:
        reader.execute("SELECT count(*) FROM syncs").fetchall()  # keeps it from being removed
        log = store.open("demo")
        wal = path.with_name("sessions.db-wal").stat().st_size
        assert 0 < wal < 20_000  # emptied, and then the opening's own commit
        log.close()
    reader.close()


def test_after_a_failure_nothing_is_opened_while_others_keep_the_log_from_being_written_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.runtime.storage.sqlite.schema.BUSY_SECONDS", 0.1)
    store = closed(path)
    log = store.open("demo")
    log.append([event(4)])
    with failing(store, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC), pytest.raises(LogFailed):
        log.append([event(5)])
    log.close()
    with editing(path) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM lines").fetchall()
        for _ in range(2):
            with pytest.raises(Unavailable, match="others use it"):
                store.open("demo")
    log = store.open("demo")
    log.append([event(5)])
    log.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT])
def test_an_error_after_which_nothing_was_written_leaves_the_log_as_it_was(
    path: Path, code: int
) -> None:
    store = closed(path)
    log = store.open("demo")
    with failing(store, "BEGIN", code), pytest.raises(Unavailable) as failed:
        log.append([event(4)])
    assert "on purpose" in str(failed.value.__cause__)
    log.append([event(4)])
    log.sync()
    log.close()
    assert len(texts(store)) == 5


def test_what_is_too_large_is_refused_and_fails_nobody_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.runtime.storage.sqlite.row_log.LARGEST", 1_000)
    store = closed(path, "a", "b")
    a, b = store.open("a"), store.open("b")
    large = [event(4, text="x" * 1_000)]
    failures = store.rounds.commit([(a, [large]), (b, [[event(4)]])], durable=True)
    assert [(log, type(failure)) for log, failure in failures.items()] == [(a, TooLarge)]
    assert (a.durable_seq, b.durable_seq) == (3, 4)
    a.append([event(4)])
    for log in (a, b):
        log.close()


def test_a_failed_checkpoint_fails_no_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.runtime.storage.sqlite.database.WAL_BYTES", 0)
    store = closed(path)
    log = store.open("demo")
    for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
        with failing(store, "PRAGMA wal_checkpoint", code) as stand_in:
            log.append([event(log.next_seq)])
            log.sync()
            assert stand_in.failures == 2
    log.close()
    with failing(store, "PRAGMA wal_checkpoint", sqlite3.SQLITE_FULL):
        store.close()
    assert len(texts(store)) == 6


def test_no_room_at_the_commit_is_no_room_and_the_log_stays_usable(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    with failing(store, "COMMIT", sqlite3.SQLITE_FULL), pytest.raises(StoreFull):
        log.append([event(4)])
    assert len(texts(store)) == 4
    log.append([event(4)])
    log.close()
    assert len(texts(store)) == 5


def test_a_surprise_poisons_the_logs_of_its_round(path: Path) -> None:
    store = closed(path, "a", "b")
    a, b = store.open("a"), store.open("b")
    inner = database_of(store)._check_named

    def surprise() -> None:
        raise MemoryError("no more")

    database_of(store)._check_named = surprise  # type: ignore[method-assign]  # on purpose
    with pytest.raises(MemoryError):
        a.append([event(4)])
    database_of(store)._check_named = inner  # type: ignore[method-assign]  # as above
    with pytest.raises(LogFailed, match="MemoryError: no more"):
        a.append([event(4)])
    assert a.durable_seq == 3
    b.append([event(4)])
    a.close()
    b.close()
