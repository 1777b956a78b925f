"""A takeover's order of steps: which one, left out or moved, would lose what the old owner wrote.

The crash tests cut it at every step; here each step is looked at by itself.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from refold.runtime.storage import JsonlFolder, MemoryPort, NotFound, SessionBusy, Unavailable
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.jsonl.takeover import complete, take_over
from tests.runtime.storage.logs import FOLDER, LOG, event, framed, get, intercepted, memory, put

OWNED = event(0, "session/owner", term=1, owner={"host": "elsewhere", "pid": 1, "boot": "another"})
"""Of an owner that may be alive: who opens its log goes on in a copy."""

DATA, ENDS = framed([[OWNED], [event(1)]])
LATE = framed([[OWNED], [event(1)], [event(2)]])[0][len(DATA) :]


def left_behind(port: MemoryPort) -> list[str]:
    return [name for name in port.listdir(FOLDER) if "copy" in name or "aside" in name]


class Steps:
    """What is done to a store in memory while its log is taken over, by the name of each file."""

    def __init__(self) -> None:
        _, self.port = memory(DATA)
        self.seen: list[tuple[str, ...]] = []
        self.files: dict[int, str] = {}
        self.at: dict[str, Any] = {}
        self.store = JsonlFolder(FOLDER, intercepted(self.port, self._before))

    def _before(self, operation: str, args: tuple[Any, ...]) -> None:
        if operation in ("rename", "link"):
            self.seen.append((operation, args[0].name, args[1].name))
        elif operation in ("unlink", "sync_directory"):
            self.seen.append((operation, args[0].name))
        elif operation in ("fdatasync", "copy_range", "pwrite"):
            self.seen.append((operation,))
        act = self.at.pop(operation, None)
        if act is not None:
            act()

    def names(self) -> list[str]:
        return [step[0] for step in self.seen]


def test_the_copy_is_durable_before_it_bears_the_name_and_the_old_goes_last() -> None:
    steps = Steps()
    steps.store.open("demo").close()
    names = steps.names()
    moved, linked = names.index("rename"), names.index("link")
    assert moved < linked, "the old log loses its name first, so that its owner is told"
    assert "fdatasync" in names[moved:linked], "what has the name is durable"
    aside = steps.seen[moved][2]
    gone = steps.seen.index(("unlink", aside))
    assert "sync_directory" in names[linked:gone], "the name is durable before the old one goes"
    assert left_behind(steps.port) == []


def test_what_the_old_owner_writes_until_its_name_is_gone_is_taken_along() -> None:
    steps = Steps()
    old = steps.port.open(LOG, os.O_RDWR)
    steps.at["rename"] = lambda: steps.port.pwrite(old, LATE, len(DATA))
    log = steps.store.open("demo")
    assert log.next_seq == 3
    log.close()


def test_what_the_old_owner_writes_after_it_is_nowhere() -> None:
    steps = Steps()
    old = steps.port.open(LOG, os.O_RDWR)
    log = steps.store.open("demo")
    steps.port.pwrite(old, LATE, len(DATA))
    log.append([event(2, text="of the new owner")])
    log.close()
    texts = [record.encoded for record in steps.store.read("demo").records]
    assert texts[-1] == event(2, text="of the new owner")


@pytest.mark.parametrize("operation", ["fdatasync", "link"])
def test_a_takeover_that_fails_gives_the_log_its_name_back(operation: str) -> None:
    steps = Steps()

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    steps.at["rename"] = lambda: steps.at.update({operation: fail})
    with pytest.raises(Unavailable):
        steps.store.open("demo")
    assert get(steps.port, LOG) == DATA
    assert left_behind(steps.port) == []
    steps.store.open("demo").close()


@pytest.mark.parametrize("other", [None, DATA], ids=["moved away", "replaced"])
def test_a_log_that_has_lost_its_name_is_not_taken_over(other: bytes | None) -> None:
    """Somebody else took it, between the opening of its file and the claim."""
    _, port = memory(DATA)
    fd = port.open(LOG, os.O_RDWR)
    port.unlink(LOG)
    if other is not None:
        put(port, LOG, other)
    with pytest.raises(SessionBusy):
        take_over(port, FolderNames(FOLDER), "demo", fd)
    assert left_behind(port) == []
    if other is None:
        with pytest.raises(NotFound):
            JsonlFolder(FOLDER, port).read("demo")


def test_two_do_not_take_over_one_file_at_once() -> None:
    _, port = memory(DATA)
    layout = FolderNames(FOLDER)
    first, second = (port.open(LOG, os.O_RDWR) for _ in range(2))
    assert port.lock(first, 0)
    with pytest.raises(SessionBusy):
        take_over(port, layout, "demo", second)
    assert left_behind(port) == []
    port.close(first)
    target = take_over(port, layout, "demo", second)
    assert get(port, LOG) == DATA
    port.close(target)


def test_what_was_torn_is_looked_for_in_the_copy() -> None:
    """The copy is what is gone on with: a tail that came late is cut from it."""
    steps = Steps()
    old = steps.port.open(LOG, os.O_RDWR)
    steps.at["rename"] = lambda: steps.port.pwrite(old, LATE[:-9], len(DATA))
    log = steps.store.open("demo")
    assert log.next_seq == 2
    assert log.recovered is not None
    assert log.recovered.dropped_bytes == len(LATE) - 9
    log.close()
    assert steps.store.read("demo").torn is None


def test_nobody_takes_over_what_is_being_taken_over_until_it_is_done() -> None:
    """Else of two that are at it one would go on in a copy that has lost its name."""
    steps = Steps()
    layout = FolderNames(FOLDER)

    def another() -> None:
        with pytest.raises(SessionBusy):
            take_over(steps.port, layout, "demo", steps.port.open(LOG, os.O_RDWR))

    steps.at["unlink"] = another  # the copy has the log's name by now
    log = steps.store.open("demo")
    third = take_over(steps.port, layout, "demo", steps.port.open(LOG, os.O_RDWR))
    steps.port.close(third)
    log.close()


class NoRanges(MemoryPort):
    """A system whose files cannot be locked in parts."""

    has_range_locks = False

    def lock(self, fd: int, offset: int) -> bool:
        raise AssertionError((fd, offset))

    def unlock(self, fd: int, offset: int) -> None:
        raise AssertionError((fd, offset))

    def flock(self, fd: int) -> bool:
        return super().lock(fd, 0)


def test_a_log_is_taken_over_where_there_are_no_range_locks() -> None:
    port = NoRanges()
    port.mkdir(FOLDER)
    put(port, LOG, DATA)
    old = port.lstat(LOG).identity
    JsonlFolder(FOLDER, port).open("demo").close()
    assert port.lstat(LOG).identity != old
    assert left_behind(port) == []


def crashed(**files: bytes) -> tuple[MemoryPort, FolderNames]:
    """What a crash left of a takeover, by the name of each file."""
    port, layout = MemoryPort(), FolderNames(FOLDER)
    port.mkdir(FOLDER)
    for name, data in files.items():
        put(port, getattr(layout, name)("demo"), data)
    return port, layout


def test_a_takeover_that_is_under_way_is_not_tidied_up() -> None:
    port, layout = crashed(aside=DATA)
    busy = port.open(layout.aside("demo"), os.O_RDWR)
    assert port.lock(busy, 0)
    with pytest.raises(SessionBusy):
        complete(port, layout, "demo")
    assert port.listdir(FOLDER) == [layout.aside("demo").name]
    port.close(busy)
    complete(port, layout, "demo")
    assert port.listdir(FOLDER) == [LOG.name]


def test_one_that_was_tidied_up_and_deleted_meanwhile_is_left_alone() -> None:
    port, layout = crashed(aside=DATA)

    def before(operation: str, _args: tuple[Any, ...]) -> None:
        if operation == "lock":
            port.unlink(layout.aside("demo"))

    complete(intercepted(port, before), layout, "demo")
    assert port.listdir(FOLDER) == []


def test_of_the_other_names_of_a_log_only_those_of_its_own_file_are_removed() -> None:
    """Another draft may be that of somebody who is at work."""
    port, layout = crashed(log=DATA)
    port.link(LOG, layout.copy("demo").with_name("demo.copy-1"))
    draft = layout.copy("demo").with_name("demo.copy-of-somebody")
    put(port, draft, DATA)
    complete(port, layout, "demo")
    assert sorted(port.listdir(FOLDER)) == [draft.name, LOG.name]
