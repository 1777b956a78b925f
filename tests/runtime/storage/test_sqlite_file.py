"""The file of a SQLite store: how it comes to be, and which files are refused."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from refold.runtime.storage import (
    OS,
    LogFailed,
    NoStoreFile,
    NotFound,
    Port,
    SessionBusy,
    SessionHeader,
    SqliteFile,
    StoreFull,
    StoreRefused,
    Unavailable,
)
from refold.runtime.storage.sqlite import schema
from refold.runtime.storage.sqlite.names import SqliteNames
from tests.runtime.storage.databases import closed, database_of, fill, sql, texts
from tests.runtime.storage.logs import HEADER, PowerCut, cut_at, event, intercepted

TWIN = SessionHeader("twin", 9)


class NoRanges:
    """The system as it is where range locks are missing."""

    has_range_locks = False

    def __getattr__(self, name: str) -> object:
        return getattr(OS, name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "sessions.db"


def test_a_file_says_whose_it_is_and_of_which_version(path: Path) -> None:
    closed(path)
    assert sql(path, "PRAGMA application_id") == [(0x7266_6C64,)]
    assert sql(path, "PRAGMA user_version") == [(1,)]
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


def _every_use(store: SqliteFile) -> list[Callable[[], object]]:
    return [
        store.list,
        lambda: store.read("demo"),
        lambda: store.open("demo"),
        lambda: store.reader("demo"),
        lambda: store.raw("demo"),
        lambda: store.delete("demo"),
        lambda: store.adopt(TWIN, b""),
        lambda: store.fork("demo", None, TWIN),
        lambda: store.create(TWIN),
    ]


def _text(path: Path) -> None:
    path.write_text("Dear diary, this is no database at all.\n" * 400)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _other_program(path: Path) -> None:
    sql(path, "CREATE TABLE sessions (id TEXT)")


def _newer_version(path: Path) -> None:
    closed(path)
    sql(path, "PRAGMA user_version = 2")


def _without_version(path: Path) -> None:
    closed(path)
    sql(path, "PRAGMA user_version = 0")


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (_text, "no SQLite file"),
        (_empty, "another program"),
        (_other_program, "another program"),
        (_newer_version, "version 2"),
        (_without_version, "version 0"),
    ],
)
def test_a_file_that_is_no_store_of_this_version_is_refused_and_left_alone(
    path: Path, make: Callable[[Path], None], found: str
) -> None:
    path.parent.mkdir()
    make(path)
    before = path.read_bytes()
    for use in _every_use(SqliteFile(path)):
        with pytest.raises(NoStoreFile, match=found) as refused:
            use()
        assert "use the version that made it" in str(refused.value)
    assert path.read_bytes() == before


def _link(path: Path) -> None:
    closed(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def _twin(path: Path) -> None:
    closed(path)
    path.with_name("another name").hardlink_to(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_link, _twin, _folder, _pipe])
def test_anything_but_a_plain_file_with_one_name_is_refused(
    path: Path, make: Callable[[Path], None]
) -> None:
    path.parent.mkdir()
    make(path)
    for use in _every_use(SqliteFile(path)):
        with pytest.raises(StoreRefused):
            use()


def test_a_network_file_system_is_refused_for_writing_and_not_for_reading(path: Path) -> None:
    closed(path)

    def before(operation: str, _args: tuple[object, ...]) -> str | None:
        return "a FUSE or virtiofs file system" if operation == "file_system" else None

    store = SqliteFile(path, intercepted(OS, before))
    for use in (lambda: store.open("demo"), lambda: store.create(TWIN), lambda: fill(store, TWIN)):
        with pytest.raises(StoreRefused, match="FUSE"):
            use()
    assert len(texts(store)) == 4


def test_a_file_that_keeps_no_write_ahead_log_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {0x7266_6C64}")
        db.execute("PRAGMA user_version = 1")
        with pytest.raises(StoreRefused, match="in mode memory, synchronous 2"):
            schema.prepare(db, path)


def test_a_file_that_another_program_makes_meanwhile_is_not_written_to(path: Path) -> None:
    log = SqliteFile(path).create(HEADER)
    _other_program(path)
    with pytest.raises(NoStoreFile):
        log.append([event(0)])
    log.close()
    assert sql(path, "SELECT count(*) FROM sqlite_master") == [(1,)]


def test_where_range_locks_are_missing_each_session_has_a_lock_file(path: Path) -> None:
    store, other = (SqliteFile(path, cast("Port", NoRanges())) for _ in range(2))
    log = store.create(HEADER)
    log.append([event(0)])
    with pytest.raises(SessionBusy):
        other.open("demo")
    assert path.with_name("sessions.db-demo.lock").exists()
    log.close()
    other.open("demo").close()


def test_a_folder_that_is_moved_fails_every_log(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    path.parent.rename(path.parent.with_name("elsewhere"))
    with pytest.raises(LogFailed, match="another program deleted, moved or replaced"):
        log.append([event(4)])
    log.close()


def test_a_library_that_is_too_old_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.36.0")
    log = SqliteFile(path).create(HEADER)
    with pytest.raises(StoreRefused, match=r"3\.37 or newer, and this Python has 3\.36\.0"):
        log.append([event(0)])
    assert not path.exists()


@pytest.mark.parametrize(
    ("version", "has_race"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_the_versions_with_the_race_are_known(version: tuple[int, ...], has_race: bool) -> None:
    assert schema.has_wal_reset_race(version) == has_race


@pytest.mark.parametrize("version", [(3, 40, 1), (3, 51, 3)])
def test_a_library_with_the_race_is_named_once_in_a_warning(
    version: tuple[int, ...],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    schema._warn_of_old_library.cache_clear()
    with caplog.at_level(logging.WARNING, "refold"):
        closed(path)
        closed(path.with_name("other.db"))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (version < (3, 51, 3))
    assert all("WAL-reset race, fixed in 3.51.3" in warning for warning in warnings)


def test_a_crash_at_any_step_of_making_the_file_leaves_it_whole_or_absent(tmp_path: Path) -> None:
    for step in count():
        path = tmp_path / str(step) / "s.db"
        path.parent.mkdir()
        try:
            fill(SqliteFile(path, cut_at(OS, step)))
        except PowerCut:
            pass
        else:
            assert step > 6
            break
        store = SqliteFile(path)
        assert store.list() in ([], ["demo"])
        fill(store, TWIN)
        assert len(texts(store, "twin")) == 4
        store.close()
        assert path.stat().st_nlink == 1
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_second_name_that_a_crash_left_is_removed(path: Path) -> None:
    closed(path)
    SqliteNames(path).draft("4711-abcd").hardlink_to(path)
    store = SqliteFile(path)
    assert len(texts(store)) == 4
    store.open("demo").close()
    assert path.stat().st_nlink == 1


def test_a_draft_that_its_maker_removes_meanwhile_is_no_second_name(path: Path) -> None:
    closed(path)
    draft = SqliteNames(path).draft("4711-abcd")
    draft.hardlink_to(path)

    def before(operation: str, _args: tuple[object, ...]) -> None:
        if operation == "listdir":
            draft.unlink(missing_ok=True)

    assert len(texts(SqliteFile(path, intercepted(OS, before)))) == 4


def _make_at_once(path: Path, name: str, together: Any) -> None:
    store = SqliteFile(path)
    log = store.create(SessionHeader(name, 1))
    together.wait(60)
    log.append([event(0)])
    log.close()
    store.close()


def test_several_threads_that_make_the_file_at_once_share_it(path: Path) -> None:
    together = threading.Barrier(4)
    threads = [
        threading.Thread(target=_make_at_once, args=(path, f"t{number}", together))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert SqliteFile(path).list() == ["t0", "t1", "t2", "t3"]


MAKER = """
import sys
from pathlib import Path
from refold.runtime.storage import SessionHeader, SqliteFile
from tests.runtime.storage.logs import event
log = SqliteFile(Path(sys.argv[1])).create(SessionHeader(sys.argv[2], 1))
print("ready", flush=True)
sys.stdin.readline()
log.append([event(0)])
log.close()
"""


@pytest.mark.crash
def test_several_processes_that_make_the_file_at_once_share_it(path: Path) -> None:
    names = ["p0", "p1", "p2"]
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        for name in names
    ]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"ready\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write(b"\n")
        maker.stdin.flush()
    for maker in makers:
        maker.communicate(timeout=60)
        assert maker.returncode == 0
    assert SqliteFile(path).list() == names
    assert [file for file in path.parent.iterdir() if ".new-" in file.name] == []


def test_the_first_name_wins_where_two_made_the_file(path: Path) -> None:
    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "link":
            closed(path, "first")

    store = SqliteFile(path, intercepted(OS, before))
    fill(store)
    assert store.list() == ["demo", "first"]


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("change", ["delete", "move", "replace"])
def test_a_file_that_is_not_where_it_was_fails_every_log_and_acknowledges_nothing(
    path: Path, suffix: str, change: str
) -> None:
    store = closed(path, "a", "b")
    logs = [store.open("a"), store.open("b")]
    logs[0].append([event(4)])
    logs[0].sync()
    named = path.with_name(path.name + suffix)
    copy = named.read_bytes()
    if change == "delete":
        named.unlink()
    else:
        named.rename(path.with_name("elsewhere"))
    if change == "replace":
        named.write_bytes(copy)
    for log in logs:
        with pytest.raises(LogFailed, match="another program deleted, moved or replaced"):
            log.append([event(log.next_seq)])
        with pytest.raises(LogFailed):
            log.sync()
        assert log.durable_seq == log.next_seq - 1
        log.close()


def test_a_file_that_is_replaced_during_a_commit_acknowledges_nothing(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    log.append([event(4)])
    armed = False

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if armed and operation == "lstat" and args[0] == path:
            named.append(args)
            if len(named) == 2:  # before the transaction, and after it
                path.rename(path.with_name("elsewhere"))

    named: list[object] = []
    database_of(store)._port = intercepted(OS, before)
    armed = True
    with pytest.raises(LogFailed):
        log.append([event(5)])
    armed = False
    assert len(named) == 2
    log.close()


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_goes_during_the_first_transaction_holds_nothing_for_anybody(
    path: Path, suffix: str
) -> None:
    store = closed(path)
    with pytest.raises(LogFailed), database_of(store).transaction(durable=True) as db:
        db.execute("UPDATE syncs SET count = 0")
        path.with_name(path.name + suffix).rename(path.with_name("elsewhere"))


def test_reading_goes_on_in_the_file_that_the_name_leads_to(path: Path) -> None:
    store = closed(path)
    assert store.list() == ["demo"]
    other = path.with_name("other.db")
    closed(other, "twin")
    path.unlink()
    other.rename(path)
    assert store.list() == ["twin"]
    path.unlink()
    assert store.list() == []
    with pytest.raises(NotFound):
        store.read("demo")


def test_a_file_that_cannot_be_written_to_says_so_and_the_log_stands_as_it_was(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    writer = database_of(store)._writer
    assert writer is not None
    writer.execute("PRAGMA query_only = ON")
    with pytest.raises(Unavailable, match="readonly"):
        log.append([event(4)])
    writer.execute("PRAGMA query_only = OFF")
    log.append([event(4)])
    log.close()
    assert len(texts(store)) == 5


READER = """
import os, sys
from pathlib import Path
from refold.runtime.storage import SqliteFile, Unavailable
store = SqliteFile(Path(sys.argv[1]))
if os.geteuid() == 0:
    os.setuid(65534)  # whom permissions bind
