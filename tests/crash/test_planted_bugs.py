"""The harnesses go red: each bug is planted on purpose, and the state that finds it is told.

A harness that was never seen red is no evidence.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from zlib import crc32

import orjson
import pytest

from refold.faults import RecordingDisk, crash_states
from refold.runtime.storage import framing, walk
from tests.crash.checking import Checker
from tests.crash.damage import closed, flipped, rearranged
from tests.crash.recordings import play

pytestmark = pytest.mark.crash


class SkipsTheSync(RecordingDisk):
    def fdatasync(self, fd: int) -> None:
        pass


class ForgetsTheDirectorySync(RecordingDisk):
    def sync_directory(self, path: Any) -> None:
        pass


class RetriesAFailedSync(RecordingDisk):
    """The second sync of a file fails, is tried again, and is believed."""

    def __init__(self) -> None:
        super().__init__()
        self._syncs = 0

    def fdatasync(self, fd: int) -> None:
        self._syncs += 1
        if self._syncs == 2:
            self.lose_sync(fd)
        super().fdatasync(fd)


class IgnoresAShortWrite(RecordingDisk):
    """The last write before the end of the first turn is short, and taken for whole."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if b'"turn/end"' in bytes(data) and not self._is_over:
            self._is_over = True
            super().pwrite(fd, data[: len(data) // 2], offset)
            return len(data)
        return super().pwrite(fd, data, offset)


def first_bad_state(disk: RecordingDisk) -> str | None:
    """The first state in which the harness of crash states sees something wrong."""
    play("tools", 0, disk, random.Random(0))
    return _first_bad(disk)


def first_bad_state_of_a_buggy(disk: RecordingDisk) -> str | None:
    """The same with a bug in the disk, which may stop the session; what was said before counts."""
    with suppress(Exception):
        play("tools", 0, disk, random.Random(0))
    return _first_bad(disk)


def _first_bad(disk: RecordingDisk) -> str | None:
    checker, seen = Checker(disk), 0
    for seen, state in enumerate(crash_states(disk), 1):  # noqa: B007 - it is counted for the end
        problem = checker.problem(state)
        if problem is not None:
            return f"{state.kind} after {state.at} operations, lost: {state.lost}: {problem}"
    assert seen > 1000, f"a harness that sees {seen} states sees nothing"
    return None


def first_silent_flip() -> str | None:
    log = closed("tools", 0, head=True)
    return next((f"bit {bit}: {bad}" for bit, bad in flipped(log, 20_000) if bad), None)


def first_silent_line() -> str | None:
    log, sibling = closed("tools", 0, head=True), closed("tools", 1, head=True)
    for what, data in rearranged(log, sibling):
        problem = log.damaged(data)
        if problem is not None:
            return f"{what}: {problem}"
    return None


def accept_any_valid_line(patch: pytest.MonkeyPatch) -> None:
    original = walk._parse

    def parse(found: walk.Walk, start: int, end: int, crc: int) -> NamedTuple | None:
        with suppress(ValueError, KeyError):
            line = orjson.loads(found.data[start:end])
            return original(found, start, end, int(line["crc"], 16))
        return original(found, start, end, crc)

    patch.setattr(walk, "_parse", parse)


def drop_the_chain(patch: pytest.MonkeyPatch) -> None:
    def unchained(data: bytes, _seed: int = 0) -> int:
        return crc32(data)

    patch.setattr(framing, "crc32", unchained)
    patch.setattr(walk, "crc32", unchained)


def ignore_left(patch: pytest.MonkeyPatch) -> None:
    original = walk._parse

    def parse(found: walk.Walk, start: int, end: int, crc: int) -> Any:
        line = original(found, start, end, crc)
        return line and line._replace(left=0)

    patch.setattr(walk, "_parse", parse)


def nothing(_patch: pytest.MonkeyPatch) -> None:
    """The product as it is."""


Plant = Callable[[pytest.MonkeyPatch], None]
Harness = Callable[[], str | None]

BUGS: dict[str, tuple[Plant, Harness, str]] = {
    "skip the sync": (nothing, lambda: first_bad_state_of_a_buggy(SkipsTheSync()), "no session"),
    "forget the directory sync": (
        nothing,
        lambda: first_bad_state_of_a_buggy(ForgetsTheDirectorySync()),
        "no session",
    ),
    "retry a failed sync": (
        nothing,
        lambda: first_bad_state_of_a_buggy(RetriesAFailedSync()),
        "damaged",
    ),
    "ignore a short write": (
        nothing,
        lambda: first_bad_state_of_a_buggy(IgnoresAShortWrite()),
        "missing",
    ),
    "ignore `left`": (
        ignore_left,
        lambda: first_bad_state(RecordingDisk()),
        "part of a batch",
    ),
    "accept any valid line": (accept_any_valid_line, first_silent_flip, "wrong record"),
    "drop the chain": (drop_the_chain, first_silent_line, "wrong record"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    bug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant, harness, says = BUGS[bug]
    plant(monkeypatch)
    found = harness()
    with capsys.disabled():
        print(f"\n{bug}: {found}")  # noqa: T201 - which state found it is the test's other result
    assert found is not None
    assert says in found


@pytest.mark.parametrize(
    "harness", [lambda: first_bad_state(RecordingDisk()), first_silent_flip, first_silent_line]
)
def test_without_a_bug_nothing_is_found(harness: Harness) -> None:
    assert harness() is None
