"""What a writer does when the disk says no."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.faults import FailingPort, Fault
from refold.runtime.storage import (
    JsonlFolder,
    JsonlLog,
    LogCorrupt,
    LogFailed,
    MemoryPort,
    SessionHeader,
    StoreFull,
    Unavailable,
)
from tests.runtime.storage.logs import (
    FOLDER,
    HEADER,
    LOG,
    batches,
    event,
    framed,
    get,
    intercepted,
    put,
)


class Faults(FailingPort):
    """A store in memory over a port that can fail."""

    def __init__(self) -> None:
        super().__init__(MemoryPort())
        self.inner.mkdir(FOLDER)
        self.store = JsonlFolder(FOLDER, self)

    def fail(self, **errors: int) -> None:
        """Let the next call of each operation fail with its errno."""
        self.faults.extend(Fault(operation, error) for operation, error in errors.items())

    def cut_short(self, size: int) -> None:
        """Let the next write do no more than `size` bytes."""
        self.faults.append(Fault("pwrite", short=size))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def log(faults: Faults) -> Iterator[JsonlLog]:
    log = faults.store.create(HEADER)
    log.append([event(0)])
    log.sync()
    yield log
    log.close()


def test_a_short_write_is_gone_on_with(faults: Faults, log: JsonlLog) -> None:
    faults.cut_short(7)
    log.append([event(1), event(2)])
    log.sync()
    assert [record.seq for record in faults.store.read("demo").records] == [0, 1, 2]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_without_room_the_batch_is_taken_back_and_the_log_goes_on(
    faults: Faults, log: JsonlLog, code: int
) -> None:
    before = get(faults.inner, LOG)
    faults.cut_short(9)
    faults.fail(pwrite=code)
    with pytest.raises(StoreFull):
        log.append([event(1), event(2)])
    assert get(faults.inner, LOG) == before
    assert log.next_seq == 1
    log.append([event(1)])
    assert log.sync() == 1


@pytest.mark.parametrize("operation", ["ftruncate", "fdatasync"])
def test_a_batch_that_cannot_be_taken_back_poisons_the_log(
    faults: Faults, log: JsonlLog, operation: str
) -> None:
    faults.fail(pwrite=errno.ENOSPC, **{operation: errno.EIO})
    with pytest.raises(LogFailed):
        log.append([event(1)])
    with pytest.raises(LogFailed):
        log.append([event(1)])


def test_a_first_batch_without_room_leaves_no_file(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    faults.cut_short(30)
    faults.fail(pwrite=errno.ENOSPC)
    with pytest.raises(StoreFull):
        log.append([event(0)])
    assert faults.store.list() == []
    assert "demo.jsonl" not in faults.inner.listdir(FOLDER)
    log.append([event(0)])
    log.close()
    assert faults.store.read("demo").header == HEADER


def test_a_file_that_cannot_even_be_made_for_lack_of_room_is_tried_again(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    faults.fail(open=errno.ENOSPC)
    with pytest.raises(StoreFull):
        log.append([event(0)])
    log.append([event(0)])
    log.close()


def test_a_file_in_the_way_of_a_new_log_poisons_it(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    put(faults.inner, LOG, b"mine")
    with pytest.raises(LogFailed):
        log.append([event(0)])
    log.close()
    assert get(faults.inner, LOG) == b"mine"


def test_a_file_that_shrinks_while_it_is_read_is_read_as_far_as_it_goes(
    faults: Faults, log: JsonlLog
) -> None:
    data = get(faults.inner, LOG)

    def before(operation: str, args: tuple[Any, ...]) -> object:
        if operation == "pread" and args[2] > 100:
            return b""
        return (
            faults.inner.pread(args[0], min(args[1], 60), args[2]) if operation == "pread" else None
        )

    store = JsonlFolder(FOLDER, intercepted(faults.inner, before))
    assert len(data) > 150
    assert len(store.read("demo").records) == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_final_and_never_tried_again(
    faults: Faults, log: JsonlLog, code: int
) -> None:
    log.append([event(1)])
    faults.fail(fdatasync=code)
    with pytest.raises(LogFailed) as first:
        log.sync()
    assert first.value.durable_seq == log.durable_seq == 0
    faults.calls.clear()
    for use in (log.sync, lambda: log.append([event(2)])):
        with pytest.raises(LogFailed) as later:
            use()
        assert later.value is first.value
    log.close()
    assert "fdatasync" not in faults.calls
    assert "pwrite" not in faults.calls


def test_a_failed_sync_of_the_folder_is_final_too(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    log.append([event(0)])
    faults.fail(sync_directory=errno.EIO)
    with pytest.raises(LogFailed):
        log.sync()
    assert log.durable_seq == -1
    log.close()


def test_a_failed_write_poisons_the_log_and_frees_it_on_close(
    faults: Faults, log: JsonlLog
) -> None:
    faults.cut_short(5)
    faults.fail(pwrite=errno.EIO)
    with pytest.raises(LogFailed):
        log.append([event(1)])
    log.close()
    again = faults.store.open("demo")
    assert again.next_seq == 1
    assert again.recovered is not None
    assert again.recovered.dropped_bytes == 5
    again.close()


def test_closing_a_log_whose_sync_fails_says_so_and_frees_it(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    log.append([event(0)])
    faults.fail(fdatasync=errno.EIO)
    with pytest.raises(LogFailed):
        log.close()
    again = faults.store.open("demo")
    assert again.next_seq == 1
    again.close()


def test_closing_frees_the_session_even_if_the_file_cannot_be_closed(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    log.append([event(0)])
    log.write_mark()
    log.sync()
    closes = 0

    def before(operation: str, _args: tuple[Any, ...]) -> None:
        nonlocal closes
        closes += operation == "close"
        if operation == "close":
            raise OSError(errno.EIO, "Input/output error")

    log._port = intercepted(faults, before)
    log.close()
    assert closes == 1
    faults.store.open("demo").close()


def test_bytes_of_another_program_poison_the_log(faults: Faults, log: JsonlLog) -> None:
    fd = faults.inner.open(LOG, os.O_RDWR)
    faults.inner.pwrite(fd, b"x", faults.inner.fstat(fd).size)
    with pytest.raises(LogFailed, match="another program"):
        log.append([event(1)])


def test_a_replaced_file_poisons_the_log(faults: Faults, log: JsonlLog) -> None:
    data = get(faults.inner, LOG)
    faults.inner.unlink(LOG)
    fd = faults.inner.open(LOG, os.O_RDWR | os.O_CREAT)
    faults.inner.pwrite(fd, data, 0)
    with pytest.raises(LogFailed, match="another program"):
        log.append([event(1)])


def test_a_head_file_that_cannot_be_written_fails_nothing(faults: Faults, log: JsonlLog) -> None:
    faults.fail(rename=errno.ENOSPC)
    log.close()
    assert all(fault.is_spent for fault in faults.faults)


def test_a_recovery_without_room_says_so_and_frees_the_session(faults: Faults) -> None:
    data, ends = framed(batches([1, 2]))
    put(faults.inner, LOG, data[: ends[1] + 9])
    faults.fail(pwrite=errno.ENOSPC)
    with pytest.raises(StoreFull):
        faults.store.open("demo")
    assert len(get(faults.inner, LOG)) == ends[1] + 9
    faults.store.open("demo").close()


def test_an_error_of_the_disk_is_told_as_such(faults: Faults, log: JsonlLog) -> None:
    faults.fail(pread=errno.EIO)
    with pytest.raises(Unavailable) as caught:
        faults.store.read("demo")
    assert isinstance(caught.value.__cause__, OSError)


def test_a_fork_without_room_leaves_nothing(faults: Faults, log: JsonlLog) -> None:
    log.append([event(1, "turn/end")])
    faults.fail(copy_range=errno.ENOSPC)
    with pytest.raises(StoreFull):
        faults.store.fork("demo", None, SessionHeader("twin", 1))
    assert not [name for name in faults.inner.listdir(FOLDER) if name.startswith("twin")]
    faults.store.fork("demo", None, SessionHeader("twin", 1))


def test_one_batch_is_one_write_and_one_sync(faults: Faults, log: JsonlLog) -> None:
    faults.calls.clear()
    log.append([event(seq) for seq in range(1, 50)])
    log.sync()
    log.sync()
    assert faults.calls.count("pwrite") == 1
    assert faults.calls.count("fdatasync") == 1
    assert "sync_directory" not in faults.calls


def test_a_new_log_is_one_write_with_its_header(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    faults.calls.clear()
    log.append([event(0)])
    assert faults.calls.count("pwrite") == 1
    log.sync()
    assert [call for call in faults.calls if "sync" in call] == ["fdatasync", "sync_directory"]
    log.close()


def test_a_limit_on_file_size_takes_a_batch_back_on_a_real_disk(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    log = store.create(HEADER)
    log.append([event(0)])
    log.sync()
    size = (tmp_path / "demo.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        with pytest.raises(StoreFull):
            log.append([event(1, text="x" * 5000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "demo.jsonl").stat().st_size == size
    log.append([event(1)])
    log.close()
    assert len(store.read("demo").records) == 2


def test_damage_below_a_forks_seed_is_corruption_and_never_torn(faults: Faults) -> None:
    log = faults.store.create(HEADER)
    log.append([event(0), event(1, "turn/end")])
    log.close()
    faults.store.fork("demo", None, SessionHeader("twin", 1))
    path = FOLDER / "twin.jsonl"
    data = get(faults.inner, path)
    lines = data.split(b"\n")
    shorter = b"\n".join(lines[:2]) + b"\n"
    for damaged in (data[:-4], shorter, data.replace(b"turn/end", b"turn/eNd")):
        faults.inner.unlink(path)
        fd = faults.inner.open(path, os.O_RDWR | os.O_CREAT)
        faults.inner.pwrite(fd, damaged, 0)
        faults.inner.close(fd)
        with pytest.raises(LogCorrupt):
            faults.store.read("twin")
