"""A log file that is open for writing: whose it still is, and what rounds do with many of them."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from refold.runtime.storage import (
    Fenced,
    JsonlFolder,
    JsonlLog,
    LogFailed,
    MemoryPort,
    SessionHeader,
    StoreFull,
)
from refold.runtime.storage.durable_mark import MARK
from refold.runtime.storage.jsonl.file_log import WHOLE_FILE_SYSTEM, FileRounds, _open_here
from refold.runtime.storage.jsonl.names import FolderNames
from tests.runtime.storage.logs import (
    FOLDER,
    HEADER,
    LOG,
    event,
    framed,
    get,
    intercepted,
    owner_event,
    put,
)

MARKED = FOLDER / f"demo{MARK}"


class NotedPort(MemoryPort):
    """Files in memory that can be synced as a whole; what was done with them, in order."""

    has_syncfs = True

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.mkdir(FOLDER)
        put(self, FOLDER / ".lock", b"")
        self.done.clear()

    def open(self, path: Any, flags: int, mode: int = 0o600) -> int:
        self.done.append(f"open {path.name}")
        return super().open(path, flags, mode)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self.done.append("pwrite")
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.done.append("fdatasync")
        super().fdatasync(fd)

    def syncfs(self, fd: int) -> None:
        self.done.append("syncfs")
        assert fd in self._open


def log_of(port: MemoryPort, header: SessionHeader = HEADER) -> JsonlLog:
    """A new log with two events, one of them durable."""
    if not any(path == FOLDER for path in port.paths()):
        port.mkdir(FOLDER)
    log = JsonlFolder(FOLDER, port).create(header)
    log.append([event(0)])
    log.sync()
    log.append([event(1)])
    return log


def owned(term: int) -> bytes:
    owner = {"host": "elsewhere", "pid": 1, "boot": "another"}
    return framed([[event(0, "session/owner", term=term, owner=owner)]])[0]


def replace(port: MemoryPort, data: bytes) -> None:
    port.unlink(LOG)
    put(port, LOG, data)


def test_a_writer_whose_log_is_being_taken_over_is_fenced() -> None:
    port = MemoryPort()
    log = log_of(port)
    port.rename(LOG, FolderNames(FOLDER).aside("demo"))
    with pytest.raises(Fenced) as fenced:
        log.append([event(2)])
    assert (fenced.value.current_term, fenced.value.durable_seq) == (log.term + 1, 0)
    with pytest.raises(Fenced):
        log.sync()


def test_a_writer_whose_log_is_gone_says_so() -> None:
    port = MemoryPort()
    log = log_of(port)
    port.unlink(LOG)
    with pytest.raises(LogFailed, match="deleted or moved the file"):
        log.append([event(2)])


@pytest.mark.parametrize(("term", "refusal"), [(1, LogFailed), (2, Fenced)])
def test_only_a_later_owner_fences_a_writer(term: int, refusal: type[Exception]) -> None:
    """What an earlier or equal one wrote, or nobody, was put there by another program."""
    port = MemoryPort()
    log = log_of(port)
    replace(port, owned(term))
    with pytest.raises(refusal):
        log.append([event(2)])


@pytest.mark.parametrize("moved", [True, False])
def test_an_owner_of_whom_only_the_lock_tells_fences_too(moved: bool) -> None:
    """It has just taken the log over, and not written its name yet."""
    port = MemoryPort()
    port.mkdir(FOLDER)
    folder = JsonlFolder(FOLDER, port)
    log = folder.create(HEADER)
    log.append([owner_event(0)])
    log.sync()
    port.unlink(FOLDER / ".lock")
    successor = JsonlFolder(FOLDER, port).open("demo")
    assert successor.term == log.term + 1
    if moved:  # the old owner has come to the new lock file, by another session
        folder.create(SessionHeader("another", 1)).close()
    with pytest.raises(Fenced) as fenced:
        log.append([event(1)])
    assert fenced.value.current_term == successor.term
    successor.close()
    log.close()


@pytest.mark.parametrize("level", ["power", "process", "none"])
def test_what_was_written_into_a_file_that_lost_its_name_meanwhile_is_not_acknowledged(
    level: Any,
) -> None:
    """At the level power by the sync, below by the write, after which nobody asks again."""
    port = MemoryPort()
    port.mkdir(FOLDER)
    armed = False

    def before(operation: str, _args: object) -> None:
        if operation == "pwrite" and armed:
            replace(port, owned(7))

    log = JsonlFolder(FOLDER, intercepted(port, before)).create(
        SessionHeader("demo", 1, durability=level)
    )
    log.append([event(0)])
    log.sync()
    armed = True
    with pytest.raises(Fenced):
        log.append([event(1)])
        assert level == "power"
        armed = False
        log.sync()


def test_a_log_is_vouched_for_once_something_in_it_is_durable_and_nothing_has_failed() -> None:
    port = MemoryPort()
    port.mkdir(FOLDER)
    log = JsonlFolder(FOLDER, port).create(HEADER)
    log.write_mark()
    log.append([event(0)])
    log.write_mark()
    assert MARKED not in port.paths()
    log.sync()
    log.write_mark()
    assert MARKED in port.paths()
    port.unlink(MARKED)
    port.unlink(LOG)
    with pytest.raises(LogFailed):
        log.append([event(1)])
    put(port, LOG, b"")
    log.write_mark()
    log.close()
    assert MARKED not in port.paths()


def test_a_failed_log_vouches_for_nothing() -> None:
    port, failing = MemoryPort(), False

    def before(operation: str, _args: object) -> None:
        if operation == "fdatasync" and failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    port.mkdir(FOLDER)
    log = JsonlFolder(FOLDER, intercepted(port, before)).create(HEADER)
    log.append([event(0)])
    log.sync()
    failing = True
    log.append([event(1)])
    with pytest.raises(LogFailed) as failed:
        log.sync()
    assert failed.value.reason == "Input/output error"
    log.write_mark()
    log.close()
    assert MARKED not in port.paths()


def test_a_new_log_that_found_no_room_is_no_file_and_not_open() -> None:
    port = NotedPort()

    def before(operation: str, _args: object) -> None:
        if operation == "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = JsonlFolder(FOLDER, intercepted(port, before)).create(HEADER)
    open_before, here_before = dict(port._open), set(_open_here)
    with pytest.raises(StoreFull, match="No space left"):
        log.append([event(0)])
    assert LOG not in port.paths()
    assert (port._open, _open_here) == (open_before, here_before)
    log.close()
    assert not port._open


def logs_in(port: MemoryPort, count: int) -> tuple[FileRounds, list[JsonlLog]]:
    folder = JsonlFolder(FOLDER, port)
    return folder.rounds, [folder.create(SessionHeader(f"s{n}", 0)) for n in range(count)]


def test_a_round_opens_what_whole_file_systems_are_synced_through_before_it_writes() -> None:
    """A descriptor reports what went wrong since it was opened."""
    port = NotedPort()
    rounds, logs = logs_in(port, 2)
    port.done.clear()
    done = rounds.write([(log, [[event(0)]]) for log in logs], durable=True)
    assert (done.failures, done.writes, done.syncs) == ({}, 2, 0)
    assert port.done[0] == "open .lock"
    assert port.done.count("open .lock") == 1


def test_where_no_file_system_can_be_synced_nothing_is_opened_for_it() -> None:
    port = MemoryPort()
    port.mkdir(FOLDER)
    rounds, logs = logs_in(port, 1)
    before = len(port._open)
    rounds.write([(logs[0], [[event(0)]])], durable=True)
    assert len(port._open) == before + 1, "the log's own file"


@pytest.mark.parametrize("count", [2, WHOLE_FILE_SYSTEM])
def test_few_files_are_synced_one_by_one_and_many_at_once(count: int) -> None:
    port = NotedPort()
    rounds, logs = logs_in(port, count)
    rounds.write([(log, [[event(0)]]) for log in logs], durable=True)
    port.done.clear()
    done = rounds.sync(logs, lambda syncs: [sync() for sync in syncs])
    few = count < WHOLE_FILE_SYSTEM
    assert (done.failures, done.syncs) == ({}, count if few else 1)
    assert port.done == (["fdatasync"] * count if few else ["syncfs"])
    assert [log.durable_seq for log in logs] == [0] * count


def test_where_each_session_has_its_lock_file_any_of_them_leads_to_the_file_system() -> None:
    class OwnLocks(NotedPort):
        has_range_locks = False

    port = OwnLocks()
    rounds, logs = logs_in(port, WHOLE_FILE_SYSTEM)
    port.done.clear()
    rounds.write([(log, [[event(0)]]) for log in logs], durable=True)
    assert port.done[0] == "open s0.lock"
    assert rounds.sync(logs, lambda syncs: [sync() for sync in syncs]).failures == {}
    assert port.done[-1] == "syncfs"


def test_a_round_counts_what_was_written_and_goes_on_without_what_was_not() -> None:
    port = NotedPort()
    rounds, (closed, log) = logs_in(port, 2)
    closed.close()
    done = rounds.write([(closed, [[event(0)]]), (log, [[event(0)]])], durable=True)
    assert [*done.failures] == [closed]
    assert done.writes == 1
    assert get(port, FOLDER / "s1.jsonl")
