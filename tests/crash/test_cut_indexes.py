"""A crash of a session whose log has an index file: the log alone says what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from refold.faults import (
    CrashState,
    Journal,
    RecordingDisk,
    Seen,
    check_promises,
    crash_states,
    recovery_states,
)
from refold.runtime.errors import RefoldError
from refold.runtime.storage import JsonlFolder, JsonlLog, NotFound
from refold.runtime.storage import index as index_module
from refold.runtime.storage.files import exists, remove
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, event, get

pytestmark = pytest.mark.crash

ID, INDEX = HEADER.id, FOLDER / f"{HEADER.id}.index"

LIVES = [(2, 2, 2), (3, 1), (2, 2)]
"""The batches of each opening that ends with an index."""

STRIDE, EVERY = 28, 5000
"""One cut within bytes of so many is tried, and one of so many is written to, which is cut, too."""


@pytest.fixture(autouse=True)
def _short_logs_have_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FEWEST", 5)


def indexed() -> RecordingDisk:
    """A session that was closed and opened again, each time with an index of more."""
    disk = RecordingDisk()
    store = JsonlFolder(FOLDER, disk)
    for life, sizes in enumerate(LIVES):
        log = store.open(ID) if life else store.create(HEADER)
        for size in sizes:
            grow(disk, log, size)
        log.close()
    log = store.open(ID)
    grow(disk, log, 2)
    log.append([event(log.next_seq, text="never synced")])
    return disk


def grow(disk: RecordingDisk, log: JsonlLog, size: int) -> None:
    """Add a batch that is acknowledged."""
    start = log.next_seq
    batch = [event(seq, text=f"{seq}" * 9) for seq in range(start, start + size)]
    log.append(batch)
    log.sync()
    for seq, encoded in enumerate(batch, start):
        disk.acknowledge(ID, seq, encoded)


def go_on(disk: RecordingDisk) -> None:
    """Open the session if it is there, append, and close it with an index of all."""
    try:
        log = JsonlFolder(FOLDER, disk).open(ID)
    except NotFound:
        return
    log.append([event(log.next_seq + more, text="later") for more in range(6)])
    log.close()


def problem(state: CrashState) -> str | None:
    """What is wrong with what an opening finds, or with how an index changes that."""
    disk, bare = state.disk(), state.disk()
    remove(bare, INDEX)
    if facts(disk) != facts(bare):
        return f"with an index {facts(disk)}, without one {facts(bare)}"
    go_on(disk)
    broken = check_promises(JsonlFolder(FOLDER, disk), Journal.of(state.marks))
    return "; ".join(map(str, broken)) or None


def facts(disk: RecordingDisk) -> tuple[object, ...]:
    """What reading says of a log, or how it is refused."""
    try:
        found = JsonlFolder(FOLDER, disk).read(ID)
    except RefoldError as error:
        return (str(error),)
    return (found.header, [*found.records], found.end, found.torn)


def test_no_index_that_a_crash_leaves_changes_what_a_log_says() -> None:
    met, bad = Counter[str](), list[str]()
    for state in some_states(indexed()):
        met[kind_of(state)] += 1
        if (found := problem(state)) is not None:
            bad.append(f"{state.kind} after {state.at} operations, lost: {state.lost}: {found}")
    assert bad[:5] == []
    assert min(met[kind] for kind in ("used, log torn", "used", "useless", "none")) > 30


def some_states(disk: RecordingDisk) -> Iterator[CrashState]:
    seen = Seen()
    for number, state in enumerate(crash_states(disk, seen=seen)):
        if number % STRIDE == 0 or state.kind != "byte cut":
            yield state
        if number % EVERY == 0:
            yield from islice(recovery_states(state, go_on, seen=seen), 0, None, STRIDE)


def kind_of(state: CrashState) -> str:
    """Whether a state's log has an index, and whether the tail behind it is whole."""
    disk = state.disk()
    if not (exists(disk, INDEX) and exists(disk, LOG)):
        return "none"
    found = JsonlFolder(FOLDER, disk).read(ID)
    if not found.indexed:
        return "useless"
    return "used" if found.torn is None else "used, log torn"


def test_no_log_that_is_shorter_than_its_index_is_read_by_it() -> None:
    """What no crash leaves by itself: the index of a log whose end a disk had and lost."""
    disk = RecordingDisk(indexed().image())
    go_on(disk)
    remove(disk, FOLDER / f"{ID}.head")
    data, image = get(disk, LOG), disk.image()
    assert JsonlFolder(FOLDER, disk).read(ID).indexed == 23
    for size in range(len(data)):
        cut = RecordingDisk(image)
        fd = cut.open(LOG, 0)
        cut.ftruncate(fd, size)
        bare = RecordingDisk(cut.image())
        remove(bare, INDEX)
        assert facts(cut) == facts(bare)
