"""What a log may call durable: what stood when its sync began, in the file that bears its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.runtime.storage import (
    JsonlFolder,
    JsonlLog,
    LogCorrupt,
    LogFailed,
    MemoryPort,
    Port,
    SqliteFile,
    scan,
)
from refold.runtime.storage.beside import Beside
from refold.runtime.storage.durable_mark import DurableMark, read_mark, vanished, write_mark
from refold.runtime.storage.index import SavedIndex
from refold.runtime.storage.walk import Records
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, batches, event, framed, get, put


@pytest.fixture
def port() -> MemoryPort:
    made = MemoryPort()
    made.mkdir(FOLDER)
    return made


@pytest.fixture
def log(port: MemoryPort) -> Iterator[JsonlLog]:
    made = JsonlFolder(FOLDER, port).create(HEADER)
    made.append([event(0)])
    made.sync()
    yield made
    made.close()


def test_what_is_appended_while_a_sync_runs_is_not_durable_by_it(log: JsonlLog) -> None:
    log.append([event(1)])

    def meanwhile(port: Port, fd: int) -> None:
        port.fdatasync(fd)
        log.append([event(2)])

    assert log.sync(meanwhile) == 1
    assert log.durable_seq == 1
    assert log.next_seq == 3
    assert log.sync() == 2


def test_what_was_synced_into_a_file_without_its_name_is_not_durable(
    port: MemoryPort, log: JsonlLog
) -> None:
    log.append([event(1)])

    def meanwhile(port: Port, fd: int) -> None:
        port.fdatasync(fd)
        whole = get(port, LOG)
        port.unlink(LOG)
        put(port, LOG, whole)

    with pytest.raises(LogFailed) as failed:
        log.sync(meanwhile)
    assert failed.value.durable_seq == 0
    assert log.durable_seq == 0


def test_the_head_file_vouches_for_what_is_durable_alone(port: MemoryPort, log: JsonlLog) -> None:
    log.append([event(1)])
    log.write_mark()
    head = read_mark(port, FOLDER / "demo.head")
    assert head is not None
    assert head.seq == 0
    log.sync()
    log.write_mark()
    after = read_mark(port, FOLDER / "demo.head")
    assert after is not None
    assert (after.seq, after.end) == (1, len(get(port, LOG)))


def test_the_head_file_of_a_sqlite_log_vouches_for_what_is_durable_alone(tmp_path: Path) -> None:
    store = SqliteFile(tmp_path / "sessions.db")
    log = store.create(HEADER)
    log.append([event(0)])
    log.sync()
    log.append([event(1)])
    log.write_mark()
    beside = store.beside("demo").mark
    assert beside is not None
    assert beside.seq == 0
    log.close()
    beside = store.beside("demo").mark
    assert beside is not None
    assert beside.seq == 1
    store.close()


def test_a_new_logs_first_bytes_are_durable_before_its_name(port: MemoryPort) -> None:
    """Else a crash could leave a name that leads to nothing."""
    order: list[str] = []
    fdatasync, sync_directory = port.fdatasync, port.sync_directory

    def data(fd: int) -> None:
        order.append("data")
        fdatasync(fd)

    def directory(path: Path) -> None:
        order.append("directory")
        sync_directory(path)

    port.fdatasync, port.sync_directory = data, directory  # type: ignore[method-assign]  # as noted
    log = JsonlFolder(FOLDER, port).create(HEADER)
    log.append([event(0)])
    order.clear()
    log.sync()
    assert order == ["data", "directory"]
    log.append([event(1)])
    log.sync()
    assert order == ["data", "directory", "data"]
    log.close()


def test_a_log_that_is_not_what_its_mark_saw_is_refused_with_the_place() -> None:
    data, ends = framed(batches([1, 1, 1]))
    found = scan(data, "demo", path="demo.jsonl")
    last = DurableMark(2, ends[3], found.end.chain)
    last.check(found, "p")
    refused: dict[DurableMark, tuple[int, int, int]] = {
        DurableMark(3, ends[3] + 50, 7): (ends[3], 5, 3),  # its end
        DurableMark(1, ends[2], 7): (ends[1], 3, 1),  # another checksum
        DurableMark(1, ends[2] + 1, found.records[1].chain): (ends[1], 3, 1),  # another length
    }
    for mark, place in refused.items():
        with pytest.raises(LogCorrupt) as caught:
            mark.check(found, "p")
        error = caught.value
        assert (error.path, error.offset, error.line, error.expected_seq) == ("p", *place)
        assert error.readable is found
    with pytest.raises(LogCorrupt) as caught:
        last.check(None, "p")
    error = caught.value
    assert (error.offset, error.line, error.expected_seq) == (0, 1, None)
    assert "refold delete" in str(error)


def test_only_a_mark_that_can_be_trusted_tells_of_a_session_that_is_gone() -> None:
    port = MemoryPort()
    assert vanished(port, FOLDER, list) == []
    port.mkdir(FOLDER)
    for name in ("gone", "there", "no id", "cut"):
        write_mark(port, FOLDER / f"{name}.head", DurableMark(0, 9, 9))
    put(port, FOLDER / "gone.index", b"anything")
    put(port, FOLDER / "cut.head", get(port, FOLDER / "cut.head")[:-1])
    assert vanished(port, FOLDER, lambda: ["there"]) == ["gone"]
    assert not port._open


def test_what_the_index_file_has_is_known_from_one_writing_to_the_next() -> None:
    """So that it is not written anew for a few lines more."""
    port = MemoryPort()
    beside = Beside(port, FOLDER, "demo")
    found = scan(framed(batches([1000]))[0], "demo", path="demo.jsonl")
    assert isinstance(found.records, Records)
    index = SavedIndex.of(found.records, found.end, 0)
    assert beside.write(found.end) == 0
    assert beside.write(found.end, index) == 1000
    assert beside.write(found.end, index, 1000) == 1000
    assert beside.write(found.end, None, 7) == 7