assert not os.access(Path(sys.argv[1]).parent, os.W_OK)
for _ in range(2):
    try:
        print(store.list(), len(store.read("demo").records))
    except Unavailable as error:
        print("Unavailable:", error.reason)
try:
    store.open("demo")
except Unavailable as error:
    print("Unavailable:", error.reason)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "store"
        folder.mkdir()
        folder.parent.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def _read_as_another(path: Path) -> list[str]:
    for file in path.parent.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    path.parent.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", READER, str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_file_at_rest_is_read_where_nothing_can_be_written(public: Path) -> None:
    closed(public / "s.db")
    read = _read_as_another(public / "s.db")
    assert read == ["['demo'] 4", "['demo'] 4", "Unavailable: Permission denied"]


def test_a_file_that_was_not_closed_cannot_be_read_where_nothing_can_be_written(
    public: Path,
) -> None:
    store = SqliteFile(public / "other.db")
    fill(store)
    for suffix in ("", "-wal"):
        (public / f"s.db{suffix}").write_bytes((public / f"other.db{suffix}").read_bytes())
    for said in _read_as_another(public / "s.db"):
        assert said.startswith("Unavailable: ")


def test_what_is_stored_takes_little_more_room_than_itself(path: Path) -> None:
    store, given = SqliteFile(path), 0
    log = store.create(HEADER)
    for size in (60, 300, 1_200) * 400:
        batch = [event(log.next_seq, text="x" * size)]
        given += sum(map(len, batch))
        log.append(batch)
    log.close()
    store.close()
    assert path.stat().st_size < 1.35 * given


