"""A crash while a session is imported, repaired by command or deleted leaves one or the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

import pytest

from refold.faults import CrashState, RecordingDisk, Seen, crash_states, recovery_states
from refold.runtime.errors import RefoldError
from refold.runtime.storage import JsonlFolder
from refold.runtime.storage import index as index_module
from tests.crash.changing import (
    ID,
    Change,
    after,
    closed,
    delete,
    events_of,
    flipped,
    fresh,
    half_made,
    lines,
    lived,
    opened,
    plan,
    repair,
    shortened,
    stands_beside,
    without_log,
    written,
)
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, get

pytestmark = pytest.mark.crash

EVERY = 500
"""After one state of so many the change is made again, and that is cut, too."""

OLD, NEW = (list(chain.from_iterable(events_of(letter))) for letter in "an")
LINES = lines("n")

Problem = Callable[[CrashState], str | None]


@pytest.fixture(autouse=True)
def _short_logs_have_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FEWEST", 5)


def bad_states(disk: RecordingDisk, again: Change, problem: Problem, seen: Seen) -> Iterator[str]:
    """What is wrong with the states that a crash leaves, and that one of the change again does."""
    for number, state in enumerate(crash_states(disk, seen=seen)):
        yield from told(state, problem)
        if number % EVERY == 0:
            for later in recovery_states(state, lambda disk: again(store_on(disk)), seen=seen):
                yield from told(later, problem)


def told(state: CrashState, problem: Problem) -> Iterator[str]:
    try:
        found = problem(state)
    except RefoldError as error:
        found = f"refused: {error}"
    if found is not None:
        yield f"{state.kind} after {state.at} operations, lost: {state.lost}: {found}"


def store_on(disk: RecordingDisk) -> JsonlFolder:
    return JsonlFolder(FOLDER, disk)


def adopt(store: JsonlFolder) -> None:
    """Import the session, if it is not there."""
    if ID not in store.list():
        store.adopt(HEADER, LINES)


@pytest.mark.parametrize(
    "before",
    [fresh, half_made, lambda: without_log(closed()), lambda: without_log(closed("n"))],
    ids=["nothing", "half a header", "the head and the index of another", "those of its twin"],
)
def test_a_crash_within_an_import_leaves_the_session_or_none(
    before: Callable[[], RecordingDisk],
) -> None:
    disk, seen = after(before(), adopt), Seen()
    assert list(islice(bad_states(disk, adopt, badly_adopted, seen), 5)) == []
    assert seen.counts.total() > 100


def badly_adopted(state: CrashState) -> str | None:
    disk = state.disk()
    found = opened(disk)
    if found is not None:
        return None if found[0] == NEW else "a part of the session"
    if state.marks:
        return "the session that was there is gone"
    adopt(store_on(disk))
    if opened(disk) is None:
        return "it cannot be imported again"
    disk = state.disk()
    written(disk, "n")
    return None if opened(disk) is not None else "it cannot be made"


@pytest.mark.parametrize("damaged", [flipped, shortened])
def test_a_crash_within_a_repair_leaves_the_old_log_or_the_new_and_a_copy(
    damaged: Callable[[], RecordingDisk],
) -> None:
    before, seen = damaged(), Seen()
    disk = after(before, repair)
    problem = BadlyReplaced(before, disk)
    assert list(islice(bad_states(disk, repair, problem, seen), 5)) == []
    assert seen.counts.total() > 1000


class BadlyReplaced:
    """What is wrong with a log that was being replaced."""

    def __init__(self, before: RecordingDisk, after: RecordingDisk) -> None:
        kept = plan(store_on(before))
        assert kept is not None
        self._dropped = len(kept.dropped)
        self._old, self._new = get(before, LOG), get(after, LOG)
        assert self._new == kept.data

    def __call__(self, state: CrashState) -> str | None:
        disk = state.disk()
        stored = get(disk, LOG)
        if stored == self._old and not state.marks:
            repair(store_on(disk))
        elif stored != self._new:
            return "neither the old log nor the new one"
        elif self._old not in copies(disk):
            return "no copy of the old log"
        found = opened(disk)
        if found is None:
            return "the log is gone"
        dropped = 0 if found[1] is None else found[1].dropped_bytes
        return None if dropped == self._dropped else f"{dropped} dropped bytes are reported"


def copies(disk: RecordingDisk) -> list[bytes]:
    names = [name for name in stands_beside(disk) if ".damaged-" in name]
    return [get(disk, FOLDER / name) for name in names]


def test_a_crash_within_a_deletion_leaves_the_whole_session_or_none() -> None:
    disk, seen = after(lived(), delete), Seen()
    assert list(islice(bad_states(disk, delete, badly_deleted, seen), 5)) == []
    assert seen.counts.total() > 50


def badly_deleted(state: CrashState) -> str | None:
    found = opened(state.disk())
    if found is not None and (state.marks or found[0] != OLD):
        return "a part of the session"
    disk = state.disk()
    delete(store_on(disk))
    if left := stands_beside(disk):
        return f"deleted again, it left {', '.join(left)}"
    if (report := written(disk, "n")) is not None:
        return f"a new session reports of the old one: {report}"
    found = opened(disk)
    return None if found == (NEW, None) else f"a new session opens as {found}"
