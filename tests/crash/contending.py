"""Programs that take one session from each other over one disk, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs

from refold.faults import FOLDER, Acknowledged, Image, RecordingDisk
from refold.runtime.errors import RefoldError
from refold.runtime.events import Owner
from refold.runtime.storage import JsonlFolder, JsonlLog, NotFound, SessionHeader, this_process
from refold.runtime.storage.files import remove
from tests.runtime.storage.logs import CHANGES, PowerCut, event, intercepted

SESSION = "taken"
HEADER = SessionHeader(SESSION, 1_760_000_000_000, durability="power")
LOCK = FOLDER / ".lock"

ELSEWHERE = 1
"""A process that runs as long as any does, and is not this one."""


Ahead: TypeAlias = "Callable[[Contender], object]"


Habit: TypeAlias = "Callable[[Contender, Contender], None]"
"""What the first owner, given first, does before an operation of another."""


def nothing(_: Contender) -> None:
    """Nobody acts."""


def meanwhile(first: Contender, habit: Habit, then: Ahead = nothing) -> Ahead:
    """What happens before an operation: what the first owner does, and then something else."""

    def ahead(other: Contender) -> None:
        habit(first, other)
        then(other)

    return ahead


class Contender:
    """A program that wants the session; what it is told is durable is acknowledged on the disk.

    `ahead` is called with it before each of its operations on the disk: others may act there, or
    it may be killed. `steps` counts the operations, that one included, and `changes` those that
    change something. `told` is the refusal that it ended with.
    """

    def __init__(self, name: str, disk: RecordingDisk, ahead: Ahead = nothing) -> None:
        self.name = name
        self.ahead = ahead
        self.steps, self.changes = 0, 0
        self.told: RefoldError | None = None
        self.is_dead = False
        self.acknowledged = 0
        self._disk = disk
        self._fds: set[int] = set()
        self._pending: list[bytes] = []
        self._log: JsonlLog | None = None
        self._folder = JsonlFolder(FOLDER, intercepted(disk, self._meet))

    def create(self) -> None:
        """Make the session and own it as another process does."""
        self._go(self._create)

    def open(self) -> None:
        """Take the session over, and say so in it."""
        self._go(self._open)

    def write(self) -> None:
        """Append one event, if it may."""
        self._go(self._write)

    def sync(self) -> None:
        """Sync what it appended, if it may."""
        self._go(self._sync)

    def leave(self) -> None:
        """Append one event and sync it."""
        self.write()
        self.sync()

    def die(self) -> None:
        """End at once: what it had open is closed, and its locks are free."""
        self.is_dead = True
        for fd in self._fds:
            self._disk.close(fd)

    def _go(self, act: Callable[[], None]) -> None:
        if self.told is not None or self.is_dead:
            return
        try:
            act()
        except RefoldError as error:
            self.told = error
        except PowerCut:
            assert self.is_dead

    def _create(self) -> None:
        self._log = self._folder.create(HEADER)
        here = attrs.evolve(this_process(), pid=ELSEWHERE)
        self._append(self._owner(here))
        self._sync()

    def _open(self) -> None:
        self._log = self._folder.open(SESSION)
        self._append(self._owner(Owner("another", 2, "boot")))
        self._sync()

    def _write(self) -> None:
        if self._log is not None:
            self._append(event(self._log.next_seq, text=f"{self.name} {self.steps}"))

    def _owner(self, process: Owner) -> bytes:
        assert self._log is not None
        facts = {"term": self._log.term, "owner": attrs.asdict(process)}
        return event(self._log.next_seq, "session/owner", **facts)

    def _append(self, encoded: bytes) -> None:
        assert self._log is not None
        self._log.append([encoded])
        self._pending.append(encoded)

    def _sync(self) -> None:
        if self._log is None:
            return
        end = self._log.sync() + 1
        for seq, encoded in enumerate(self._pending, end - len(self._pending)):
            self._disk.acknowledge(SESSION, seq, encoded)
        self.acknowledged += len(self._pending)
        self._pending.clear()

    def _meet(self, operation: str, args: tuple[Any, ...]) -> object:
        if self.is_dead:
            raise PowerCut
        self.steps += 1
        self.changes += operation in CHANGES
        self.ahead(self)
        if self.is_dead:
            raise PowerCut
        if operation == "open":
            fd = self._disk.open(*args)
            self._fds.add(fd)
            return fd
        if operation == "close":
            self._fds.discard(args[0])
        return None


@attrs.define
class Contest:
    """A disk with a session that `first` owns, whose lock file is gone by force."""

    disk: RecordingDisk = attrs.field(factory=RecordingDisk)
    first: Contender = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.first = Contender("first", self.disk)
        self.first.create()
        for _ in range(2):
            self.first.leave()
        self.unlock()

    def unlock(self) -> None:
        """Remove the lock file, as nobody should."""
        remove(self.disk, LOCK)

    def contender(self, name: str, ahead: Ahead = nothing) -> Contender:
        return Contender(name, self.disk, ahead)

    def lost(self) -> list[str]:
        """What of all that was acknowledged is not there for the next opening."""
        return lost(self.disk.image(), self.disk.marks)


def lost(image: Image, marks: Sequence[object]) -> list[str]:
    """What of the acknowledged the next opening of this disk does not find."""
    disk = RecordingDisk(image)
    told = [mark for mark in marks if isinstance(mark, Acknowledged)]
    try:
        reopen(disk)
    except NotFound:
        return ["the log is gone"] if told else []
    except RefoldError as error:
        return [f"the log is refused: {error}"]
    records = JsonlFolder(FOLDER, disk).read(SESSION).records
    there = {(record.seq, record.encoded) for record in records}
    missing = [one for one in told if (one.seq, one.encoded) not in there]
    return [f"seq {one.seq} is missing, {one.encoded!r}" for one in missing]


def reopen(disk: RecordingDisk) -> None:
    """An opening by itself, nobody else being there any more; raises as `JsonlFolder.open`."""
    JsonlFolder(FOLDER, disk).open(SESSION).close()
