"""What of a recording is on the disk for certain, and what is not, after each operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from refold.faults.recording import (
    Entry,
    FailedSync,
    Mark,
    Operation,
    RecordingDisk,
    Sync,
    SyncFolder,
    Truncate,
    Write,
)


@attrs.frozen
class Unsynced:
    """A file with changes that no sync covers: its bytes without them, and with all of them."""

    old: bytes = attrs.field(repr=False)
    changes: tuple[Write | Truncate, ...] = ()
    new: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class Moment:
    """A disk after `at` operations, of which `told` were marks.

    `synced` holds the files that are on the disk whole, `names` what the disk says without the
    `entries` that no sync covers. `goes_on` is the file that the next operation changes, too.
    """

    at: int
    told: int
    synced: Mapping[int, bytes] = attrs.field(repr=False)
    unsynced: Mapping[int, Unsynced]
    names: Mapping[Path, int]
    entries: tuple[Entry, ...]
    goes_on: int | None = None


def moments(disk: RecordingDisk) -> list[Moment]:
    """The moments of a recording at which a crash leaves something of its own, in order."""
    cache, found, told = _Cache(disk), list[Moment](), 0
    for at, operation in enumerate([*disk.operations, None]):
        if isinstance(operation, Mark):  # the moment after it has been told more
            told += 1
            continue
        changed = operation.file if isinstance(operation, Write | Truncate) else None
        found.append(cache.moment(at, told, changed))
        if operation is not None:
            cache.do(operation)
    return found


class _Cache:
    """The operating system's memory of a disk: what it still has to write."""

    def __init__(self, disk: RecordingDisk) -> None:
        self._synced: dict[int, bytes] = dict(disk.start.contents)
        self._unsynced: dict[int, Unsynced] = {}
        self._names: Mapping[Path, int] = disk.start.names
        self._entries: tuple[Entry, ...] = ()

    def moment(self, at: int, told: int, changed: int | None) -> Moment:
        synced = {file: data for file, data in self._synced.items() if file not in self._unsynced}
        unsynced = dict(self._unsynced)
        return Moment(at, told, synced, unsynced, self._names, self._entries, changed)

    def do(self, operation: Operation) -> None:
        match operation:
            case Write(file=file) | Truncate(file=file):
                self._change(file, operation)
            case Sync(file=None):
                for file in tuple(self._unsynced):
                    self._sync(file)
                self._sync_names(self._entries)
            case Sync(file=int(file)):
                self._sync(file)
            case FailedSync(file=file):
                self._unsynced.pop(file, None)
            case SyncFolder(folder=folder):
                self._sync_names([one for one in self._entries if _is_in(one, folder)])
            case Entry():
                self._entries = (*self._entries, operation)
                if operation.operation == "create":
                    self._synced[_file(operation)] = b""

    def _change(self, file: int, change: Write | Truncate) -> None:
        old = self._synced.get(file, b"")
        before = self._unsynced.get(file, Unsynced(old, (), old))
        changes, new = (*before.changes, change), applied(before.new, change)
        self._unsynced[file] = Unsynced(old, changes, new)

    def _sync(self, file: int) -> None:
        if file in self._unsynced:
            self._synced[file] = self._unsynced.pop(file).new

    def _sync_names(self, entries: Iterable[Entry]) -> None:
        synced = tuple(entries)
        self._names = entered(self._names, synced)
        self._entries = tuple(one for one in self._entries if one not in synced)


def applied(data: bytes, change: Write | Truncate) -> bytes:
    """A file's bytes after one change."""
    if isinstance(change, Truncate):
        return data[: change.size].ljust(change.size, b"\0")
    before = data[: change.offset].ljust(change.offset, b"\0")
    return before + change.data + data[change.offset + len(change.data) :]


def entered(names: Mapping[Path, int], entries: Iterable[Entry]) -> Mapping[Path, int]:
    """The names after these changes; what stands in a folder that is gone is gone."""
    after: dict[Path, int | None] = dict(names)
    for entry in entries:
        after.update(entry.names)
    there = {path: file for path, file in after.items() if file is not None}
    return {path: file for path, file in there.items() if _has_folders(path, there)}


def _has_folders(path: Path, there: Mapping[Path, int]) -> bool:
    return all(folder in there for folder in _folders(path))


def _folders(path: Path) -> Iterator[Path]:
    return (folder for folder in path.parents if folder != folder.parent)


def _is_in(entry: Entry, folder: Path) -> bool:
    return all(path.parent == folder for path, _ in entry.names)


def _file(entry: Entry) -> int:
    ((_, file),) = entry.names
    assert file is not None
    return file