@pytest.mark.crash
def test_a_forked_child_is_told_that_the_file_is_its_parents(path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from refold.runtime.storage import SqliteFile, StoreRefused
store = SqliteFile(Path({str(path)!r}))
print(store.list(), flush=True)
if os.fork() == 0:
    for other in (store, SqliteFile(Path({str(path)!r}))):
        try:
            other.list()
        except StoreRefused as refused:
            print(refused, flush=True)
    os._exit(0)
os.wait()
store.close()
if os.fork() == 0:
    print(SqliteFile(Path({str(path)!r})).list(), flush=True)
    os._exit(0)
os.wait()
"""
    closed(path).close()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    first, *refused, last = done.stdout.splitlines()
    assert first == last == "['demo']"
    assert len(refused) == 2
    assert all("forked from" in line for line in refused)


def test_another_program_s_transaction_is_waited_for_and_then_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.1)
    store = closed(path)
    log = store.open("demo")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="another process has been within a write"):
            log.append([event(4)])
        assert len(texts(store)) == 4
        other.execute("COMMIT")
    log.append([event(4)])
    log.close()
    assert len(texts(store)) == 5


def test_a_full_file_takes_nothing_of_the_batch_and_goes_on_once_there_is_room(path: Path) -> None:
    store = closed(path)
    log = store.open("demo")
    writer = database_of(store)._writer
    assert writer is not None
    writer.execute("PRAGMA max_page_count = 1")  # as small as the file is
    with pytest.raises(StoreFull, match="full"):
        log.append([event(4, text="x" * 100_000)])
    assert (log.next_seq, len(texts(store))) == (4, 4)
    writer.execute("PRAGMA max_page_count = 1000000")
    log.append([event(4, text="x" * 100_000)])
    log.close()
    assert len(texts(store)) == 5


def _fill_under_a_limit(path: Path, told: Any) -> None:
    import resource

    store = SqliteFile(path)
    log = store.create(HEADER)
    log.append([event(0)])
    log.sync()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    acknowledged = 0
    failure: BaseException | None = None
    for seq in range(1, 1000):
        try:
            log.append([event(seq, text="x" * 10_000)])
            log.sync()
        except (StoreFull, LogFailed) as error:
            failure = error
            break
        acknowledged = seq
    told.send((acknowledged, type(failure).__name__))


@pytest.mark.crash
def test_a_limit_on_the_size_of_files_loses_nothing_that_was_acknowledged(path: Path) -> None:
    # A process of its own: limits are those of a process.
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    child = context.Process(target=_fill_under_a_limit, args=(path, tell))
    child.start()
    acknowledged, failure = told.recv()
    child.join(60)
    assert acknowledged > 5
    assert failure in ("StoreFull", "LogFailed")
    store = SqliteFile(path)
    assert len(texts(store)) in (acknowledged + 1, acknowledged + 2)
    log = store.open("demo")
    log.append([event(log.next_seq)])
    log.close()
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def _files(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.iterdir() if found.is_file())


def test_who_only_read_leaves_nothing_beside_the_file(path: Path) -> None:
    closed(path).close()
    before, data, written = _files(path), path.read_bytes(), path.stat().st_mtime_ns
    store = SqliteFile(path)
    assert len(texts(store)) == 4
    assert _files(path) != before
    store.close()
    assert _files(path) == before
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (data, written)


def test_what_others_use_stays_when_a_reader_closes(path: Path) -> None:
    closed(path).close()
    first, second = SqliteFile(path), SqliteFile(path)
    texts(first)
    texts(second)
    first.close()
    wal = path.with_name(f"{path.name}-wal")
    assert wal.exists()
    assert len(texts(second)) == 4
    log = second.open("demo")
    texts(first)
    first.close()
    log.append([event(log.next_seq)])
    log.close()
    assert wal.exists()
    assert len(texts(second)) == 5
    second.close()
    assert not wal.exists()


def test_what_a_write_ahead_log_holds_is_left_there_by_who_only_reads(path: Path) -> None:
    store = SqliteFile(path)
    fill(store)
    wal = path.with_name(f"{path.name}-wal")
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    held = wal.read_bytes()
    assert held
    copy.with_name("copy.db-wal").write_bytes(held)
    reader = SqliteFile(copy)
    assert len(texts(reader)) == 4
    reader.close()
    assert copy.with_name("copy.db-wal").read_bytes() == held
    store.close()
