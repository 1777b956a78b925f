"""Sessions in one SQLite file: what only this store does, on an ordinary day."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.runtime.storage import (
    OS,
    AlreadyExists,
    JsonlFolder,
    LogCorrupt,
    NotFound,
    SessionBusy,
    SessionHeader,
    SqliteFile,
    Unavailable,
    frame_header,
)
from refold.runtime.storage.durable_mark import DurableMark
from refold.runtime.storage.sqlite import database, schema
from tests.runtime.storage.databases import closed, database_of, fill, sql, texts
from tests.runtime.storage.logs import HEADER, batches, event, framed, intercepted, owner_event

TWIN = SessionHeader("twin", 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def test_nothing_is_made_before_the_first_batch(path: Path) -> None:
    store = SqliteFile(path)
    assert (store.list(), store.names()) == ([], [])
    assert store.written_at("demo") == 0
    log = store.create(HEADER)
    log.close()
    store.close()
    assert not path.exists()


def test_the_rows_hold_the_very_lines_of_a_log_file(path: Path) -> None:
    made = batches([2, 1])
    store = SqliteFile(path)
    log = store.create(HEADER)
    for batch in made:
        log.append(batch)
        log.sync()
    log.close()
    whole, _ = framed(made)
    assert store.raw("demo") == whole
    lines = sql(path, "SELECT line FROM lines ORDER BY seq")
    assert frame_header(HEADER) + b"".join(line for (line,) in lines) == whole


def test_sessions_of_one_file_are_kept_apart(path: Path) -> None:
    store = closed(path, "a", "b", "ab")
    assert store.list() == ["a", "ab", "b"]
    log = store.open("a")
    log.append([event(4, text="only in a")])
    log.close()
    assert [len(store.read(name).records) for name in ("a", "ab", "b")] == [5, 4, 4]


def test_several_sessions_are_open_at_once_and_every_id_once(path: Path) -> None:
    store = closed(path, "a", "b")
    first, second = store.open("a"), store.open("b")
    for opened in (store, SqliteFile(path)):
        with pytest.raises(SessionBusy):
            opened.open("a")
    first.append([event(4)])
    second.append([event(4)])
    first.close()
    second.close()
    assert len(texts(store, "a")) == len(texts(store, "b")) == 5


def test_files_beside_it_are_private_and_few_and_a_closed_store_leaves_no_log(path: Path) -> None:
    store = SqliteFile(path)
    fill(store)
    store.close()
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["sessions.db", "sessions.db-beside", "sessions.db.lock"]
    for file in (path, path.with_name("sessions.db.lock")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_name_of_the_process_while_it_is_open_has_the_same_permissions(path: Path) -> None:
    store = SqliteFile(path)
    log = store.create(HEADER)
    log.append([event(0)])
    for suffix in ("-wal", "-shm"):
        assert stat.S_IMODE(path.with_name(path.name + suffix).stat().st_mode) == 0o600
    log.close()
    store.close()


def test_adopting_takes_the_lines_and_vouches_for_them(path: Path) -> None:
    whole, ends = framed(batches([1, 2]))
    store = SqliteFile(path)
    store.adopt(HEADER, whole[ends[0] :])
    assert store.raw("demo") == whole
    found = store.read("demo")
    beside = store.beside("demo")
    assert beside.mark == DurableMark(2, len(whole), found.end.chain)
    assert (beside.mark_damaged, beside.quarantine) == (False, ())
    with pytest.raises(AlreadyExists):
        store.adopt(HEADER, whole[ends[0] :])
    store.open("demo").close()


def test_a_session_without_events_is_adopted_and_goes_on(path: Path) -> None:
    store = SqliteFile(path)
    store.adopt(HEADER, b"")
    assert store.list() == ["demo"]
    log = store.open("demo")
    assert log.next_seq == 0
    log.append([event(0)])
    log.close()
    assert len(texts(store)) == 1


def test_a_deleted_session_is_gone_and_its_number_is_nobody_else_s(path: Path) -> None:
    store = closed(path)
    reader = store.reader("demo")
    store.delete("demo")
    assert store.list() == []
    assert sql(path, "SELECT count(*) FROM lines") == [(0,)]
    assert not path.with_name("sessions.db-beside").joinpath("demo.head").exists()
    for ask in (store.open, store.read, store.reader, store.raw, store.delete):
        with pytest.raises(NotFound):
            ask("demo")
    fill(store, SessionHeader("other", 1))
    assert reader.read_new() == []
    fill(store)
    assert len(texts(store)) == 4


def test_a_session_that_is_open_is_neither_deleted_nor_replaced(path: Path) -> None:
    store = SqliteFile(path)
    log = store.create(HEADER)
    log.append([owner_event(0)])
    with pytest.raises(SessionBusy):
        store.delete("demo")
    with pytest.raises(SessionBusy):
        store.replace(HEADER, b"", (0, b""))
    log.append([event(1)])
    log.close()
    store.delete("demo")


def test_replacing_keeps_a_copy_of_what_was_and_reports_what_was_dropped(path: Path) -> None:
    store = closed(path)
    before = store.raw("demo")
    whole, ends = framed(batches([1, 1]))
    kept = store.replace(HEADER, whole[ends[0] :], (len(whole), b"{dropped\n"))
    assert Path(kept).read_bytes() == before
    assert store.raw("demo") == whole
    assert store.beside("demo").mark is None
    log = store.open("demo")
    assert log.recovered is not None
    assert log.recovered.dropped_bytes == len(b"{dropped\n")
    assert log.recovered.quarantine == f"demo.torn-{len(whole)}-0"
    log.append([event(2)])
    log.close()
    assert store.beside("demo").quarantine == (f"demo.torn-{len(whole)}-0",)
    again = store.replace(HEADER, whole[ends[0] :], (len(whole), b"{dropped\n"))
    assert again != kept
    assert store.beside("demo").quarantine == (f"demo.torn-{len(whole)}-0",)


def test_a_replaced_session_can_be_told_from_the_one_before(path: Path) -> None:
    store = SqliteFile(path)
    fill(store)
    reader = store.reader("demo")
    assert len(reader.read_new()) == 4
    whole, ends = framed([[event(0, text="other")]])
    store.replace(HEADER, whole[ends[0] :], (0, b""))
    with pytest.raises(LogCorrupt):
        reader.read_new()


def test_a_fork_is_durable_when_it_returns_and_its_source_may_be_open(path: Path) -> None:
    store = SqliteFile(path)
    log = store.create(HEADER)
    log.append([event(0), event(1, "turn/end")])
    assert log.durable_seq == -1
    store.fork("demo", None, TWIN)
    assert store.open("twin").durable_seq == 1
    log.close()


@pytest.mark.parametrize("change", ["repaired", "deleted"])
def test_a_source_that_changes_while_it_is_forked_leaves_no_fork(path: Path, change: str) -> None:
    store, other = SqliteFile(path), SqliteFile(path)
    log = store.create(HEADER)
    log.append([event(0), event(1, "turn/end")])
    log.close()

    def meanwhile(operation: str, args: tuple[object, ...]) -> None:
        if operation == "lock":
            store._port = store._locks._port = OS
            if change == "deleted":
                other.delete("demo")
                return
            whole, ends = framed([[event(0, text="other"), event(1, "turn/end")]])
            other.replace(HEADER, whole[ends[0] :], (0, b""))

    store._locks._port = intercepted(OS, meanwhile)
    with pytest.raises(Unavailable, match="changed while it was copied"):
        store.fork("demo", None, TWIN)
    assert "twin" not in store.list()


def _removals(path: Path, work: Callable[[SqliteFile], object]) -> list[str]:
    """What the work does to the names of files, up to the first thing that it commits."""
    seen: list[str] = []

    def before(operation: str, args: tuple[object, ...]) -> None:
        if operation in ("unlink", "sync_directory", "rename"):
            seen.append(f"{operation} {Path(str(args[0])).name}")

    work(SqliteFile(path, intercepted(OS, before)))
    return seen


def test_a_head_file_is_removed_for_good_before_anything_else_is_done(path: Path) -> None:
    closed(path)
    removed = ["unlink demo.head", "sync_directory sessions.db-beside"]
    stray = path.with_name("sessions.db-beside") / "demo.head"
    kept = stray.read_bytes()
    assert _removals(path, lambda store: store.delete("demo"))[:2] == removed
    for make in (
        lambda store: store.create(HEADER).close(),
        lambda store: store.adopt(HEADER, b""),
        lambda store: store.replace(HEADER, b"", (0, b"")),
    ):
        stray.write_bytes(kept)  # as a power cut may leave it
        seen = _removals(path, make)
        at = seen.index(removed[0])
        assert seen[at : at + 2] == removed


def test_when_a_session_was_written_to_is_known_from_its_last_event(path: Path) -> None:
    store = closed(path)
    assert store.written_at("demo") == 1_760_000_000_003 * 1_000_000
    assert store.written_at("nobody") == 0


def test_sessions_go_from_files_to_sqlite_and_back_byte_by_byte(tmp_path: Path) -> None:
    folder, store = JsonlFolder(tmp_path / "a"), SqliteFile(tmp_path / "s.db")
    whole, ends = framed(batches([3, 1]))
    folder.adopt(HEADER, whole[ends[0] :])
    store.adopt(HEADER, folder.raw("demo")[ends[0] :])
    back = JsonlFolder(tmp_path / "b")
    back.adopt(HEADER, store.raw("demo")[ends[0] :])
    assert back.raw("demo") == store.raw("demo") == folder.raw("demo") == whole


def test_a_reader_follows_from_every_place_with_every_window(path: Path) -> None:
    store = SqliteFile(path)
    log = store.create(HEADER)
    expected: list[bytes] = []
    readers = []
    for size in (1, 3, 2, 1):
        batch = [event(log.next_seq + place, text="x" * 50) for place in range(size)]
        log.append(batch)
        expected += batch
        readers.append((store.reader("demo"), list[bytes]()))
        for reader, seen in readers:
            for window in (1, 100, None):
                seen += [record.encoded for record in reader.read_new(window)]
            assert seen == expected
    log.close()
    record = store.reader("demo").read_new()[3]
    assert readers[0][0].reread(record) == record


def test_readers_do_not_wait_for_the_writer_nor_the_writer_for_them(path: Path) -> None:
    store = SqliteFile(path)
    fill(store)
    log = store.open("demo")
    with database_of(store).transaction(durable=False) as db:
        db.execute("UPDATE syncs SET count = 0")
        assert len(texts(store)) == 4  # in the middle of a transaction
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM lines").fetchall()
    log.append([event(4)])
    log.sync()
    assert len(texts(store)) == 5
    other.close()
    log.close()


def test_the_write_ahead_log_stays_bounded_while_somebody_follows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_BYTES", 6 << 20)
    store = SqliteFile(path)
    log = store.create(HEADER)
    log.append([event(0)])
    stop, seen = threading.Event(), list[int]()

    def follow() -> None:
        reader = SqliteFile(path).reader("demo")
        while not stop.is_set():
            seen.extend(record.seq for record in reader.read_new(1 << 16))
        seen.extend(record.seq for record in reader.read_new())

    follower = threading.Thread(target=follow)
    follower.start()
    largest = 0
    for seq in range(1, 60):
        log.append([event(seq, text="x" * 1_000_000)])
        largest = max(largest, path.with_name("sessions.db-wal").stat().st_size)
    stop.set()
    follower.join(60)
    assert seen == list(range(60))
    assert largest < 20 << 20  # of 60 MB
    log.close()
    store.close()


def test_a_reader_who_stays_neither_delays_the_writer_nor_fails_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_BYTES", 1 << 20)
    monkeypatch.setattr(database, "BUSY_SECONDS", 300)
    monkeypatch.setattr(schema, "BUSY_SECONDS", 300)
    store = SqliteFile(path)
    fill(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM lines").fetchall()
    log = store.open("demo")
    for seq in range(4, 10):
        log.append([event(seq, text="x" * 500_000)])
        log.sync()  # would wait five minutes for the reader
    assert path.with_name("sessions.db-wal").stat().st_size > 1 << 20
    other.close()
    log.append([event(10)])
    assert path.with_name("sessions.db-wal").stat().st_size == 0
    log.close()
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_store_that_is_used_again_after_closing_connects_again(path: Path) -> None:
    store = SqliteFile(path)
    fill(store)
    store.close()
    assert len(texts(store)) == 4
    fill(store, TWIN)
    store.close()
    store.close()
    assert SqliteFile(path).list() == ["demo", "twin"]


def test_a_store_with_an_open_log_can_be_closed_without_losing_it(path: Path) -> None:
    store = SqliteFile(path)
    log = store.create(HEADER)
    log.append([event(0)])
    store.close()
    log.append([event(1)])
    log.close()
    assert len(texts(SqliteFile(path))) == 2
