"""One writer a session: in this process, in another, and after a death."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.runtime.storage import (
    OS,
    Fenced,
    JsonlFolder,
    LogFailed,
    NotFound,
    Port,
    SessionBusy,
    SessionHeader,
    StoreFull,
)
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.locks import StoreLock, offset_of
from tests.runtime.storage.logs import HEADER, event, intercepted, owner_event

HOLDER = """
import sys
from pathlib import Path
from typing import Any
from refold.runtime.storage import JsonlFolder, SessionHeader
from tests.runtime.storage.logs import HEADER, owner_event
log = JsonlFolder(Path(sys.argv[1])).create(HEADER)
log.append([owner_event(0)])
log.sync()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def _holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the session until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


class _NoRanges:
    """The system as it is where range locks are missing."""

    has_range_locks = False

    def __getattr__(self, name: str) -> object:
        return getattr(OS, name)


@pytest.fixture(params=["ranges", "files"])
def port(request: pytest.FixtureRequest) -> Port:
    return OS if request.param == "ranges" else _NoRanges()  # type: ignore[return-value]  # delegates


def test_the_system_has_range_locks() -> None:
    assert OS.has_range_locks


def test_two_stores_of_one_process_do_not_share_a_session(port: Port, tmp_path: Path) -> None:
    first, second = JsonlFolder(tmp_path, port), JsonlFolder(tmp_path, port)
    log = first.create(HEADER)
    log.append([owner_event(0)])
    for store in (first, second):
        with pytest.raises(SessionBusy) as caught:
            store.open("demo")
        assert caught.value.pid == os.getpid()
    log.close()
    second.open("demo").close()
    first.open("demo").close()


def test_sessions_are_locked_one_by_one(port: Port, tmp_path: Path) -> None:
    first, second = JsonlFolder(tmp_path, port), JsonlFolder(tmp_path, port)
    logs = [first.create(SessionHeader("a", 1)), second.create(SessionHeader("b", 1))]
    logs[0].close()
    with pytest.raises(SessionBusy):
        first.create(SessionHeader("b", 1))
    logs[1].close()


def test_a_lock_survives_unrelated_descriptors_of_its_file(port: Port, tmp_path: Path) -> None:
    log = JsonlFolder(tmp_path, port).create(HEADER)
    for path in tmp_path.iterdir():
        os.close(os.open(path, os.O_RDWR))
    with pytest.raises(SessionBusy):
        JsonlFolder(tmp_path, port).create(HEADER)
    log.close()


def test_lock_files_are_never_unlinked(port: Port, tmp_path: Path) -> None:
    JsonlFolder(tmp_path, port).create(HEADER).close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == ({".lock"} if port.has_range_locks else {"demo.lock"})


def test_a_session_that_could_not_be_opened_is_free(tmp_path: Path) -> None:
    (tmp_path / "demo.jsonl").write_bytes(b"damaged\n")
    store = JsonlFolder(tmp_path)
    for _ in range(2):
        with pytest.raises(Exception, match="damaged"):
            store.open("demo")


