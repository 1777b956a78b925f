"""A recording can be cut wherever a disk may be cut, and nowhere else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from refold.faults import (
    FailingPort,
    Fault,
    Image,
    Kind,
    RecordingDisk,
    Seen,
    crash_states,
    recovery_states,
)
from refold.faults.recording import Entry, Mark, Sync, SyncFolder, Truncate, Write

FOLDER, FILE, OTHER = Path("/f"), Path("/f/one"), Path("/f/two")


def disk_with(*files: tuple[Path, bytes]) -> RecordingDisk:
    """A disk on which these files have been all along."""
    names = {FOLDER: 0, **{path: n for n, (path, _) in enumerate(files, 1)}}
    return RecordingDisk(Image(names, {n: data for n, (_, data) in enumerate(files, 1)}))


def opened(disk: RecordingDisk, path: Path = FILE, flags: int = os.O_CREAT) -> int:
    return disk.open(path, os.O_RDWR | flags)


def left(disk: RecordingDisk, *kinds: str, path: Path = FILE) -> set[bytes | None]:
    """What may stand at a path after a crash; None for nothing."""
    states = list(crash_states(disk))
    digests = [state.digest for state in states]
    assert len(digests) == len(set(digests))
    return {s.image.files().get(path) for s in states if not kinds or s.kind in kinds}


CUT: tuple[Kind, ...] = ("byte cut",)


def test_a_disk_remembers_every_change_in_order_and_holds_it() -> None:
    disk = RecordingDisk()
    disk.mkdir(FOLDER)
    fd = opened(disk)
    disk.pwrite(fd, b"hello", 0)
    disk.copy_range(fd, fd, 2, 0, 5)
    disk.fdatasync(fd)
    disk.mark("told")
    disk.ftruncate(fd, 4)
    disk.syncfs(fd)
    disk.link(FILE, OTHER)
    disk.unlink(FILE)
    disk.rename(OTHER, FILE)
    disk.sync_directory(FOLDER)
    disk.close(opened(disk, flags=os.O_TRUNC))
    file = disk.fstat(fd).identity[1]
    folder = disk.lstat(FOLDER).identity[1]
    assert disk.operations == [
        Entry("mkdir", ((FOLDER, folder),)),
        Entry("create", ((FILE, file),)),
        Write(file, 0, b"hello"),
        Write(file, 5, b"he"),
        Sync(file),
        Mark("told"),
        Truncate(file, 4),
        Sync(None),
        Entry("link", ((OTHER, file),)),
        Entry("unlink", ((FILE, None),)),
        Entry("rename", ((OTHER, None), (FILE, file))),
        SyncFolder(FOLDER),
        Truncate(file, 0),
    ]
    assert disk.has_syncfs


def test_a_disk_begins_with_an_image_links_included() -> None:
    disk = RecordingDisk(Image({FOLDER: 7, FILE: 9, OTHER: 9}, {9: b"data"}))
    assert disk.operations == []
    assert disk.lstat(FILE) == disk.lstat(OTHER)
    assert disk.lstat(FILE).links == 2
    assert disk.start.files() == {FILE: b"data", OTHER: b"data"}
    again = RecordingDisk(disk.start)
    assert again.pread(opened(again), 9, 0) == b"data"


def test_an_unsynced_write_is_cut_at_every_byte() -> None:
    disk = disk_with((FILE, b"ab"))
    disk.pwrite(opened(disk), b"cde", 2)
    assert left(disk, "byte cut") == {b"ab", b"abc", b"abcd", b"abcde"}


def test_an_overwrite_that_is_cut_leaves_the_rest_as_it_was() -> None:
    disk = disk_with((FILE, b"abcd"))
    disk.pwrite(opened(disk), b"XYZ", 0)
    assert left(disk, "byte cut") == {b"abcd", b"Xbcd", b"XYcd", b"XYZd"}


def test_several_unsynced_writes_are_cut_one_after_the_other() -> None:
    disk = disk_with((FILE, b""))
    fd = opened(disk)
    disk.pwrite(fd, b"ab", 0)
    disk.ftruncate(fd, 1)
    disk.pwrite(fd, b"yz", 1)
    assert left(disk, "byte cut") == {b"", b"a", b"ab", b"ay", b"ayz"}


@pytest.mark.parametrize("sync", [RecordingDisk.fdatasync, RecordingDisk.syncfs])
def test_what_was_synced_stays(sync: Callable[[RecordingDisk, int], None]) -> None:
    disk = disk_with((FILE, b""))
    fd = opened(disk)
    disk.pwrite(fd, b"ab", 0)
    sync(disk, fd)
    disk.pwrite(fd, b"c", 2)
    states = [state for state in crash_states(disk, kinds=CUT) if state.at > 1]
    assert {state.image.files()[FILE] for state in states} == {b"ab", b"abc"}


def test_what_a_failed_sync_was_to_sync_is_lost_unless_it_is_written_again() -> None:
    disk = disk_with((FILE, b""))
    port = FailingPort(disk, Fault("fdatasync", errno.EIO))
    fd = port.open(FILE, os.O_RDWR)
    disk.pwrite(fd, b"ab", 0)
    with pytest.raises(OSError, match="Input/output"):
        port.fdatasync(fd)
    assert disk.pread(fd, 9, 0) == b"ab"
    disk.pwrite(fd, b"c", 2)
    disk.fdatasync(fd)
    assert [s.image.files()[FILE] for s in crash_states(disk) if s.at == 4] == [b"\0\0c"]
    disk.pwrite(fd, b"ab", 0)
    disk.fdatasync(fd)
    assert next(crash_states(disk)).image.files()[FILE] == b"abc"


def test_each_marked_state_is_told_with_the_most_that_was_marked() -> None:
    disk = disk_with((FILE, b""))
    fd = opened(disk)
    disk.mark("begun")
    disk.pwrite(fd, b"a", 0)
    disk.fdatasync(fd)
    disk.mark("synced")
    states = crash_states(disk, kinds=CUT)
    told = {state.image.files()[FILE]: state.marks for state in states}
    assert told == {b"": ["begun"], b"a": ["begun", "synced"]}


def test_blocks_and_sectors_of_what_was_unsynced_are_lost_in_every_combination() -> None:
    disk = disk_with((FILE, b"o" * 512))
    disk.pwrite(opened(disk), b"n" * 1300, 0)
    n, o, nothing, last, no_last = b"n" * 512, b"o" * 512, bytes(512), b"n" * 276, bytes(276)
    block = o + nothing + no_last
    sectors = {a + b + c for a in (n, o) for b in (n, nothing) for c in (last, no_last)}
    assert left(disk, "lost block") == {block}
    assert left(disk, "torn sector") == sectors - {block, n + n + last}


def test_of_many_sectors_some_combinations_are_drawn_by_the_seed() -> None:
    disk = disk_with((FILE, b""))
    disk.pwrite(opened(disk), b"x" * 512 * 40, 0)

    def drawn(seed: int, count: int) -> list[int]:
        states = crash_states(disk, kinds=["torn sector"], seed=seed, drawn=count)
        return [state.digest for state in states]

    assert len(drawn(1, 200)) == len(drawn(1, 100)) + 100
    assert drawn(1, 100) == drawn(1, 100) != drawn(2, 100)


def test_names_that_no_sync_of_the_folder_covers_may_be_lost_each_alone() -> None:
    disk = disk_with((FILE, b"old"))
    draft = Path("/f/draft")
    fd = disk.open(draft, os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, b"new", 0)
    disk.fdatasync(fd)
    disk.rename(draft, FILE)
    assert left(disk, "lost entry") >= {b"old"}
    assert left(disk) == {b"old", b"new"}
    assert left(disk, path=draft) == {None, b"", b"n", b"ne", b"new", bytes(3)}
    disk.sync_directory(FOLDER)
    assert {s.image.files().get(FILE) for s in crash_states(disk) if s.at == 5} == {b"new"}


def test_a_lost_link_and_a_lost_unlink_are_independent() -> None:
    disk = disk_with((FILE, b"x"))
    disk.link(FILE, OTHER)
    disk.unlink(FILE)
    names = [tuple(sorted(state.image.files())) for state in crash_states(disk)]
    assert sorted(names) == [(), (FILE,), (FILE, OTHER), (OTHER,)]


def test_a_folder_that_was_lost_takes_its_files_along() -> None:
    disk = RecordingDisk()
    disk.mkdir(FOLDER)
    opened(disk)
    disk.sync_directory(FOLDER)
    assert left(disk) == {None, b""}


def test_unsynced_bytes_of_two_files_are_independent() -> None:
    disk = disk_with((FILE, b""), (OTHER, b""))
    disk.pwrite(opened(disk), b"ab", 0)
    disk.pwrite(opened(disk, OTHER), b"cd", 0)
    pairs = {(s.image.files()[FILE], s.image.files()[OTHER]) for s in crash_states(disk)}
    assert pairs >= {(b"ab", b""), (b"", b"cd"), (b"a", b"cd"), (b"ab", b"c"), (b"a", b"")}


def test_states_are_counted_by_kind_and_across_enumerations() -> None:
    disk, seen = disk_with((FILE, b"")), Seen()
    disk.pwrite(opened(disk), b"abc", 0)
    assert len(list(crash_states(disk, seen=seen))) == 5
    assert seen.counts == {"byte cut": 4, "lost block": 1}
    assert list(crash_states(disk, seen=seen)) == []
    assert [s.kind for s in crash_states(disk, kinds=["lost block"])] == ["lost block"]


def test_a_recovery_is_cut_too_and_told_what_came_before() -> None:
    disk, seen = disk_with((FILE, b"")), Seen()
    disk.mark("begun")
    disk.pwrite(opened(disk), b"ab", 0)
    torn = next(state for state in crash_states(disk) if state.image.files()[FILE] == b"a")

    def recover(again: RecordingDisk) -> None:
        fd = opened(again)
        again.ftruncate(fd, 0)
        again.fdatasync(fd)
        again.mark("recovered")

    states = list(recovery_states(torn, recover, seen=seen))
    assert {s.image.files()[FILE]: s.marks for s in states} == {
        b"": ["begun", "recovered"],
        b"a": ["begun"],
    }
    assert {s.kind for s in states} == {"crash during recovery"}
    assert seen.counts == {"crash during recovery": 2}
    assert states[-1].lost.startswith(torn.lost)


def test_an_async_recovery_is_refused_with_what_to_do() -> None:
    disk = disk_with((FILE, b""))
    disk.pwrite(opened(disk), b"ab", 0)
    state = next(crash_states(disk))

    async def recover(again: RecordingDisk) -> None:
        del again

    for asked in (recover, partial(recover)):
        with pytest.raises(TypeError, match=r"give a plain function, .*trio.run"):
            next(recovery_states(state, asked))