@pytest.mark.crash
def test_another_process_holds_a_session_until_it_is_killed(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    with _holder(tmp_path) as process:
        with pytest.raises(SessionBusy) as caught:
            store.open("demo")
        assert caught.value.pid == process.pid
        assert caught.value.host == os.uname().nodename
        assert len(store.read("demo").records) == 1
        process.kill()
        process.wait()
        log = store.open("demo")
        assert log.next_seq == 1
        log.append([event(1)])
        log.close()


@pytest.mark.crash
def test_a_forked_child_does_not_keep_its_parents_lock_alive(tmp_path: Path) -> None:
    script = HOLDER.replace(
        'print("held", flush=True)',
        "import os\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\n"
        "    sys.stdin.read()\n    os._exit(0)\nos._exit(0)",
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        process.wait()
        JsonlFolder(tmp_path).open("demo").close()


@pytest.mark.crash
def test_a_forked_child_that_closes_its_parents_log_frees_nothing(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    log = store.create(HEADER)
    log.append([event(0)])
    child = os.fork()
    if child == 0:
        log.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(SessionBusy):
        JsonlFolder(tmp_path).open("demo")
    log.close()


def test_a_writer_whose_lock_file_was_removed_writes_into_nothing(
    port: Port, tmp_path: Path
) -> None:
    old = JsonlFolder(tmp_path, port).create(HEADER)
    old.append([event(0)])
    old.sync()
    for path in tmp_path.glob("*.lock"):
        path.unlink()
    (tmp_path / ".lock").unlink(missing_ok=True)
    new = JsonlFolder(tmp_path, port).open("demo")
    with pytest.raises(Fenced if port is OS else LogFailed):  # the new one has not named itself yet
        old.append([event(1)])
    new.append([event(1)])
    old.close()
    new.close()
    assert [record.seq for record in JsonlFolder(tmp_path).read("demo").records] == [0, 1]


def test_a_process_moves_its_locks_to_a_lock_file_that_was_replaced(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    log = store.create(HEADER)
    log.append([event(0)])
    (tmp_path / ".lock").unlink()
    store.create(SessionHeader("another", 1)).close()
    with pytest.raises(SessionBusy):
        JsonlFolder(tmp_path).open("demo")
    log.append([event(1)])
    log.close()


def test_a_log_moves_once_after_the_lock_file_was_replaced(tmp_path: Path) -> None:
    log = JsonlFolder(tmp_path).create(HEADER)
    log.append([event(0)])
    log.close()
    (tmp_path / ".lock").unlink()
    store, path = JsonlFolder(tmp_path), tmp_path / "demo.jsonl"
    inodes = [path.stat().st_ino]
    kept = path.open("rb")  # an inode in use is not given out again
    for _ in range(2):
        store.open("demo").close()
        inodes.append(path.stat().st_ino)
    kept.close()
    assert inodes[0] != inodes[1]
    assert inodes[1] == inodes[2]


def test_a_child_that_lets_go_leaves_the_parents_lock_in_place(tmp_path: Path) -> None:
    parent = StoreLock(FolderNames(tmp_path), OS)
    assert parent.acquire("a")
    child = StoreLock(FolderNames(tmp_path), OS)
    assert child.acquire("b")
    child.let_go()
    child.release("b")
    assert not StoreLock(FolderNames(tmp_path), OS).acquire("a")
    assert StoreLock(FolderNames(tmp_path), OS).acquire("b")


def test_letting_go_closes_the_lock_files_of_sessions_too(tmp_path: Path) -> None:
    port: Port = _NoRanges()  # type: ignore[assignment]  # delegates
    child = StoreLock(FolderNames(tmp_path), port)
    assert child.acquire("a")
    child.let_go()
    assert StoreLock(FolderNames(tmp_path), port).acquire("a")


def test_a_lock_file_that_was_replaced_while_it_was_taken_is_not_taken(tmp_path: Path) -> None:
    port: Port = _NoRanges()  # type: ignore[assignment]  # delegates

    def before(operation: str, _args: tuple[object, ...]) -> None:
        if operation == "flock":
            (tmp_path / "a.lock").unlink()

    assert not StoreLock(FolderNames(tmp_path), intercepted(port, before)).acquire("a")
    assert StoreLock(FolderNames(tmp_path), port).acquire("a")


def test_a_folder_that_another_process_makes_first_is_used(tmp_path: Path) -> None:
    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "mkdir":
            OS.mkdir(args[0])

    JsonlFolder(tmp_path / "new", intercepted(OS, before)).create(HEADER).close()
    assert (tmp_path / "new" / ".lock").exists()


def test_every_session_has_its_own_byte() -> None:
    offsets = {offset_of(f"session-{number}") for number in range(10_000)}
    assert len(offsets) == 10_000
    assert all(0 <= offset < 2**62 for offset in offsets)


def test_a_lock_that_cannot_be_asked_for_is_no_held_lock(tmp_path: Path) -> None:
    def before(operation: str, _args: tuple[object, ...]) -> None:
        if operation == "lock":
            raise OSError(37, "No locks available")

    with pytest.raises(Exception, match="No locks available"):
        JsonlFolder(tmp_path, intercepted(OS, before)).create(HEADER)


@pytest.mark.crash
def test_an_owner_that_has_ended_is_not_named_as_the_holder(tmp_path: Path) -> None:
    with _holder(tmp_path) as process:
        pass
    assert process.returncode is not None
    first, second = JsonlFolder(tmp_path), JsonlFolder(tmp_path)
    log = first.open("demo")
    with pytest.raises(SessionBusy) as caught:
        second.open("demo")
    assert (caught.value.pid, caught.value.since) == (None, None)
    log.close()


def test_a_new_log_that_found_no_room_does_not_take_its_next_owners_with_it(
    tmp_path: Path,
) -> None:
    """The lock file is replaced by force while the first owner is within its first write."""

    def take_over_and_fail(operation: str, args: tuple[Any, ...]) -> None:
        if operation != "pwrite":
            return
        (tmp_path / ".lock").unlink()
        other = JsonlFolder(tmp_path)
        with pytest.raises(NotFound):
            other.open("demo")
        log = other.create(HEADER)
        log.append([owner_event(0)])
        log.close()
        raise OSError(errno.ENOSPC, "no room")

    port = intercepted(OS, take_over_and_fail)
    with pytest.raises(StoreFull):
        JsonlFolder(tmp_path, port).create(HEADER).append([event(0)])
    assert len(JsonlFolder(tmp_path).read("demo").records) == 1


def test_a_log_that_was_taken_over_vouches_for_nothing_when_it_closes(tmp_path: Path) -> None:
    log = JsonlFolder(tmp_path).create(HEADER)
    log.append([event(0)])
    log.append([event(1)])
    log.close()
    old = JsonlFolder(tmp_path).open("demo")
    (tmp_path / ".lock").unlink()
    other = JsonlFolder(tmp_path)
    first, line, *_ = other.raw("demo").splitlines(keepends=True)
    other.replace(HEADER, line, (len(first + line), b""))
    old.close()
    assert len(other.read("demo").records) == 1


def test_who_asks_for_a_lock_neither_takes_nor_makes_one(tmp_path: Path) -> None:
    store = StoreLock(FolderNames(tmp_path), OS)
    assert store.is_held("a") is False
    assert [*tmp_path.iterdir()] == []
    other = StoreLock(FolderNames(tmp_path), OS)
    assert other.acquire("a")
    assert (store.is_held("a"), other.is_held("a"), store.is_held("b")) == (True, True, False)
    other.release("a")
    assert (store.is_held("a"), store.acquire("a")) == (False, True)
    store.release("a")
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    assert store.is_held("a") is None


def test_what_is_held_is_said_as_it_is_known(port: Port, tmp_path: Path) -> None:
    """Without range locks only the holder knows."""
    store, other = StoreLock(FolderNames(tmp_path), port), StoreLock(FolderNames(tmp_path), port)
    assert [store.acquire("a"), store.acquire("a"), other.acquire("a")] == [True, False, False]
    assert [store.is_held("a"), store.is_held("b")] == [True, False if port is OS else None]
    assert other.is_held("a") is (True if port is OS else None)


def test_who_holds_a_session_on_another_lock_file_is_known_to_who_held_it(
    port: Port, tmp_path: Path
) -> None:
    first, second = StoreLock(FolderNames(tmp_path), port), StoreLock(FolderNames(tmp_path), port)
    lock = ".lock" if port is OS else "a.lock"
    assert not first.is_held_by_another("a")
    assert first.acquire("a")
    assert not first.is_held_by_another("a")
    (tmp_path / lock).unlink()
    assert not first.is_held_by_another("a")
    assert second.acquire("a")
    known = port is OS
    assert (first.is_held_by_another("a"), first.is_held_by_another("b")) == (known, False)
    assert first.acquire("b"), "which moves it to the other lock file"
    assert (first.is_held_by_another("a"), first.is_held_by_another("b")) == (known, False)
    second.release("a")
    assert not first.is_held_by_another("a")


def test_only_a_lock_file_that_was_replaced_makes_others_possible(tmp_path: Path) -> None:
    """One that stays is opened once; one that is put in its place may be somebody else's."""
    opened = []

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "open":
            opened.append(args[0].name)

    store = StoreLock(FolderNames(tmp_path), intercepted(OS, before))
    assert [store.acquire("a"), store.acquire("b")] == [True, True]
    assert [store.may_be_shared("a"), store.may_be_shared("b")] == [False, False]
    assert opened == [".lock"]
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(tmp_path / ".lock")
    assert store.acquire("c")
    assert [store.may_be_shared("a"), store.may_be_shared("c")] == [True, True]
    store.settle("c")
    assert [store.may_be_shared("a"), store.may_be_shared("c")] == [True, False]
    assert not StoreLock(FolderNames(tmp_path), OS).acquire("b"), "it was taken along"


def test_no_lock_that_was_given_back_or_refused_keeps_a_descriptor(
    port: Port, tmp_path: Path
) -> None:
    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = descriptors()
    store, other = StoreLock(FolderNames(tmp_path), port), StoreLock(FolderNames(tmp_path), port)
    for _ in range(3):
        assert store.acquire("a")
        assert not other.acquire("a")
        assert not store.acquire("a")
        assert other.is_held("a") is not False
        (tmp_path / "another").touch()
        (tmp_path / "another").rename(tmp_path / ".lock")
        assert store.acquire("b")
        store.release("b")
        store.release("a")
    other.let_go()
    assert descriptors() == before


def test_a_child_of_a_fork_amid_an_acquisition_can_let_go(tmp_path: Path) -> None:
    """Whoever held the guard does not exist in the child."""
    child = StoreLock(FolderNames(tmp_path), OS)
    child._guard.acquire()
    child.let_go()
    assert not child._guard.locked()


def test_a_sessions_byte_is_the_same_in_every_version() -> None:
    """Two versions of refold may run beside each other, and keep each other out."""
    assert offset_of("demo") == 767252799067183649
